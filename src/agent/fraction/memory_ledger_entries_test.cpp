#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/fraction/test_memory_ledger.h"

namespace gpulet::agent {
namespace {

using ClaimLedgerTest = MemoryLedgerTest;

TEST_F(ClaimLedgerTest, AShareOfAClaimIsTheLimit) {
  add_claim_pod("a", "claim-a", 4096);
  add_claim_pod("whole", "claim-w", 0);
  ledger->find_limits("uid-a", "main");
  ledger->find_limits("uid-whole", "main");
  refresh();
  const auto found = ledger->find_limits("uid-a", "main");
  ASSERT_EQ(found.state, ContainerLimits::State::kKnown) << found.reason;
  EXPECT_EQ(found.limits, (std::map<DeviceUuid, Bytes>{{DeviceUuid("GPU-0"), mebibytes(4096)}}));
  EXPECT_TRUE(found.unlimited.empty());
  const auto whole = ledger->find_limits("uid-whole", "main");
  EXPECT_EQ(whole.state, ContainerLimits::State::kKnown);
  EXPECT_TRUE(whole.limits.empty());
  const auto& entries = ledger->entries().at(DeviceUuid("GPU-0"));
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].limit, mebibytes(4096));
  EXPECT_EQ(entries[0].source, "claim default/claim-a");
  EXPECT_EQ(entries[0].resource, ResourceName("gpu.nvidia.com"));
  EXPECT_TRUE(entries[0].caps.empty());
  EXPECT_EQ(entries[1].limit, Bytes{});
  EXPECT_TRUE(ledger->has_limits());
}

TEST_F(ClaimLedgerTest, TheLeastOfClaimAndRequestCounts) {
  add_claim_pod("a", "claim-a", 4096);
  add_claim_pod("b", "claim-b", 4096);
  for (const auto& [name, memory] : {std::pair("a", "2000"), {"b", "8000"}}) {
    reader.pods[std::string("default/") + name].annotations["gpu-memory"] = memory;
    reader.pods[std::string("default/") + name].containers[1].limits = {{"nvidia.com/gpu", "1"}};
  }
  ledger->find_limits("uid-a", "main");
  ledger->find_limits("uid-b", "main");
  refresh();
  const DeviceUuid gpu("GPU-0");
  EXPECT_EQ(ledger->find_limits("uid-a", "main").limits.at(gpu), mebibytes(2000));
  EXPECT_EQ(ledger->find_limits("uid-b", "main").limits.at(gpu), mebibytes(4096));
  EXPECT_EQ(ledger->entries().at(gpu)[0].source, "annotation gpu-memory");
  EXPECT_EQ(ledger->entries().at(gpu)[1].source, "claim default/claim-b");
}

TEST_F(ClaimLedgerTest, AContainerWhoseClaimIsNotKnownIsRefused) {
  add_claim_pod("a", "claim-a", 4096);
  claims_of_node.clear();
  ledger->find_limits("uid-a", "main");
  refresh();
  const auto unknown = ledger->find_limits("uid-a", "main");
  EXPECT_EQ(unknown.state, ContainerLimits::State::kRefused);
  EXPECT_EQ(unknown.reason, "the claim that gave it GPU-0 is not known");
  claims_error = Error(Code::kUnavailable, "this agent serves no claims");
  EXPECT_EQ(ledger->find_limits("uid-a", "main").reason, "this agent serves no claims");
  claims_error = Error(Code::kUnsupported, "this agent serves no claims");
  const auto of_others = ledger->find_limits("uid-a", "main");
  EXPECT_EQ(of_others.state, ContainerLimits::State::kKnown) << "another driver's claims set no limits";
  EXPECT_TRUE(of_others.limits.empty());
}

// As the kubelet lists them: each container with all devices of its claims.
TEST_F(ClaimLedgerTest, AContainerHasOnlyWhatTheRequestsHaveThatItNames) {
  ledger->use_snapshot(std::make_shared<inventory::Snapshot>(make_memory_node(2)));
  add_claim_pod("a", "claim-a", 4096);
  auto second = claims_of_node["uid-claim-a"].devices[0];
  second.request = "more";
  second.device = "gpu-1";
  second.uuid = DeviceUuid("GPU-1");
  claims_of_node["uid-claim-a"].devices.push_back(second);
  holders.back().devices.begin()->second.emplace_back("GPU-1");
  holders.push_back(holders.back());
  holders.back().container = "other";
  auto& containers = reader.pods["default/a"].containers;
  containers.push_back({.name = "other", .limits = {}, .id = {}, .claims = {{"claim-a", "more"}}});
  ledger->find_limits("uid-a", "main");
  ledger->find_limits("uid-a", "other");
  refresh();
  const auto limit_on = [](const char* gpu) {
    return std::map<DeviceUuid, Bytes>{{DeviceUuid(gpu), mebibytes(4096)}};
  };
  const auto main = ledger->find_limits("uid-a", "main");
  ASSERT_EQ(main.state, ContainerLimits::State::kKnown) << main.reason;
  EXPECT_EQ(main.limits, limit_on("GPU-0"));
  EXPECT_TRUE(main.unlimited.empty());
  EXPECT_EQ(ledger->find_limits("uid-a", "other").limits, limit_on("GPU-1"));
  ASSERT_EQ(ledger->entries().at(DeviceUuid("GPU-0")).size(), 1u);
  EXPECT_EQ(ledger->entries().at(DeviceUuid("GPU-0"))[0].container, "main");
  EXPECT_TRUE(ledger->entries().at(DeviceUuid("GPU-0"))[0].caps.empty()) << "it uses the share alone";
  ASSERT_EQ(ledger->entries().at(DeviceUuid("GPU-1")).size(), 1u);
  EXPECT_EQ(ledger->entries().at(DeviceUuid("GPU-1"))[0].container, "other");
}

// The kubelet has had the claim prepared for the first Pod, which demands nothing.
TEST_F(ClaimLedgerTest, APodThatJoinsAClaimHasTheGradeThatItDemands) {
  add_claim_pod("first", "claim", 4096);
  add_claim_pod("second", "claim", 4096);
  const auto state_of = [&](const std::string& pod) {
    ledger->find_limits("uid-" + pod, "main");
    refresh();
    return ledger->find_limits("uid-" + pod, "main");
  };
  const auto demand = [&](const std::string& grade) {
    reader.pods["default/second"].annotations["gpulet.io/min-limit-grade"] = grade;
    loop.advance(kLimitedPodInterval);  // its Pod is read again
    return state_of("second");
  };
  EXPECT_EQ(state_of("second").state, ContainerLimits::State::kKnown) << "it demands nothing";
  const auto refused = demand("audited");
  EXPECT_EQ(refused.state, ContainerLimits::State::kRefused);
  EXPECT_EQ(
      refused.reason,
      "its Pod demands memory limits of grade audited (annotation gpulet.io/min-limit-grade), and other "
      "Pods use the claim default/claim too: the grade on GPU-0 is none");
  EXPECT_EQ(state_of("first").state, ContainerLimits::State::kKnown);
  EXPECT_THAT(demand("hard").reason, testing::HasSubstr("expected kernel, mps or audited"));

  const DeviceUuid gpu("GPU-0");
  auto& record = claims_of_node["uid-claim"];
  record.devices[0].share_id.clear();
  record.daemons = {{.devices = {gpu}, .limits_mib = {{gpu, 2000}}}};
  reader.pods["default/second"].access = {{.name = "main", .may_be_root = false}};
  EXPECT_EQ(demand("mps").state, ContainerLimits::State::kKnown) << "MPS limits the processes of each";
  EXPECT_EQ(demand("kernel").state, ContainerLimits::State::kRefused);

  std::erase_if(holders, [](const auto& one) { return one.pod.name == "first"; });
  EXPECT_EQ(demand("kernel").state, ContainerLimits::State::kKnown) << "it is alone: its claim was judged";
}

TEST_F(ClaimLedgerTest, AClaimThatIsSharedByMpsLimitsEachProcess) {
  add_claim_pod("a", "claim-a", 0);
  add_claim_pod("plain", "claim-b", 0);
  const DeviceUuid gpu("GPU-0");
  claims_of_node["uid-claim-a"].daemons = {{.devices = {gpu}, .limits_mib = {{gpu, 2000}}}};
  claims_of_node["uid-claim-b"].daemons = {{.devices = {gpu}}};
  refresh();
  const auto& entries = ledger->entries().at(gpu);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].mps_process_mib, 2000u);
  EXPECT_EQ(entries[0].limit, Bytes{}) << "of all its processes together";
  EXPECT_TRUE(entries[0].is_limited());
  EXPECT_FALSE(entries[1].is_limited()) << "the claim sets no limit";
  EXPECT_TRUE(ledger->has_limits()) << "its end is noticed";
  const auto known = entries[0];
  claims_error = Error(Code::kUnavailable, "this agent serves no claims");
  refresh();
  EXPECT_EQ(ledger->entries().at(gpu)[0], known);
}

TEST_F(ClaimLedgerTest, AnInitContainerHasTheLimitsOfItsClaims) {
  add_claim_pod("a", "claim-a", 4096);
  auto& init = reader.pods["default/a"].containers[0];
  init.claims = {{"network", ""}};
  ledger->find_limits("uid-a", "prepare");
  refresh();
  EXPECT_TRUE(ledger->find_limits("uid-a", "prepare").limits.empty());
  init.claims = {{"claim-a", ""}};
  loop.advance(kLimitedPodInterval);
  const auto found = ledger->find_limits("uid-a", "prepare");
  ASSERT_EQ(found.state, ContainerLimits::State::kKnown);
  EXPECT_TRUE(found.is_init);
  EXPECT_EQ(found.limits, (std::map<DeviceUuid, Bytes>{{DeviceUuid("GPU-0"), mebibytes(4096)}}));
  const auto& entry = ledger->entries().at(DeviceUuid("GPU-0")).front();
  ASSERT_EQ(entry.caps.size(), 1u) << "two containers use the share";
  EXPECT_EQ(entry.caps[0].highest, fraction::LimitGrade::kNone);
  EXPECT_THAT(entry.caps[0].reason, testing::HasSubstr("claim default/claim-a"));
}

// Nothing but the init container uses the claim: the kubelet never lists the Pod.
TEST_F(ClaimLedgerTest, AnInitContainerAloneIsFoundByItsPod) {
  add_claim_pod("a", "claim-a", 4096);
  holders.clear();
  auto& containers = reader.pods["default/a"].containers;
  containers[0].claims = std::exchange(containers[1].claims, {});
  EXPECT_EQ(ledger->find_limits("uid-a", "prepare").state, ContainerLimits::State::kUnknown);
  ledger->refresh_pods({"default", "a", "uid-a"});
  loop.run_ready();
  const auto found = ledger->find_limits("uid-a", "prepare");
  ASSERT_EQ(found.state, ContainerLimits::State::kKnown);
  EXPECT_EQ(found.limits, (std::map<DeviceUuid, Bytes>{{DeviceUuid("GPU-0"), mebibytes(4096)}}));
  EXPECT_EQ(ledger->find_limits("uid-a", "main").state, ContainerLimits::State::kUnknown)
      << "the kubelet may list it later";
  EXPECT_EQ(ledger->find_limits("uid-other", "prepare").state, ContainerLimits::State::kUnknown);
  EXPECT_TRUE(ledger->entries().empty());
}

TEST_F(ClaimLedgerTest, EachGpuHasItsOwnResource) {
  ledger->use_snapshot(std::make_shared<inventory::Snapshot>(make_memory_node(2)));
  add_claim_pod("a", "claim-a", 4096);
  holders.back().devices[ResourceName("nvidia.com/gpu")] = {DeviceId("GPU-1::0")};
  refresh();
  EXPECT_EQ(ledger->entries().at(DeviceUuid("GPU-0"))[0].resource, ResourceName("gpu.nvidia.com"));
  EXPECT_EQ(ledger->entries().at(DeviceUuid("GPU-1"))[0].resource, ResourceName("nvidia.com/gpu"));
}

TEST_F(ClaimLedgerTest, TheLastLimitCountsWhileClaimsAreNotKnown) {
  add_claim_pod("a", "claim-a", 4096);
  refresh();
  const DeviceUuid gpu("GPU-0");
  const auto known = ledger->entries().at(gpu).at(0);
  ASSERT_EQ(known.limit, mebibytes(4096));
  claims_error = Error(Code::kUnavailable, "this agent serves no claims");
  refresh();
  EXPECT_EQ(ledger->entries().at(gpu).at(0), known);
  EXPECT_TRUE(rounds.back()) << "no other container waits for it";
  add_claim_pod("b", "claim-b", 2048);
  refresh();
  EXPECT_EQ(ledger->entries().at(gpu).at(1).limit, Bytes{});
  claims_error.reset();
  loop.advance(kLedgerPollInterval / 2);
  EXPECT_EQ(ledger->entries().at(gpu).at(0).limit, mebibytes(4096));
  EXPECT_EQ(ledger->entries().at(gpu).at(1).limit, mebibytes(2048)) << "asked again without a call";
}

TEST_F(ClaimLedgerTest, PodsOfOneClaimHaveItsShareInCommon) {
  add_claim_pod("a", "claim-a", 4096);
  add_claim_pod("b", "claim-a", 4096);
  refresh();
  const auto& entries = ledger->entries().at(DeviceUuid("GPU-0"));
  ASSERT_EQ(entries.size(), 2u);
  for (const auto& entry : entries) EXPECT_EQ(entry.caps.size(), 1u) << entry.pod.name;
}

TEST_F(ClaimLedgerTest, AClaimNeedsAListOfItsOwn) {
  add_claim_pod("a", "claim-a", 1000);
  refresh();
  EXPECT_EQ(ledger->find_limits("uid-a", "main").state, ContainerLimits::State::kUnknown);
  refresh();
  EXPECT_EQ(ledger->find_limits("uid-a", "main").state, ContainerLimits::State::kKnown);
}

}  // namespace
}  // namespace gpulet::agent

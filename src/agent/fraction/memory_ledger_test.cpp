#include "agent/fraction/memory_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/fraction/test_memory_ledger.h"

namespace gpulet::agent {
namespace {

using testing::HasSubstr;
using State = ContainerLimits::State;

TEST_F(MemoryLedgerTest, FindsTheLimitsOfAContainer) {
  add_pod("a", "1000", {"GPU-0::0", "GPU-0::3"});
  add_pod("plain", "", {"GPU-0::1"});
  add_pod("mig", "1000", {"GPU-1::0"});
  EXPECT_EQ(ledger->find_limits("uid-a", "main").state, State::kUnknown);
  refresh();
  const auto found = ledger->find_limits("uid-a", "main");
  EXPECT_EQ(found.state, State::kKnown);
  EXPECT_FALSE(found.is_init);
  EXPECT_EQ(found.compute_thousandths, 0u);
  ASSERT_EQ(found.held.size(), 1u);
  EXPECT_EQ(found.held.begin()->second, (std::vector{DeviceId("GPU-0::0"), DeviceId("GPU-0::3")}));
  EXPECT_EQ(found.pod, (PodRef{"default", "a", "uid-a"}));
  EXPECT_EQ(found.limits, (std::map<DeviceUuid, Bytes>{{DeviceUuid("GPU-0"), mebibytes(2000)}}));
  EXPECT_EQ(ledger->find_limits("uid-a", "other").state, State::kUnknown);
  EXPECT_EQ(ledger->find_limits("uid-b", "main").state, State::kUnknown);
  for (const char* uid : {"uid-plain", "uid-mig"}) {
    EXPECT_EQ(ledger->find_limits(uid, "main").state, State::kKnown) << uid;
    EXPECT_TRUE(ledger->find_limits(uid, "main").limits.empty()) << uid;
  }
  EXPECT_EQ(ledger->find_limits("uid-plain", "prepare").state, State::kKnown);
  EXPECT_TRUE(ledger->find_limits("uid-plain", "prepare").is_init);
}

TEST_F(MemoryLedgerTest, KnowsTheRequestedCompute) {
  add_pod("a", "", {"GPU-0::2"});
  for (auto& container : reader.pods["default/a"].containers)
    container.limits = {{"nvidia.com/gpu", "1"}, {"nvidia.com/gpucores", "30"}};
  refresh();
  for (const char* container : {"main", "prepare"})
    EXPECT_EQ(ledger->find_limits("uid-a", container).compute_thousandths, 300u) << container;
  EXPECT_TRUE(ledger->find_limits("uid-a", "prepare").held.at(ResourceName("nvidia.com/gpu")).empty());
  EXPECT_TRUE(ledger->find_limits("uid-a", "main").limits.empty());
}

// Of all containers of the Pod that hold the GPU.
TEST_F(MemoryLedgerTest, SaysWhichGpusThePodHoldsWithoutALimit) {
  add_pod("a", "1000", {"GPU-0::0"});
  add_pod("plain", "", {"GPU-0::1"});
  refresh();
  EXPECT_TRUE(ledger->find_limits("uid-a", "main").unlimited.empty());
  holders.push_back(container_with_devices("a", {"GPU-0::2"}));
  holders.back().container = "side";
  refresh();
  EXPECT_EQ(ledger->find_limits("uid-a", "main").unlimited, (std::set<DeviceUuid>{DeviceUuid("GPU-0")}));
}

TEST_F(MemoryLedgerTest, RefusesALimitThatItDoesNotKnow) {
  add_pod("bad", "lots", {"GPU-0::0"});
  add_pod("dark", "1000", {"GPU-2::0"});
  refresh();
  EXPECT_EQ(ledger->find_limits("uid-bad", "main").state, State::kRefused);
  EXPECT_THAT(ledger->find_limits("uid-bad", "main").reason, HasSubstr("gpu-memory"));
  EXPECT_EQ(ledger->find_limits("uid-dark", "main").state, State::kRefused);
  EXPECT_THAT(ledger->find_limits("uid-dark", "main").reason, HasSubstr("GPU-2 is not known"));
  add_pod("half", "1000", {"GPU-0::1", "GPU-9::0"});
  refresh();
  EXPECT_EQ(ledger->find_limits("uid-half", "main").state, State::kRefused) << "no limit on GPU-9";
  EXPECT_THAT(ledger->find_limits("uid-half", "main").reason, HasSubstr("one of its GPUs is not known"));
}

// A Pod of the same name, with the same devices: PodResources has no UID.
TEST_F(MemoryLedgerTest, ARefreshReadsEveryPodAgain) {
  add_pod("a", "1000", {"GPU-0::0"}, "uid-old");
  refresh();
  add_pod("a", "3000", {"GPU-0::0"}, "uid-new");
  EXPECT_EQ(ledger->find_limits("uid-new", "main").state, State::kUnknown);
  rounds.clear();
  refresh();
  loop.advance(Duration::zero());
  EXPECT_EQ(rounds.size(), 1u);
  EXPECT_EQ(ledger->find_limits("uid-old", "main").state, State::kUnknown);
  EXPECT_EQ(ledger->find_limits("uid-new", "main").limits.at(DeviceUuid("GPU-0")), mebibytes(3000));
}

// Its hook finds what was read after its Allocate.
TEST_F(MemoryLedgerTest, ReadsANewPodBeforeItsContainerStarts) {
  add_pod("a", "1000", {"GPU-0::0"});
  ledger->on_allocated();
  EXPECT_EQ(ledger->find_limits("uid-a", "main").state, State::kUnknown);
  loop.advance(kLedgerAllocationDelays[0]);
  loop.run_ready();
  EXPECT_EQ(ledger->find_limits("uid-a", "main").state, State::kKnown);
}

// PodResources has no UID: the List may still show an older Pod of the same name, and other GPUs.
TEST_F(MemoryLedgerTest, AListFromBeforeAnAllocationDoesNotCount) {
  add_pod("a", "1000", {"GPU-0::0"}, "uid-old");
  refresh();
  // The kubelet has answered the new Pod's Allocate, but still lists the older Pod.
  reader.add_pod("a", {{"gpu-memory", "1000"}}, "uid-new");
  reader.pods["default/a"].containers = {{.name = "main", .limits = {{"nvidia.com/gpu", "1"}}, .id = {}}};
  shows_allocations = false;
  ledger->on_allocated();
  loop.advance(kLedgerAllocationDelays[0]);
  ledger->on_unknown_process(DeviceUuid("GPU-0"), {"uid-new", "1f"});  // reads the new Pod
  loop.run_ready();
  EXPECT_EQ(ledger->find_limits("uid-new", "main").state, State::kUnknown);
  add_pod("a", "1000", {"GPU-0::1", "GPU-0::2"}, "uid-new");
  refresh();
  EXPECT_EQ(ledger->find_limits("uid-new", "main").limits.at(DeviceUuid("GPU-0")), mebibytes(2000));
  // What was listed after its first start is so for good: a container keeps its devices.
  ledger->on_allocated();
  EXPECT_EQ(ledger->find_limits("uid-new", "main").state, State::kKnown);
  EXPECT_EQ(ledger->find_limits("uid-old", "main").state, State::kUnknown);
}

// Also where each allocation is shown, if one came after the List began.
TEST_F(MemoryLedgerTest, AnAllocationDuringAListIsNotInIt) {
  add_pod("a", "1000", {"GPU-0::0"});
  ledger->refresh_pods();
  ledger->on_allocated();
  loop.run_ready();
  EXPECT_EQ(ledger->find_limits("uid-a", "main").state, State::kUnknown);
  loop.advance(kLedgerAllocationDelays[0]);
  loop.run_ready();
  EXPECT_EQ(ledger->find_limits("uid-a", "main").state, State::kKnown);
}

// The older one has been deleted by force; its containers still run.
TEST_F(MemoryLedgerTest, TwoPodsOfOneNameAreRefusedUntilOneHasEnded) {
  add_pod("a", "1000", {"GPU-0::0"}, "uid-new");
  holders.push_back(container_with_devices("a", {"GPU-0::1"}));
  refresh();
  EXPECT_EQ(ledger->find_limits("uid-new", "main").state, State::kRefused);
  EXPECT_THAT(ledger->find_limits("uid-new", "main").reason, HasSubstr("two Pods of this name"));
  holders.pop_back();
  refresh();
  EXPECT_EQ(ledger->find_limits("uid-new", "main").limits.at(DeviceUuid("GPU-0")), mebibytes(1000));
}

// The kubelet lists the ids of a container in no order, and one of several NUMA nodes for each.
TEST_F(MemoryLedgerTest, TheOrderOfIdsSaysNothing) {
  add_pod("a", "1000", {"GPU-0::0", "GPU-0::1"});
  refresh();
  EXPECT_EQ(ledger->find_limits("uid-a", "main").limits.at(DeviceUuid("GPU-0")), mebibytes(2000));
  reader.asked.clear();
  auto& ids = holders.back().devices.begin()->second;
  std::ranges::reverse(ids);
  ids.push_back(ids.front());
  refresh();
  EXPECT_TRUE(reader.asked.empty()) << "it is the same Pod";
  const auto known = ledger->find_limits("uid-a", "main");
  EXPECT_EQ(known.limits.at(DeviceUuid("GPU-0")), mebibytes(2000));
  EXPECT_EQ(known.held.begin()->second.size(), 2u);
}

// The runtime names the Pod: nothing waits for the List to name it.
TEST_F(MemoryLedgerTest, ANamedPodIsReadBesideTheList) {
  add_pod("a", "1000", {"GPU-0::0"});
  shows_allocations = false;
  EXPECT_EQ(ledger->find_limits("uid-a", "main").state, State::kUnknown);
  reader.asked.clear();
  ledger->refresh_pods({"default", "a", "uid-a"});
  EXPECT_EQ(reader.asked, std::vector<std::string>{"default/a"}) << "before the List is answered";
  loop.run_ready();
  EXPECT_EQ(rounds.size(), 1u);
  EXPECT_EQ(reader.asked.size(), 1u);
  EXPECT_EQ(ledger->find_limits("uid-a", "main").state, State::kKnown);
  // A name that is another Pod's gives nothing: the UID counts.
  add_pod("b", "2000", {"GPU-0::1"});
  EXPECT_EQ(ledger->find_limits("uid-x", "main").state, State::kUnknown);
  ledger->refresh_pods({"default", "b", "uid-x"});
  loop.run_ready();
  loop.advance(Duration::zero());
  EXPECT_EQ(ledger->find_limits("uid-x", "main").state, State::kUnknown);
  // One that holds nothing of the node is not kept.
  reader.add_pod("c");
  ledger->refresh_pods({"default", "c", "uid-c"});
  loop.run_ready();
  EXPECT_EQ(ledger->find_limits("uid-c", "main").state, State::kUnknown);
}

// The container of a new Pod waits for one request to the API server, however many Pods there are.
TEST_F(MemoryLedgerTest, ANewPodIsReadAlone) {
  for (const char* name : {"a", "b", "c"}) add_pod(name, "1000", {"GPU-0::0"});
  refresh();
  add_pod("d", "1000", {"GPU-0::1"});
  EXPECT_EQ(ledger->find_limits("uid-d", "main").state, State::kUnknown);
  reader.asked.clear();
  refresh();
  EXPECT_EQ(reader.asked, std::vector<std::string>{"default/d"});
  EXPECT_EQ(ledger->find_limits("uid-d", "main").state, State::kKnown);
  // One that nobody knows: all are read, once.
  ledger->find_limits("uid-x", "main");
  reader.asked.clear();
  rounds.clear();
  refresh();
  loop.advance(Duration::zero());
  EXPECT_EQ(reader.asked.size(), 4u);
  EXPECT_EQ(rounds.size(), 1u);
}

// A round that was in progress may have read before the refresh was called.
TEST_F(MemoryLedgerTest, ARefreshEndsWithARoundOfItsOwn) {
  ledger->refresh_pods();
  ledger->refresh_pods();
  loop.run_ready();
  loop.advance(Duration::zero());
  loop.run_ready();
  EXPECT_EQ(rounds.size(), 1u);
  EXPECT_EQ(early_rounds, 1u);
  EXPECT_EQ(lists, 3u) << "one at the start";
}

TEST_F(MemoryLedgerTest, ReadsTheIdOfAContainerThatStarts) {
  add_pod("a", "1000", {"GPU-0::0"});
  add_pod("plain", "", {"GPU-0::1"});
  refresh();
  ledger->find_limits("uid-plain", "main");
  const auto asked = reader.asked.size();
  loop.advance(kLedgerStartDelay);
  EXPECT_EQ(reader.asked.size(), asked);
  for (const std::string id : {"1f", "2f"}) {  // it starts again
    ledger->find_limits("uid-a", "main");
    reader.pods["default/a"].containers[1].id = "containerd://" + id;
    loop.advance(kLedgerStartDelay);
    loop.run_ready();
    EXPECT_EQ(ledger->entries().at(DeviceUuid("GPU-0"))[0].container_id, id);
  }
}

// An ephemeral container is added to a Pod that runs, and no hook tells of it.
TEST_F(MemoryLedgerTest, APodWithALimitIsReadEachMinute) {
  add_pod("limited", "1000", {"GPU-0::0"});
  add_pod("plain", "", {"GPU-0::1"});
  refresh();
  const auto reads_of = [this](const std::string& name) {
    return std::ranges::count(reader.asked, "default/" + name);
  };
  const auto limited = reads_of("limited"), plain = reads_of("plain");
  ASSERT_GT(limited, 0);
  reader.pods["default/limited"].access = {
      {.name = "main",
       .ephemeral_caps = {{fraction::LimitGrade::kNone, "ephemeral container x is privileged"}}}};
  loop.advance(kLimitedPodInterval - std::chrono::seconds(1));
  EXPECT_EQ(reads_of("limited"), limited);
  loop.advance(kLedgerPollInterval + std::chrono::seconds(1));
  EXPECT_EQ(reads_of("limited"), limited + 1);
  EXPECT_EQ(ledger->entries().at(DeviceUuid("GPU-0"))[0].access.ephemeral_caps.size(), 1u);
  loop.advance(std::chrono::minutes(10));
  EXPECT_NEAR(static_cast<double>(reads_of("limited") - limited), 11, 2);
  EXPECT_EQ(reads_of("plain"), plain);
}

TEST_F(MemoryLedgerTest, ASlowReadDelaysNoOtherPod) {
  add_pod("a", "1000", {"GPU-0::0"});
  add_pod("slow", "1000", {"GPU-0::1"});
  reader.unanswered.insert("default/slow");
  refresh();
  const auto& entries = ledger->entries().at(DeviceUuid("GPU-0"));
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].limit, mebibytes(1000));
  EXPECT_EQ(entries[1].limit, Bytes{});
}

TEST_F(MemoryLedgerTest, AFailedRoundIsReportedAndRepeated) {
  add_pod("a", "1000", {"GPU-0::0"});
  reader.error = Error(Code::kUnavailable, "no API server");
  refresh();
  ASSERT_EQ(rounds.size(), 1u);
  ASSERT_FALSE(rounds[0]);
  EXPECT_THAT(rounds[0].error().full_message(), HasSubstr("cannot read Pod default/a: no API server"));
  reader.error.reset();
  loop.advance(std::chrono::seconds(1));
  loop.run_ready();
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_TRUE(rounds[1]);
  EXPECT_EQ(ledger->find_limits("uid-a", "main").state, State::kKnown);
}

}  // namespace
}  // namespace gpulet::agent

// Claims that a Pod names, when its containers start: judged as they are when they are prepared.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dra/limit_demand.h"

namespace gpulet::dra {
namespace {

const DeviceUuid kNamedGpu("GPU-0");

// The Pod team/train, whose containers main and side name the claim team/a, which has a device.
struct NamedClaim {
  NamedClaim() {
    pod.pod = {"team", "train", "uid-train"};
    for (const char* name : {"main", "side"}) {
      auto& container = pod.containers.emplace_back();
      container.name = name;
      pod.access.push_back({.name = name, .may_be_root = false});
    }
    pod.containers[0].claims = {{"a", "gpus", true}};
    RecordedDevice device{"gpus", "node-1", "gpu-0", kNamedGpu};
    records["uid-a"] = {"uid-a", "team", "a", {device}};
    node.memory_of = [](const DeviceUuid&) { return mebibytes(8192); };
  }
  ClaimRecord& record() { return records.at("uid-a"); }
  std::vector<fraction::FractionRequest> requests() const {
    return fraction::parse_fraction_requests(k8s::fraction_fields(pod)).value();
  }
  // Empty: it starts.
  std::string start(const std::string& container = "main") const {
    const auto checked = check_named_claims(records, pod, container, requests(), node);
    return checked ? "" : checked.error().full_message();
  }
  std::string prepare() const {
    const auto checked = check_limit_demands(ResourceClaim(), records.at("uid-a"), std::vector{pod}, node);
    return checked ? "" : checked.error().full_message();
  }

  k8s::PodMetadata pod;
  std::map<std::string, ClaimRecord> records;
  DemandNode node;
};

std::vector<std::pair<std::string, NamedClaim>> named_devices(const NamedClaim& base) {
  auto share = base, mps = base, admin = base, cut = base;
  share.record().devices[0].share_id = "s-1";
  share.record().devices[0].consumed["memory"] = mebibytes(4096).value;
  mps.record().daemons = {{.devices = {kNamedGpu}, .limits_mib = {{kNamedGpu, 2048}}}};
  admin.record().devices[0].admin_access = true;
  cut.record().devices[0].uuid = DeviceUuid("MIG-0");
  return {{"whole", base}, {"share", share}, {"mps", mps}, {"admin", admin}, {"MIG", cut}};
}

std::vector<std::pair<std::string, NamedClaim>> demanding_claims() {
  std::vector<std::pair<std::string, NamedClaim>> all;
  for (const char* grade : {"", "audited", "mps", "kernel", "hard"}) {
    for (const bool has_driver : {false, true}) {
      for (const bool requests : {false, true}) {
        for (const bool is_privileged : {false, true}) {
          NamedClaim base;
          if (*grade != '\0') base.pod.annotations["gpulet.io/min-limit-grade"] = grade;
          base.node.means[kNamedGpu] = {.has_driver_limit = has_driver, .ends_excess = true};
          if (requests)
            base.pod.containers[0].limits = {{"nvidia.com/gpu", "1"}, {"nvidia.com/gpumem", "4000"}};
          base.pod.access[1].is_privileged = is_privileged;
          for (auto& [device, one] : named_devices(base))
            all.emplace_back(std::string(grade) + (has_driver ? " driver" : "") +
                                 (requests ? " request" : "") + (is_privileged ? " privileged " : " ") +
                                 device,
                             std::move(one));
        }
      }
    }
  }
  return all;
}

TEST(NamedClaims, AreJudgedAsWhenTheyArePrepared) {
  std::map<bool, unsigned> refused;
  for (auto [name, claim] : demanding_claims()) {
    EXPECT_EQ(claim.start(), claim.prepare()) << name;
    EXPECT_EQ(claim.start("side"), "") << name << ": it does not use the claim";
    ++refused[!claim.start().empty()];
    claim.pod.containers[0].claims[0].is_named = false;
    EXPECT_EQ(claim.start(), "") << name << ": it was judged when it was prepared";
  }
  EXPECT_GT(refused[false], 40u);
  EXPECT_GT(refused[true], 40u);
}

TEST(NamedClaims, OthersHaveNoWordInIt) {
  NamedClaim claim;
  claim.pod.annotations["gpulet.io/min-limit-grade"] = "kernel";
  EXPECT_THAT(claim.start(), testing::HasSubstr("claim team/a: Pod team/train demands"));
  EXPECT_THAT(claim.start(), testing::HasSubstr("its Pod requests no memory of the GPU"));
  const auto with = [&](auto change) {
    auto other = claim;
    change(other);
    return other.start();
  };
  EXPECT_EQ(with([](NamedClaim& one) { one.records.clear(); }), "") << "another driver's claim";
  EXPECT_EQ(with([](NamedClaim& one) { one.record().name = one.record().name_space = ""; }), "");
  EXPECT_EQ(with([](NamedClaim& one) { one.record().name_space = "other"; }), "");
  EXPECT_EQ(with([](NamedClaim& one) { one.record().ending = true; }), "");
  EXPECT_EQ(with([](NamedClaim& one) { one.pod.containers[0].claims[0].request = "other"; }), "");
  EXPECT_EQ(with([](NamedClaim& one) { one.pod.containers[0].claims = {{"b", ""}}; }), "");
  // One of several: its own, which is shared, and this one.
  EXPECT_NE(with([](NamedClaim& one) {
              one.records["uid-b"] = {"uid-b", "team", "b", {}};
              one.pod.containers[0].claims.push_back({"b", ""});
            }),
            "");
}

TEST(NamedClaims, AnEphemeralContainerKeepsNoOtherFromItsRestart) {
  NamedClaim claim;
  claim.pod.annotations["gpulet.io/min-limit-grade"] = "kernel";
  claim.pod.containers[0].limits = {{"nvidia.com/gpu", "1"}, {"nvidia.com/gpumem", "4000"}};
  claim.node.means[kNamedGpu].has_driver_limit = true;
  ASSERT_EQ(claim.start(), "");
  claim.pod.access[0].ephemeral_caps = {
      {fraction::LimitGrade::kNone, "ephemeral container debug is privileged"}};
  EXPECT_NE(claim.prepare(), "");
  EXPECT_EQ(claim.start(), "");
}

}  // namespace
}  // namespace gpulet::dra

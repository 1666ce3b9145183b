// The MIG devices that are made for claims: as devices and counters of a pool, against simulated GPUs.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "dra/claim_preparation.h"
#include "dra/device_health.h"
#include "dra/device_pool.h"
#include "dra/resource_slice.h"
#include "dra/test_claims.h"
#include "dra/test_machines.h"
#include "mig/test_states.h"

namespace gpulet::dra {
namespace {

using namespace test;
namespace states = mig::states;

// Its GPU 0 has MIG on and is empty.
std::unique_ptr<sim::Machine>& machine_named(const std::string& name) {
  static std::map<std::string, std::unique_ptr<sim::Machine>> machines;
  auto& machine = machines[name];
  if (!machine) machine = states::test_machine(name);
  states::set_mig_mode(machine->gpus[0]);
  for (auto& instance : machine->gpus[0].mig.instances) instance = {};
  return machine;
}

DynamicGpu dynamic_gpu(const std::string& machine, std::vector<std::string> allowed = {}) {
  DynamicGpu dynamic{.allowed = std::move(allowed),
                     .profiles = states::state_of(machine_named(machine)->gpus[0]).profiles};
  if (dynamic.allowed.empty()) {
    for (const auto& profile : dynamic.profiles) dynamic.allowed.push_back(profile.name);
  }
  return dynamic;
}

inventory::Gpu make_mig_gpu(unsigned index, std::vector<inventory::MigDevice> devices = {}) {
  auto gpu = make_gpu(index);
  gpu.mig_enabled = gpu.mig_capable = true;
  gpu.mig_devices = std::move(devices);
  return gpu;
}

DevicePool pool_of(const inventory::Gpu& gpu, const DynamicGpu& dynamic) {
  PoolInput input{.snapshot = make_snapshot({gpu})};
  input.dynamic.emplace(gpu.uuid, dynamic);
  return make_device_pool(input);
}

TEST(Partitions, EveryAllowedPlacementIsADeviceUnderNvidiasName) {
  const auto pool = pool_of(make_mig_gpu(2), dynamic_gpu("hgx-h100", {"3g.40gb", "1g.10gb"}));
  EXPECT_EQ(names(pool),
            "gpu-2-mig-1g10gb-19-0 gpu-2-mig-1g10gb-19-1 gpu-2-mig-1g10gb-19-2 gpu-2-mig-1g10gb-19-3 "
            "gpu-2-mig-1g10gb-19-4 gpu-2-mig-1g10gb-19-5 gpu-2-mig-1g10gb-19-6 gpu-2-mig-3g40gb-9-4 "
            "gpu-2-mig-3g40gb-9-0");
  const auto& device = pool.find("gpu-2-mig-3g40gb-9-4")->device;
  EXPECT_FALSE(device.attributes.contains("uuid"));
  EXPECT_EQ(device.attributes.at("parentUUID"), Attribute("GPU-2"));
  EXPECT_EQ(device.attributes.at("profile"), Attribute("3g.40gb"));
  ASSERT_EQ(device.consumes.size(), 1u);
  EXPECT_EQ(device.consumes[0].set, "gpu-2-counter-set");
  const auto& counters = device.consumes[0].counters;
  EXPECT_EQ(counters.at("multiprocessors"), device.capacity.at("multiprocessors"));
  EXPECT_EQ(counters.at("memory"), device.capacity.at("memory"));
  EXPECT_TRUE(counters.contains("memory-slice-7"));
  EXPECT_FALSE(counters.contains("memory-slice-3"));
  ASSERT_EQ(pool.counter_sets.size(), 1u);
  EXPECT_EQ(pool.counter_sets[0].name, "gpu-2-counter-set");
  EXPECT_EQ(pool.counter_sets[0].counters.size(), 15u);
  EXPECT_EQ(pool.counter_sets[0].counters.at("multiprocessors"), 132u);
  EXPECT_TRUE(pool.notes.empty());
}

TEST(Partitions, PlacementsThatLeaveTheMostComeFirst) {
  const auto pool = pool_of(make_mig_gpu(0), dynamic_gpu("hgx-h100"));
  std::vector<std::string> order;
  for (const auto& offered : pool.devices) {
    if (offered.partition->profile == "1g.10gb") order.push_back(partition_text(*offered.partition));
  }
  ASSERT_EQ(order.size(), 7u);
  EXPECT_EQ(order[0], "1g.10gb at 6");
}

TEST(Partitions, AGpuOutsideMigModeIsWhole) {
  auto gpu = make_mig_gpu(0);
  gpu.mig_enabled = false;
  const auto pool = pool_of(gpu, dynamic_gpu("hgx-h100"));
  EXPECT_EQ(names(pool), "gpu-0");
  EXPECT_TRUE(pool.counter_sets.empty());
}

TEST(Partitions, NotesSayWhatIsNotOffered) {
  auto dynamic = dynamic_gpu("hgx-h100", {"1g.5gb", "7g.80gb"});
  auto pool = pool_of(make_mig_gpu(0), dynamic);
  EXPECT_EQ(names(pool), "gpu-0-mig-7g80gb-0-0");
  EXPECT_EQ(
      pool.notes,
      (std::vector<std::string>{"GPU-0 as 1g.5gb is not offered by claims: it has no such MIG profile"}));
  dynamic.profiles.clear();
  pool = pool_of(make_mig_gpu(0), dynamic);
  EXPECT_TRUE(pool.devices.empty());
  EXPECT_EQ(pool.notes,
            (std::vector<std::string>{
                "GPU-0 is not offered by claims: it has MIG on, and its profiles are not known yet"}));
  auto odd = make_mig(make_gpu(0), 0, "1g.10gb", 19, 0, 1);
  odd.gpu_instance_profile.reset();
  pool = pool_of(make_mig_gpu(0, {odd}), dynamic_gpu("hgx-h100"));
  EXPECT_TRUE(pool.devices.empty() && pool.counter_sets.empty());
  EXPECT_EQ(pool.notes, (std::vector<std::string>{
                            "GPU-0 is not offered by claims: it has the MIG device MIG-GPU-0-0, whose "
                            "placement is unknown"}));
}

TEST(Partitions, WhatOthersHaveIsNotOffered) {
  const auto gpu = make_gpu(0);
  auto dynamic = dynamic_gpu("hgx-h100", {"1g.10gb", "3g.40gb"});
  const auto of_others = make_mig(gpu, 0, "2g.20gb", 14, 0, 2), same = make_mig(gpu, 1, "1g.10gb", 19, 3, 1);
  auto pool = pool_of(make_mig_gpu(0, {of_others, same}), dynamic);
  EXPECT_EQ(names(pool),
            "gpu-0-mig-1g10gb-19-2 gpu-0-mig-1g10gb-19-3 gpu-0-mig-1g10gb-19-4 gpu-0-mig-1g10gb-19-5 "
            "gpu-0-mig-1g10gb-19-6 gpu-0-mig-3g40gb-9-4");
  EXPECT_EQ(pool.taken.at("gpu-0-mig-3g40gb-9-0"),
            "the MIG device 2g.20gb at 0-1 of another program is in its place");
  EXPECT_EQ(pool.taken.size(), 3u);
  // Exactly there: without counters, which are less by both.
  const auto* there = pool.find("gpu-0-mig-1g10gb-19-3");
  EXPECT_EQ(there->uuid, same.uuid);
  EXPECT_TRUE(there->device.consumes.empty());
  EXPECT_EQ(pool.counter_sets[0].counters.at("memory-slice-3"), 0u);
  EXPECT_EQ(pool.counter_sets[0].counters.at("memory-slice-2"), 1u);
  EXPECT_EQ(pool.counter_sets[0].counters.at("multiprocessors"), 132u - 32 - 16);

  // The same two, made for claims: nothing differs from the empty GPU but the UUID.
  const auto empty = pool_of(make_mig_gpu(0), dynamic);
  dynamic.made = {{"2g.20gb", 14, {0, 2}}, {"1g.10gb", 19, {3, 1}}};
  pool = pool_of(make_mig_gpu(0, {of_others, same}), dynamic);
  EXPECT_EQ(pool.counter_sets, empty.counter_sets);
  ASSERT_EQ(pool.devices.size(), empty.devices.size());
  for (std::size_t i = 0; i < pool.devices.size(); ++i) {
    EXPECT_EQ(pool.devices[i].device, empty.devices[i].device);
  }
  EXPECT_EQ(pool.find("gpu-0-mig-1g10gb-19-3")->uuid, same.uuid);
  // And removed, before the snapshot shows it.
  dynamic.made.clear();
  dynamic.removed = {of_others.uuid, same.uuid};
  EXPECT_EQ(pool_of(make_mig_gpu(0, {of_others, same}), dynamic).devices, empty.devices);
}

TEST(Partitions, WhatAnEndedClaimStillHasTaintsWhatItKeepsOff) {
  const Partition small{"1g.10gb", 19, {0, 1}}, upper{"3g.40gb", 9, {4, 4}}, lower{"4g.40gb", 5, {0, 4}},
      media{"1g.10gb+me", 20, {6, 1}};
  const struct {
    const char* what;
    std::set<Partition> held;
    std::string tainted;
  } cases[] = {
      {"nothing", {}, ""},
      {"a small one", {small}, "1g.10gb at 0, 1g.10gb+me at 0, 3g.40gb at 0-3, 4g.40gb at 0-3"},
      {"the upper half",
       {upper},
       "1g.10gb at 4, 1g.10gb at 5, 1g.10gb at 6, 1g.10gb+me at 4, "
       "1g.10gb+me at 5, 1g.10gb+me at 6, 3g.40gb at 4-7"},
      {"the engines that only one can have",
       {media},
       "1g.10gb at 6, 1g.10gb+me at 0, 1g.10gb+me at 1, 1g.10gb+me at 2, 1g.10gb+me at 3, 1g.10gb+me at 4, "
       "1g.10gb+me at 5, 1g.10gb+me at 6, 3g.40gb at 4-7"},
      {"two that leave one slice",
       {upper, {"2g.20gb", 14, {0, 2}}, {"1g.10gb", 19, {2, 1}}},
       "1g.10gb at 0, 1g.10gb at 1, 1g.10gb at 2, 1g.10gb at 4, 1g.10gb at 5, 1g.10gb at 6, 1g.10gb+me at 0, "
       "1g.10gb+me at 1, 1g.10gb+me at 2, 1g.10gb+me at 4, 1g.10gb+me at 5, 1g.10gb+me at 6, 3g.40gb at 0-3, "
       "3g.40gb at 4-7, 4g.40gb at 0-3"},
  };
  for (const auto& one : cases) {
    auto dynamic = dynamic_gpu("hgx-h100", {"1g.10gb", "1g.10gb+me", "3g.40gb", "4g.40gb"});
    dynamic.held = dynamic.made = one.held;
    std::set<std::string> tainted;
    for (const auto& offered : pool_of(make_mig_gpu(0), dynamic).devices) {
      if (offered.device.taints.empty()) continue;
      EXPECT_EQ(offered.device.taints,
                (std::vector<DeviceTaint>{{"gpulet.io/instance-held", "true", TaintEffect::kNoSchedule}}));
      tainted.insert(partition_text(*offered.partition));
    }
    EXPECT_EQ(text::join(std::vector<std::string>(tainted.begin(), tainted.end()), ", "), one.tainted)
        << one.what;
  }
}

constexpr const char* kPlannedUid = "uid-1";

// A claim's plan for a device of the pool.
std::string planned(const DevicePool& pool, nlohmann::json result,
                    const std::map<std::string, ClaimRecord>& records = {},
                    const std::vector<nlohmann::json>& configs = {}) {
  const auto record =
      plan_preparation(parsed(claim_json({std::move(result)}, configs, kPlannedUid)), kPlannedUid,
                       {.pool_name = "node-1",
                        .pool = &pool,
                        .records = &records,
                        .shown_uuids = {{"gpu-0-mig-1g10gb-19-3", "GPU-0"}},
                        .gates = {.time_slicing_settings = true, .mps_support = true}});
  if (!record) return record.error().message();
  const auto& device = record->devices.at(0);
  return (device.uuid.empty() ? "no UUID" : device.uuid.str()) +
         (device.partition ? ", " + partition_text(device.partition->partition) : "");
}

TEST(Partitions, AClaimOfOneIsPlanned) {
  const auto gpu = make_gpu(0);
  const auto dynamic = dynamic_gpu("hgx-h100", {"1g.10gb"});
  const std::string name = "gpu-0-mig-1g10gb-19-3";
  auto pool = pool_of(make_mig_gpu(0), dynamic);
  EXPECT_EQ(planned(pool, result_json(name)), "no UUID, 1g.10gb at 3");
  auto admin = result_json(name);
  admin["adminAccess"] = true;
  EXPECT_EQ(planned(pool, admin),
            "device \"" + name + "\": there is no such MIG device, and an admin's access makes none");
  const auto mps = gpu_config({{"strategy", "MPS"}}, "MigDeviceConfig");
  EXPECT_EQ(planned(pool, result_json(name), {}, {config_json(mps)}),
            "device \"" + name + "\": MPS on a MIG device that is made for a claim");
  // As far as it has come.
  std::map<std::string, ClaimRecord> records;
  records[kPlannedUid] = {kPlannedUid, "team", "claim-1", {}};
  records[kPlannedUid].devices.push_back({"gpus", "node-1", name, DeviceUuid("MIG-1")});
  records[kPlannedUid].devices[0].partition = {gpu.uuid, {"1g.10gb", 19, {3, 1}}, true};
  EXPECT_EQ(planned(pool, result_json(name), records), "MIG-1, 1g.10gb at 3");
  records["uid-2"] = records[kPlannedUid];
  records["uid-2"].uid = "uid-2";
  EXPECT_EQ(planned(pool, result_json("gpu-0-mig-1g10gb-19-4")), "no UUID, 1g.10gb at 4");
  EXPECT_EQ(planned(pool, result_json(name), records),
            "device \"" + name + "\" is still held by the claim team/claim-1 (uid uid-2)");
  // An admin's access to one that is there.
  pool = pool_of(make_mig_gpu(0, {make_mig(gpu, 0, "1g.10gb", 19, 3, 1)}), dynamic);
  EXPECT_EQ(planned(pool, admin), "MIG-GPU-0-0");
}

TEST(Partitions, HealthIsThatOfTheGpu) {
  health::HealthView view;
  view.devices.resize(1);
  view.devices[0].uuid = view.devices[0].scope.gpu = DeviceUuid("GPU-0");
  view.devices[0].status.state = health::DeviceState::kHealthy;
  const auto pool = pool_of(make_mig_gpu(0), dynamic_gpu("hgx-h100", {"3g.40gb"}));
  const auto report = make_health_report(pool, {}, view);
  ASSERT_EQ(report.size(), 2u);
  for (const auto& device : report) EXPECT_EQ(device.condition, DeviceCondition::kHealthy) << device.device;
}

using CounterValues = std::map<std::string, std::uint64_t>;

// As the scheduler does.
bool take_counters(CounterValues& left, const Device& device) {
  for (const auto& use : device.consumes) {
    for (const auto& [name, value] : use.counters) {
      if (left.at(name) < value) return false;
    }
  }
  for (const auto& use : device.consumes) {
    for (const auto& [name, value] : use.counters) left.at(name) -= value;
  }
  return true;
}

// Whatever the counters allow together can be made, in any order; also beside a device of another program.
RC_GTEST_PROP(Partitions, WhatTheCountersAllowFits, ()) {
  const auto name = *rc::gen::elementOf(states::machines_with_mig());
  auto& gpu = machine_named(name)->gpus[0];
  const auto dynamic = dynamic_gpu(name);
  std::vector<inventory::MigDevice> others;
  if (*rc::gen::arbitrary<bool>()) {
    const auto& profile = *rc::gen::elementOf(dynamic.profiles);
    const auto place = *rc::gen::elementOf(profile.placements);
    others = {make_mig(make_gpu(0), 0, profile.name, profile.id, place.start, place.size)};
    RC_ASSERT(states::add_instance(gpu, profile.name, place.start) != nullptr);
  }
  const auto pool = pool_of(make_mig_gpu(0, others), dynamic);
  RC_ASSERT(pool.devices.size() + pool.taken.size() <= 64u);
  RC_ASSERT(pool.counter_sets[0].counters.size() <= kMaxCounters);
  auto left = pool.counter_sets[0].counters;
  auto candidates = pool.devices;
  while (!candidates.empty()) {
    const auto at = *rc::gen::inRange<std::size_t>(0, candidates.size());
    const auto candidate = candidates[at];
    candidates.erase(candidates.begin() + static_cast<std::ptrdiff_t>(at));
    if (candidate.device.consumes.empty()) continue;  // there already
    if (!take_counters(left, candidate.device)) continue;
    const auto& partition = *candidate.partition;
    RC_LOG() << name << ": " << partition_text(partition) << "\n";
    RC_ASSERT(states::add_instance(gpu, partition.profile, partition.placement.start) != nullptr);
  }
}

// And nothing that fits alone is refused: as many of each profile as the driver says.
TEST(Partitions, CountersAllowTheMostOfEachProfile) {
  for (const auto& name : states::machines_with_mig()) {
    const auto dynamic = dynamic_gpu(name);
    for (const auto& profile : dynamic.profiles) {
      const auto pool = pool_of(make_mig_gpu(0), dynamic);
      auto left = pool.counter_sets[0].counters;
      unsigned fits = 0;
      for (const auto& offered : pool.devices) {
        if (offered.partition->profile == profile.name && take_counters(left, offered.device)) ++fits;
      }
      EXPECT_EQ(fits, profile.max_instances) << name << " " << profile.name;
    }
  }
}

TEST(Partitions, SixteenGpusAreWithinTheLimits) {
  PoolInput input;
  std::vector<inventory::Gpu> gpus;
  for (unsigned i = 0; i < 16; ++i) {
    gpus.push_back(make_mig_gpu(i));
    input.dynamic.emplace(gpus.back().uuid, dynamic_gpu("hgx-h100"));
  }
  input.snapshot = make_snapshot(gpus);
  const auto pool = make_device_pool(input);
  std::vector<Device> devices;
  for (const auto& offered : pool.devices) {
    EXPECT_LE(offered.device.attributes.size() + offered.device.capacity.size(), 32u);
    devices.push_back(offered.device);
  }
  const auto plan = plan_slices({"gpu.nvidia.com", "n", "n"}, devices, {}, pool.counter_sets);
  std::set<std::string> sets;
  std::size_t with_counters = 0;
  for (const auto& slice : plan.creates) {
    EXPECT_TRUE(slice.devices.empty() || slice.counter_sets.empty());
    EXPECT_LE(slice.devices.size(), kSliceDevices);
    EXPECT_LE(slice.counter_sets.size(), kMaxCounterSets);
    with_counters += slice.counter_sets.empty() ? 0 : 1;
    for (const auto& set : slice.counter_sets) EXPECT_TRUE(sets.insert(set.name).second);
  }
  EXPECT_EQ(with_counters, 2u);
  EXPECT_EQ(plan.creates.size(), 2 + (devices.size() + 63) / 64);
  for (const auto& device : devices) EXPECT_TRUE(sets.contains(device.consumes.at(0).set));
}

}  // namespace
}  // namespace gpulet::dra

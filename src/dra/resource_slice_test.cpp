#include "dra/resource_slice.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/dns_name.h"
#include "dra/test_machines.h"

namespace gpulet::dra {
namespace {

using nlohmann::json;

const PoolName kPool{"gpu.nvidia.com", "node-1", "node-1"};
const SliceOwner kOwner{"node-1", "uid-1"};

std::vector<Device> devices(std::size_t count) {
  std::vector<Device> all;
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back({.name = "gpu-" + std::to_string(i), .capacity = {{"memory", std::uint64_t{80} << 30}}});
  }
  return all;
}

// The API server, as far as slices need it.
class Server {
 public:
  bool drops_taints = false;

  // Returns the writes. Every slice is encoded and read as by the API.
  std::size_t apply(const SlicePlan& plan) {
    for (const auto& slice : plan.deletes) slices_.erase(slice.name);
    for (const auto& slice : plan.updates) {
      EXPECT_EQ(slices_.at(slice.name).resource_version, slice.resource_version);
      store(slice);
    }
    for (const auto& slice : plan.creates) {
      EXPECT_FALSE(slices_.contains(slice.name));
      EXPECT_TRUE(slice.resource_version.empty());
      store(slice);
    }
    return plan.deletes.size() + plan.updates.size() + plan.creates.size();
  }

  std::vector<ResourceSlice> shown() const {
    std::vector<ResourceSlice> all;
    for (const auto& [name, slice] : slices_) all.push_back(slice);
    return all;
  }
  void remove(const std::string& name) { slices_.erase(name); }
  void put(const ResourceSlice& slice) { slices_[slice.name] = slice; }

  // What the scheduler takes: the newest generation, if it is complete.
  std::vector<Device> allocatable() const {
    std::int64_t newest = 0;
    for (const auto& [name, slice] : slices_) newest = std::max(newest, slice.generation);
    std::vector<Device> all;
    std::int64_t found = 0, expected = 0;
    for (const auto& [name, slice] : slices_) {
      if (slice.generation != newest) continue;
      ++found;
      expected = slice.slice_count;
      all.insert(all.end(), slice.devices.begin(), slice.devices.end());
    }
    if (found != expected) return {};
    return all;
  }

 private:
  void store(const ResourceSlice& slice) {
    auto text = json::parse(slice_json(slice, kOwner));
    text["metadata"]["resourceVersion"] = std::to_string(++version_);
    for (auto& device : text["spec"]["devices"]) {
      if (drops_taints) device.erase("taints");
      for (auto& taint : device["taints"]) {
        if (!taint.contains("timeAdded")) taint["timeAdded"] = "t" + std::to_string(version_);
      }
    }
    const auto read = parse_slice(text.dump());
    ASSERT_TRUE(read) << read.error().full_message();
    slices_[slice.name] = *read;
  }

  std::map<std::string, ResourceSlice> slices_;
  int version_ = 0;
};

TEST(SliceJson, IsTheApisForm) {
  ResourceSlice slice{.name = "00000-gpu.nvidia.com-node-1",
                      .resource_version = "7",
                      .driver = "gpu.nvidia.com",
                      .node = "node-1",
                      .pool = "node-1",
                      .generation = 3,
                      .slice_count = 1};
  slice.devices = {{.name = "gpu-0",
                    .attributes = {{"type", std::string("gpu")},
                                   {"driverVersion", Version{"570.124.6"}},
                                   {"resource.kubernetes.io/numaNode", std::int64_t{1}},
                                   {"flag", true}},
                    .capacity = {{"memory", std::uint64_t{80} << 30}},
                    .taints = {{"gpu.nvidia.com/xid", "79", TaintEffect::kNoSchedule, "2026-01-01T00:00:00Z"},
                               {"gpulet.io/fault", "thermal", TaintEffect::kNone}}}};
  const json expected = json::parse(R"({
    "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
    "metadata": {"name": "00000-gpu.nvidia.com-node-1", "resourceVersion": "7", "ownerReferences": [
      {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "uid-1", "controller": true}]},
    "spec": {"driver": "gpu.nvidia.com", "nodeName": "node-1",
      "pool": {"name": "node-1", "generation": 3, "resourceSliceCount": 1},
      "devices": [{"name": "gpu-0",
        "attributes": {"type": {"string": "gpu"}, "driverVersion": {"version": "570.124.6"},
          "resource.kubernetes.io/numaNode": {"int": 1}, "flag": {"bool": true}},
        "capacity": {"memory": {"value": "80Gi"}},
        "taints": [
          {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule",
           "timeAdded": "2026-01-01T00:00:00Z"},
          {"key": "gpulet.io/fault", "value": "thermal", "effect": "None"}]}]}})");
  EXPECT_EQ(json::parse(slice_json(slice, kOwner)), expected);
  const auto read = parse_slice(expected.dump());
  ASSERT_TRUE(read) << read.error().full_message();
  EXPECT_FALSE(read->has_other_content);
  EXPECT_EQ(read->devices, slice.devices);
  EXPECT_EQ(slice_json(*read, kOwner), slice_json(slice, kOwner));
}

TEST(SliceJson, RemembersWhatItDoesNotRead) {
  const json plain = json::parse(
      R"({"metadata": {"name": "a"}, "spec": {"driver": "d", "nodeName": "n", "pool": {"name": "n"},
          "devices": [{"name": "gpu-0"}]}})");
  ASSERT_TRUE(parse_slice(plain.dump()));
  EXPECT_FALSE(parse_slice(plain.dump())->has_other_content);
  for (const auto& [pointer, value] : std::vector<std::pair<const char*, json>>{
           {"/spec/devices/0/bindsToNode", true},
           {"/spec/allNodes", true},
           {"/spec/devices/0/attributes", {{"a", {{"strings", {"x"}}}}}},
           {"/spec/devices/0/capacity", {{"a", {{"value", "500m"}}}}},
           {"/spec/devices/0/capacity", {{"a", {{"value", "1"}, {"requestPolicy", json::object()}}}}},
           {"/spec/devices/0/taints", {{{"key", "k"}, {"effect", "Other"}}}}}) {
    auto changed = plain;
    changed[json::json_pointer(pointer)] = value;
    const auto read = parse_slice(changed.dump());
    ASSERT_TRUE(read) << pointer << read.error().full_message();
    EXPECT_TRUE(read->has_other_content) << pointer;
  }
}

TEST(SliceJson, RefusesWhatIsNoSlice) {
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"{", "the ResourceSlice is not valid JSON"},
           {"[]", "text: expected an object, found a list"},
           {"{}", "metadata: required, not set"},
           {R"({"metadata": {"name": "a"}})", "spec: required, not set"},
           {R"({"metadata": {"name": "a"}, "spec": {"driver": "d"}})", "spec.pool: required, not set"},
           {R"({"metadata": {"name": "a"}, "spec": {"driver": "d", "pool": {"name": "n"}, "devices": [{}]}})",
            "spec.devices[0].name: required, not set"}}) {
    const auto read = parse_slice(text);
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().message(), message);
  }
  json many = {{"metadata", {{"name", "a"}}}, {"spec", {{"driver", "d"}, {"pool", {{"name", "n"}}}}}};
  many["spec"]["devices"] = json(kMaxSliceDevices + 1, {{"name", "x"}});
  EXPECT_FALSE(parse_slice(many.dump()));
}

TEST(PlanSlices, ANodeWithoutDevicesHasOneEmptySlice) {
  Server server;
  EXPECT_EQ(server.apply(plan_slices(kPool, {}, server.shown())), 1u);
  ASSERT_EQ(server.shown().size(), 1u);
  EXPECT_EQ(server.shown()[0].generation, 1);
  EXPECT_EQ(server.shown()[0].slice_count, 1);
  EXPECT_TRUE(plan_slices(kPool, {}, server.shown()).empty());
}

TEST(PlanSlices, OneChangedSliceKeepsItsGeneration) {
  Server server;
  auto wanted = devices(70);
  server.apply(plan_slices(kPool, wanted, server.shown()));
  ASSERT_EQ(server.shown().size(), 2u);
  wanted[65].taints = {{"k", "v", TaintEffect::kNoSchedule}};
  const auto plan = plan_slices(kPool, wanted, server.shown());
  EXPECT_TRUE(plan.creates.empty() && plan.deletes.empty());
  ASSERT_EQ(plan.updates.size(), 1u);
  EXPECT_EQ(plan.updates[0].generation, 1);
  server.apply(plan);
  // The server's time stays, however often the slice is written.
  const std::string added = server.allocatable()[65].taints[0].time_added;
  EXPECT_FALSE(added.empty());
  EXPECT_TRUE(plan_slices(kPool, wanted, server.shown()).empty());
  wanted[66].taints = wanted[65].taints;
  server.apply(plan_slices(kPool, wanted, server.shown()));
  EXPECT_EQ(server.allocatable()[65].taints[0].time_added, added);
  wanted[65].taints.clear();
  server.apply(plan_slices(kPool, wanted, server.shown()));
  EXPECT_TRUE(server.allocatable()[65].taints.empty());
}

TEST(PlanSlices, AnyOtherChangeIsANewGeneration) {
  Server server;
  server.apply(plan_slices(kPool, devices(70), server.shown()));
  const auto plan = plan_slices(kPool, devices(60), server.shown());
  EXPECT_EQ(plan.deletes.size(), 1u);
  ASSERT_EQ(plan.updates.size(), 1u);
  EXPECT_EQ(plan.updates[0].generation, 2);
  server.apply(plan);
  server.apply(plan_slices(kPool, devices(200), server.shown()));
  EXPECT_EQ(server.allocatable(), devices(200));
  for (const auto& slice : server.shown()) EXPECT_EQ(slice.generation, 3);
}

TEST(PlanSlices, RepairsForeignDeletions) {
  Server server;
  server.apply(plan_slices(kPool, devices(70), server.shown()));
  server.remove(slice_name(kPool, 0));
  EXPECT_TRUE(server.allocatable().empty());
  EXPECT_EQ(server.apply(plan_slices(kPool, devices(70), server.shown())), 1u);
  EXPECT_EQ(server.allocatable(), devices(70));
  server.remove(slice_name(kPool, 0));
  server.remove(slice_name(kPool, 1));
  server.apply(plan_slices(kPool, devices(70), server.shown()));
  EXPECT_EQ(server.allocatable(), devices(70));
}

TEST(PlanSlices, TakesOverFromAnotherWriter) {
  Server server;
  ResourceSlice foreign{.name = "node-1-gpu.nvidia.com-x7k2p",
                        .driver = kPool.driver,
                        .node = "node-1",
                        .pool = "node-1",
                        .generation = 9,
                        .slice_count = 1,
                        .devices = devices(3)};
  server.put(foreign);
  server.apply(plan_slices(kPool, devices(2), server.shown()));
  ASSERT_EQ(server.shown().size(), 1u);
  EXPECT_EQ(server.shown()[0].generation, 10);
  // A slice of another pool does not touch ours.
  foreign.pool = "old";
  foreign.generation = 20;
  server.put(foreign);
  const auto plan = plan_slices(kPool, devices(2), server.shown());
  EXPECT_TRUE(plan.updates.empty() && plan.creates.empty());
  EXPECT_EQ(plan.deletes.size(), 1u);
}

TEST(PlanSlices, OverwritesOtherContent) {
  Server server;
  server.apply(plan_slices(kPool, devices(2), server.shown()));
  auto changed = server.shown()[0];
  changed.has_other_content = true;
  server.put(changed);
  EXPECT_EQ(plan_slices(kPool, devices(2), server.shown()).updates.size(), 1u);
}

TEST(PlanSlices, AServerWithoutTaintsIsNoticed) {
  Server server;
  server.drops_taints = true;
  auto wanted = devices(3);
  wanted[1].taints = {{"k", "v", TaintEffect::kNoSchedule}};
  wanted[2].taints = {{"k", "v", TaintEffect::kNone}};
  const auto plan = plan_slices(kPool, wanted, server.shown());
  server.apply(plan);
  EXPECT_FALSE(kept_taints(plan.creates[0], server.shown()[0]));
  EXPECT_TRUE(kept_taints(plan.creates[0], plan.creates[0]));
  wanted = without_tainted(wanted);
  ASSERT_EQ(wanted.size(), 2u);
  EXPECT_EQ(wanted[1].name, "gpu-2");
  server.apply(plan_slices(kPool, wanted, server.shown()));
  EXPECT_TRUE(plan_slices(kPool, wanted, server.shown()).empty());
}

std::vector<CounterSet> counter_sets(std::size_t count) {
  std::vector<CounterSet> sets;
  for (std::size_t i = 0; i < count; ++i)
    sets.push_back({"gpu-" + std::to_string(i) + "-counter-set", {{"memory", std::uint64_t{80} << 30}}});
  return sets;
}

TEST(SliceJson, HasCounters) {
  ResourceSlice slice{
      .name = "a", .driver = "d", .node = "n", .pool = "n", .generation = 1, .slice_count = 2};
  slice.counter_sets = counter_sets(1);
  auto written = json::parse(slice_json(slice, kOwner))["spec"];
  EXPECT_EQ(written["sharedCounters"], json::parse(R"([{"name": "gpu-0-counter-set",
                                                       "counters": {"memory": {"value": "80Gi"}}}])"));
  EXPECT_FALSE(written.contains("devices"));
  auto read = parse_slice(slice_json(slice, kOwner));
  ASSERT_TRUE(read);
  EXPECT_FALSE(read->has_other_content);
  EXPECT_EQ(read->counter_sets, slice.counter_sets);
  slice.counter_sets.clear();
  slice.devices = {{.name = "gpu-0-mig", .consumes = {{"gpu-0-counter-set", {{"memory-slice-0", 1}}}}}};
  written = json::parse(slice_json(slice, kOwner))["spec"];
  EXPECT_EQ(written["devices"][0]["consumesCounters"],
            json::parse(
                R"([{"counterSet": "gpu-0-counter-set", "counters": {"memory-slice-0": {"value": "1"}}}])"));
  read = parse_slice(slice_json(slice, kOwner));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->devices, slice.devices);
}

TEST(PlanSlices, CountersHaveSlicesOfTheirOwn) {
  Server server;
  auto wanted = devices(70);
  for (auto& device : wanted) device.consumes = {{"gpu-0-counter-set", {{"memory", 1}}}};
  const auto sets = counter_sets(9);
  server.apply(plan_slices(kPool, wanted, server.shown(), sets));
  ASSERT_EQ(server.shown().size(), 4u);
  EXPECT_EQ(server.shown()[0].counter_sets.size(), 8u);
  EXPECT_EQ(server.shown()[1].counter_sets.size(), 1u);
  EXPECT_EQ(server.shown()[2].devices.size(), 64u);
  EXPECT_EQ(server.allocatable(), wanted);
  EXPECT_TRUE(plan_slices(kPool, wanted, server.shown(), sets).empty());
  // A total that changes is one update.
  auto less = sets;
  less[0].counters["memory"] = 1;
  const auto plan = plan_slices(kPool, wanted, server.shown(), less);
  EXPECT_EQ(plan.updates.size(), 1u);
  EXPECT_TRUE(plan.creates.empty() && plan.deletes.empty());
  server.apply(plan_slices(kPool, devices(70), server.shown()));
  EXPECT_EQ(server.allocatable(), devices(70));
  EXPECT_EQ(server.shown().size(), 2u);
}

TEST(PlanSlices, AServerWithoutCountersIsNoticed) {
  ResourceSlice sent, answered;
  sent.counter_sets = counter_sets(1);
  EXPECT_FALSE(kept_counters(sent, answered));
  EXPECT_TRUE(kept_counters(sent, sent));
  sent.counter_sets.clear();
  sent.devices = devices(2);
  answered = sent;
  EXPECT_TRUE(kept_counters(sent, answered));
  sent.devices[1].consumes = {{"gpu-0-counter-set", {{"memory", 1}}}};
  EXPECT_FALSE(kept_counters(sent, answered));
  EXPECT_EQ(without_partitions(sent.devices).size(), 1u);
}

TEST(SliceName, SortsAndFits) {
  EXPECT_EQ(slice_name(kPool, 0), "00000-gpu.nvidia.com-node-1");
  EXPECT_EQ(slice_name(kPool, 17), "00011-gpu.nvidia.com-node-1");
  const std::string first(253, 'a'), second = first.substr(1) + "b";
  const auto name = slice_name({"gpu.nvidia.com", first, first}, 1);
  EXPECT_TRUE(is_dns_subdomain(name)) << name;
  EXPECT_NE(name, slice_name({"gpu.nvidia.com", second, second}, 1));
}

// The first write of a plan, as the plan for that write alone.
SlicePlan first_write(const SlicePlan& plan) {
  SlicePlan first;
  if (!plan.deletes.empty()) {
    first.deletes = {plan.deletes[0]};
  } else if (!plan.updates.empty()) {
    first.updates = {plan.updates[0]};
  } else {
    first.creates = {plan.creates[0]};
  }
  return first;
}

// Planned again after each write, it comes to its end all the same, and consumers see the old devices, none,
// or the new ones.
RC_GTEST_PROP(PlanSlices, CanBePlannedAgainAfterEachWrite, ()) {
  Server server;
  const auto before = devices(*rc::gen::inRange<std::size_t>(1, 300));
  server.apply(plan_slices(kPool, before, server.shown()));
  auto wanted = devices(*rc::gen::inRange<std::size_t>(1, 300));
  if (*rc::gen::arbitrary<bool>()) std::reverse(wanted.begin(), wanted.end());
  for (const auto& slice : server.shown()) {
    if (*rc::gen::inRange(0, 4) == 0) server.remove(slice.name);
  }
  const auto whole = plan_slices(kPool, wanted, server.shown());
  const std::size_t writes = whole.deletes.size() + whole.updates.size() + whole.creates.size();
  for (std::size_t i = 0; i < writes; ++i) {
    const auto plan = plan_slices(kPool, wanted, server.shown());
    RC_ASSERT(!plan.empty());
    server.apply(first_write(plan));
    const auto seen = server.allocatable();
    RC_ASSERT(seen.empty() || seen == before || seen == wanted);
  }
  RC_ASSERT(server.allocatable() == wanted);
  RC_ASSERT(plan_slices(kPool, wanted, server.shown()).empty());
}

// From any state of the server, one plan leads to the devices in their order, and nothing is written after
// it.
RC_GTEST_PROP(PlanSlices, ConvergesInOneStep, ()) {
  Server server;
  const auto rounds = *rc::gen::inRange(1, 6);
  for (int round = 0; round < rounds; ++round) {
    auto wanted = devices(*rc::gen::inRange<std::size_t>(0, 200));
    for (auto& device : wanted) {
      if (*rc::gen::inRange(0, 40) == 0) device.taints = {{"k", "v", TaintEffect::kNoSchedule}};
    }
    server.apply(plan_slices(kPool, wanted, server.shown()));
    auto shown = server.allocatable();
    for (auto& device : shown) {
      for (auto& taint : device.taints) {
        RC_ASSERT(!taint.time_added.empty());
        taint.time_added.clear();
      }
    }
    RC_ASSERT(shown == wanted);
    RC_ASSERT(plan_slices(kPool, wanted, server.shown()).empty());
    RC_ASSERT(server.shown().size() == std::max<std::size_t>(1, (wanted.size() + 63) / 64));
    for (const auto& slice : server.shown()) {
      RC_ASSERT(slice.devices.size() <= kSliceDevices);
      if (*rc::gen::inRange(0, 3) == 0) server.remove(slice.name);
    }
  }
}

}  // namespace
}  // namespace gpulet::dra

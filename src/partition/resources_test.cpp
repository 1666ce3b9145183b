#include "partition/resources.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <set>

#include "partition/names.h"
#include "partition/sharing.h"

namespace gpulet::partition {
namespace {

using config::Config;
using config::MigStrategy;
using inventory::Gpu;
using inventory::MigDevice;
using inventory::Snapshot;

Gpu gpu(unsigned index, const std::string& model = "NVIDIA A100-SXM4-40GB") {
  Gpu made;
  made.index = index;
  made.uuid = DeviceUuid("GPU-" + std::to_string(index));
  made.model = model;
  made.compute_major = 8;
  made.numa_node = static_cast<int>(index % 2);
  return made;
}

MigDevice mig(unsigned gpu_index, unsigned index, const std::string& profile, unsigned compute = 1,
              unsigned slices = 1) {
  MigDevice made;
  made.index = index;
  made.uuid = DeviceUuid("MIG-" + std::to_string(gpu_index) + "-" + std::to_string(index));
  made.profile = profile;
  made.gpu_instance = index + 1;
  made.compute_instance = 0;
  made.compute_slices = compute;
  made.gpu_slices = slices;
  return made;
}

Gpu cut(unsigned index, unsigned count, const std::string& profile = "1g.5gb") {
  Gpu made = gpu(index);
  made.mig_capable = made.mig_enabled = true;
  for (unsigned i = 0; i < count; ++i) made.mig_devices.push_back(mig(index, i, profile));
  return made;
}

Snapshot node(std::vector<Gpu> gpus) {
  Snapshot snapshot;
  snapshot.gpus = std::move(gpus);
  return snapshot;
}

Config with(MigStrategy strategy) {
  Config config;
  config.flags.mig_strategy = strategy;
  config.gpu_resources = {{"*", ResourceName("nvidia.com/gpu")}};
  return config;
}

config::ReplicatedResource replicated(const std::string& name, unsigned replicas,
                                      config::DeviceSelection devices = config::AllDevices{},
                                      std::optional<std::string> rename = std::nullopt) {
  config::ReplicatedResource made;
  made.name = ResourceName("nvidia.com/" + name);
  if (rename) made.rename = ResourceName("nvidia.com/" + *rename);
  made.devices = std::move(devices);
  made.replicas = replicas;
  return made;
}

Config sharing(std::vector<config::ReplicatedResource> resources,
               config::SharingStrategy strategy = config::SharingStrategy::kTimeSlicing) {
  Config config = with(MigStrategy::kNone);
  config.sharing.strategy = strategy;
  config.sharing.resources = std::move(resources);
  return config;
}

// "nvidia.com/gpu=2 nvidia.com/mig-1g.5gb=7": names and counts.
std::string summary(const Plan& plan) {
  std::string out;
  for (const auto& resource : plan.resources) {
    out += (out.empty() ? "" : " ") + resource.name.str().substr(std::string("nvidia.com/").size()) + "=" +
           std::to_string(resource.devices.size());
  }
  return out;
}

std::string ids(const Plan& plan, const std::string& name) {
  std::string out;
  for (const auto& resource : plan.resources) {
    if (resource.name.str() != "nvidia.com/" + name) continue;
    for (const auto& device : resource.devices) out += (out.empty() ? "" : " ") + device.id.str();
  }
  return out;
}

std::vector<std::string> notes(const Plan& plan) {
  std::vector<std::string> out;
  for (const auto& note : plan.notes) out.push_back(note.message);
  return out;
}
using Notes = std::vector<std::string>;

TEST(Names, PatternsStandForTheWholeText) {
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("*A100*", "NVIDIA A100-SXM4-40GB"));
  EXPECT_TRUE(matches("NVIDIA*40GB", "NVIDIA A100-SXM4-40GB"));
  EXPECT_TRUE(matches("1g.5gb+me", "1g.5gb+me"));
  EXPECT_TRUE(matches("a*b*c", "aXbXbc"));
  EXPECT_FALSE(matches("A100", "NVIDIA A100-SXM4-40GB"));
  EXPECT_FALSE(matches("1g.5gb", "1gX5gb"));
  EXPECT_FALSE(matches("1g.5gb", "1g.5gb+me"));
  EXPECT_FALSE(matches("", "a"));
  EXPECT_FALSE(matches("a*b", "a"));
  // No blow-up: what an exponential matcher would never end.
  EXPECT_FALSE(matches("*a*a*a*a*a*a*a*a*a*a*b", std::string(5000, 'a')));
}

TEST(Names, MixedNamesAreTheProfiles) {
  const Config config = with(MigStrategy::kMixed);
  const std::pair<const char*, const char*> rows[] = {
      {"1g.5gb", "mig-1g.5gb"},           {"1g.5gb+me", "mig-1g.5gb.me"},
      {"1g.5gb-me", "mig-1g.5gb-me"},     {"1g.12gb+me.all", "mig-1g.12gb.me.all"},
      {"1g.24gb+gfx", "mig-1g.24gb.gfx"}, {"7g.80gb", "mig-7g.80gb"}};
  for (const auto& [profile, name] : rows) {
    EXPECT_EQ(mig_resource(mig(0, 0, profile), config, MigStrategy::kMixed)->str(),
              "nvidia.com/" + std::string(name));
  }
  EXPECT_FALSE(mig_resource(mig(0, 0, "1c.2g.20gb", 1, 2), config, MigStrategy::kMixed));
  EXPECT_EQ(
      mig_resource(mig(0, 0, "1c.2g.20gb", 1, 2), with(MigStrategy::kSingle), MigStrategy::kSingle)->str(),
      "nvidia.com/gpu");
}

TEST(Names, TheFirstPatternCounts) {
  Config config = with(MigStrategy::kMixed);
  config.gpu_resources.insert(config.gpu_resources.begin(), {{"*A100*", ResourceName("nvidia.com/a100")},
                                                             {"*", ResourceName("nvidia.com/other")}});
  config.mig_resources = {{"1c.*", ResourceName("nvidia.com/share")},
                          {"1g.*", ResourceName("nvidia.com/small")}};
  const auto plan_ = plan(node({gpu(0), gpu(1, "Tesla T4"), cut(2, 2)}), config);
  EXPECT_EQ(summary(plan_), "a100=1 other=1 small=2");
  EXPECT_EQ(mig_resource(mig(0, 0, "1c.2g.20gb", 1, 2), config, MigStrategy::kMixed)->str(),
            "nvidia.com/share");
}

// The table of NVIDIA's outcomes; where it exits, the rest is offered and a note says why not all.
TEST(Mig, StrategiesByNode) {
  using enum MigStrategy;
  auto two_profiles = cut(0, 2);
  two_profiles.mig_devices[1].profile = "2g.10gb";
  struct Row {
    const char* what;
    Snapshot node;
    const char *none, *single, *mixed;
    std::size_t single_notes, mixed_notes;
  };
  const Row rows[] = {
      {"all full", node({gpu(0), gpu(1)}), "gpu=2", "gpu=2", "gpu=2", 0, 0},
      {"all MIG, uniform", node({cut(0, 7), cut(1, 7)}), "gpu=2", "gpu=14", "mig-1g.5gb=14", 0, 0},
      {"one MIG, one full", node({cut(0, 7), gpu(1)}), "gpu=2", "gpu=1", "gpu=1 mig-1g.5gb=7", 1, 0},
      {"most MIG", node({cut(0, 7), gpu(1), cut(2, 7)}), "gpu=3", "gpu=14", "gpu=1 mig-1g.5gb=14", 1, 0},
      {"MIG on, no instance", node({cut(0, 0)}), "gpu=1", "", "", 1, 1},
      {"one without instance", node({cut(0, 0), gpu(1)}), "gpu=2", "gpu=1", "gpu=1", 1, 1},
      {"two profiles on one", node({two_profiles}), "gpu=1", "", "mig-1g.5gb=1 mig-2g.10gb=1", 1, 0},
      {"two profiles on two", node({cut(0, 7), cut(1, 3, "2g.10gb")}), "gpu=2", "gpu=7",
       "mig-1g.5gb=7 mig-2g.10gb=3", 1, 0},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(summary(plan(row.node, with(kNone))), row.none) << row.what;
    EXPECT_TRUE(plan(row.node, with(kNone)).notes.empty()) << row.what;
    EXPECT_EQ(summary(plan(row.node, with(kSingle))), row.single) << row.what;
    EXPECT_EQ(plan(row.node, with(kSingle)).notes.size(), row.single_notes) << row.what;
    EXPECT_EQ(summary(plan(row.node, with(kMixed))), row.mixed) << row.what;
    EXPECT_EQ(plan(row.node, with(kMixed)).notes.size(), row.mixed_notes) << row.what;
  }
}

TEST(Mig, NotesSayWhatAndWhy) {
  using enum MigStrategy;
  EXPECT_EQ(notes(plan(node({cut(3, 0)}), with(kMixed))),
            Notes{"GPU 3 (GPU-3) has MIG on and no instance: it is not offered"});
  EXPECT_EQ(notes(plan(node({cut(0, 7), gpu(1)}), with(kSingle))),
            Notes{"GPU 0 (GPU-0) has MIG profile 1g.5gb, and others on the node are whole: with MIG strategy "
                  "single it "
                  "is not offered"});
  EXPECT_EQ(notes(plan(node({cut(0, 7), cut(1, 7), gpu(2)}), with(kSingle))),
            Notes{"GPU 2 (GPU-2) is whole, and others on the node have 1g.5gb: with MIG strategy single it "
                  "is not offered"});
  auto share = cut(0, 1, "1c.2g.20gb");
  share.mig_devices[0].gpu_slices = 2;
  EXPECT_EQ(notes(plan(node({share}), with(kMixed))),
            Notes{"MIG device 0:0 (MIG-0-0): profile 1c.2g.20gb does not match any resource patterns: it is "
                  "not offered"});
}

TEST(Plan, DevicesCarryWhereTheyAre) {
  const auto made = plan(node({gpu(0), cut(1, 2)}), with(MigStrategy::kMixed));
  ASSERT_EQ(made.resources.size(), 2u);
  const auto& whole = made.resources[0].devices[0];
  EXPECT_EQ(whole.id.str(), "GPU-0");
  EXPECT_EQ(whole.gpu, 0u);
  EXPECT_FALSE(whole.mig || whole.replica || whole.shared());
  EXPECT_EQ(whole.numa_node, 0);
  const auto& part = made.resources[1].devices[1];
  EXPECT_EQ(part.id.str(), "MIG-1-1");
  EXPECT_EQ(part.gpu, 1u);
  EXPECT_EQ(part.mig, 1u);
  EXPECT_EQ(part.numa_node, 1);
  EXPECT_EQ(made.resources[0].sharing, config::SharingStrategy::kNone);
  EXPECT_EQ(made.resources[0].replicas, 1u);
}

TEST(Plan, LeavesOutWhatHasNoIdentityAndDisplayAdapters) {
  auto nameless = gpu(2);
  nameless.uuid = {};
  nameless.unreadable = Error(Code::kDeviceLost, "GPU is lost");
  auto twin = gpu(3);
  twin.uuid = DeviceUuid("GPU-0");
  const auto made =
      plan(node({gpu(0), gpu(1, "NVIDIA DGX Display"), nameless, twin}), with(MigStrategy::kNone));
  EXPECT_EQ(ids(made, "gpu"), "GPU-0");
  EXPECT_EQ(notes(made), (Notes{"GPU 1 (GPU-1) is a display adapter: it is not offered",
                                "GPU 2 does not say its UUID: GPU is lost: it is not offered",
                                "GPU 3 (GPU-0) has the UUID of another: it is not offered"}));
}

TEST(Plan, HealthComesFromTheSnapshot) {
  auto sick = gpu(1);
  sick.health = {false, "XID 79: GPU has fallen off the bus"};
  auto unreadable = gpu(2, "");
  unreadable.unreadable = Error(Code::kDeviceLost, "GPU is lost");
  auto part = cut(3, 2);
  part.mig_devices[1].health = {false, "XID 94: contained memory error"};
  const auto none = plan(node({gpu(0), sick, unreadable, part}), with(MigStrategy::kNone));
  ASSERT_EQ(summary(none), "gpu=4");
  const auto& devices = none.resources[0].devices;
  EXPECT_TRUE(devices[0].health.healthy);
  EXPECT_EQ(devices[1].health.reason, "XID 79: GPU has fallen off the bus");
  EXPECT_EQ(devices[2].health.reason, "cannot be read: GPU is lost");
  EXPECT_EQ(devices[3].health.reason,
            "XID 94: contained memory error");  // whole, but cut up: a part is the whole
  const auto mixed = plan(node({gpu(0), part}), with(MigStrategy::kMixed));
  EXPECT_TRUE(mixed.resources[1].devices[0].health.healthy);
  EXPECT_FALSE(mixed.resources[1].devices[1].health.healthy);
  // Never read, so that nobody knows whether it is cut up: it does not count as whole.
  const auto single = plan(node({cut(0, 7), unreadable}), with(MigStrategy::kSingle));
  EXPECT_EQ(summary(single), "gpu=8");
  EXPECT_TRUE(single.notes.empty());
}

TEST(Sharing, AllDevicesUnderTheSameName) {
  auto config = sharing({replicated("gpu", 2)});
  config.sharing.fail_requests_greater_than_one = true;
  const auto made = plan(node({gpu(0), gpu(1)}), config);
  EXPECT_EQ(ids(made, "gpu"), "GPU-0::0 GPU-0::1 GPU-1::0 GPU-1::1");
  const auto& resource = made.resources[0];
  EXPECT_EQ(resource.sharing, config::SharingStrategy::kTimeSlicing);
  EXPECT_EQ(resource.replicas, 2u);
  EXPECT_TRUE(resource.fail_requests_greater_than_one);
  EXPECT_EQ(resource.devices[3].replica, 1u);
  EXPECT_TRUE(resource.devices[3].shared());
}

TEST(Sharing, RenameMovesOnlyWhatIsShared) {
  auto made = plan(node({gpu(0), gpu(1), gpu(2)}),
                   sharing({replicated("gpu", 2, config::DeviceRefs{"1"}, "gpu.shared")}));
  EXPECT_EQ(ids(made, "gpu"), "GPU-0 GPU-2");
  EXPECT_EQ(ids(made, "gpu.shared"), "GPU-1::0 GPU-1::1");
  EXPECT_EQ(made.resources[0].sharing, config::SharingStrategy::kNone);
  EXPECT_EQ(made.resources[1].sharing, config::SharingStrategy::kTimeSlicing);
  // Without rename, the name stays.
  made = plan(node({gpu(0), gpu(1)}), sharing({replicated("gpu", 2, config::DeviceRefs{"1"})}));
  EXPECT_EQ(ids(made, "gpu"), "GPU-0 GPU-1::0 GPU-1::1");
}

TEST(Sharing, DevicesByCountIndexAndUuid) {
  const auto shared = [](config::DeviceSelection devices) {
    Config config = with(MigStrategy::kMixed);
    config.sharing.strategy = config::SharingStrategy::kTimeSlicing;
    config.sharing.resources = {replicated("gpu", 2, devices, "s"),
                                replicated("mig-1g.5gb", 2, devices, "m")};
    return plan(node({gpu(0), gpu(1), cut(2, 2)}), config);
  };
  EXPECT_EQ(summary(shared(config::AllDevices{})), "m=4 s=4");
  EXPECT_EQ(ids(shared(config::DeviceCount{1}), "s"), "GPU-0::0 GPU-0::1");
  EXPECT_EQ(ids(shared(config::DeviceCount{1}), "m"), "MIG-2-0::0 MIG-2-0::1");
  EXPECT_EQ(ids(shared(config::DeviceRefs{"1", "GPU-1"}), "s"), "GPU-1::0 GPU-1::1");
  EXPECT_EQ(ids(shared(config::DeviceRefs{"2:1"}), "m"), "MIG-2-1::0 MIG-2-1::1");
  EXPECT_EQ(ids(shared(config::DeviceRefs{"MIG-2-1"}), "m"), "MIG-2-1::0 MIG-2-1::1");
  EXPECT_EQ(ids(shared(config::DeviceRefs{"MIG-GPU-2/2/0"}), "m"), "MIG-2-1::0 MIG-2-1::1");
  EXPECT_EQ(ids(shared(config::DeviceRefs{"2"}), "s"), "");
  EXPECT_EQ(notes(shared(config::DeviceRefs{"7"})),
            (Notes{"sharing of nvidia.com/gpu: it has no device 7",
                   "sharing of nvidia.com/mig-1g.5gb: it has no device 7"}));
  EXPECT_EQ(notes(shared(config::DeviceCount{2})), Notes{});
  EXPECT_EQ(notes(shared(config::DeviceCount{3}))[0],
            "sharing of nvidia.com/gpu: 3 devices are to be shared, but it has 2");
}

TEST(Sharing, SeveralEntriesOfOneName) {
  const auto made =
      plan(node({gpu(0), gpu(1), gpu(2)}), sharing({replicated("gpu", 2, config::DeviceRefs{"0"}, "half"),
                                                    replicated("gpu", 3, config::DeviceCount{2}, "third")}));
  EXPECT_EQ(ids(made, "half"), "GPU-0::0 GPU-0::1");  // the first entry that selects it
  EXPECT_EQ(ids(made, "third"), "GPU-1::0 GPU-1::1 GPU-1::2");
  EXPECT_EQ(ids(made, "gpu"), "GPU-2");
}

TEST(Sharing, MpsLeavesMigDevicesAndTooManyClientsUnshared) {
  Config config = with(MigStrategy::kSingle);
  config.sharing.strategy = config::SharingStrategy::kMps;
  config.sharing.resources = {replicated("gpu", 4)};
  const auto made = plan(node({cut(0, 2)}), config);
  EXPECT_EQ(ids(made, "gpu"), "MIG-0-0 MIG-0-1");
  EXPECT_EQ(made.resources[0].sharing, config::SharingStrategy::kNone);
  EXPECT_EQ(notes(made),
            Notes{"MIG-0-0 of nvidia.com/gpu: sharing using MPS is not supported for MIG devices; it is "
                  "offered unshared"});
  auto old = gpu(0, "Tesla V100");
  old.compute_major = 7;
  EXPECT_EQ(max_mps_replicas(old), 16u);
  EXPECT_EQ(max_mps_replicas(gpu(1)), 48u);
  config.sharing.resources = {replicated("gpu", 17)};
  const auto many = plan(node({old, gpu(1)}), config);
  EXPECT_EQ(summary(many), "gpu=18");
  EXPECT_EQ(many.notes.size(), 1u);
}

Snapshot any_node(MigStrategy strategy) {
  Snapshot snapshot;
  const auto count = *rc::gen::inRange(0u, 9u);
  for (unsigned i = 0; i < count; ++i) {
    const bool is_cut =
        strategy != MigStrategy::kSingle && *rc::gen::weightedElement<bool>({{3, false}, {1, true}});
    Gpu made = is_cut ? cut(i, *rc::gen::inRange(0u, 8u),
                            *rc::gen::element<std::string>("1g.5gb", "2g.10gb", "1g.5gb+me"))
                      : gpu(i, *rc::gen::element<std::string>("NVIDIA A100", "Tesla T4", "NVIDIA H100"));
    if (*rc::gen::inRange(0, 4) == 0) made.health = {false, "broken"};
    snapshot.gpus.push_back(std::move(made));
  }
  return snapshot;
}

Config any_config(MigStrategy strategy) {
  Config config = with(strategy);
  if (*rc::gen::arbitrary<bool>())
    config.gpu_resources.insert(config.gpu_resources.begin(), {"*T4*", ResourceName("nvidia.com/t4")});
  config.sharing.strategy = *rc::gen::element(
      config::SharingStrategy::kNone, config::SharingStrategy::kTimeSlicing, config::SharingStrategy::kMps);
  const auto entries = *rc::gen::inRange(0, 4);
  for (int i = 0; i < entries; ++i) {
    config::DeviceSelection devices = config::AllDevices{};
    const auto kind = *rc::gen::inRange(0, 3);
    if (kind == 1) devices = config::DeviceCount{*rc::gen::inRange(1u, 6u)};
    if (kind == 2) devices = config::DeviceRefs{std::to_string(*rc::gen::inRange(0, 9)), "0:1"};
    std::optional<std::string> rename;
    if (*rc::gen::arbitrary<bool>()) rename = *rc::gen::element<std::string>("gpu.shared", "t4", "gpu");
    config.sharing.resources.push_back(replicated(*rc::gen::element<std::string>("gpu", "t4", "mig-1g.5gb"),
                                                  *rc::gen::inRange(2u, 6u), devices, rename));
  }
  return config;
}

TEST(Properties, NothingIsOfferedTwiceAndEveryFullGpuOnce) {
  rc::check("ids are unique; each readable full GPU is offered once, or as 0…n-1; order is stable", [] {
    const auto strategy = *rc::gen::element(MigStrategy::kNone, MigStrategy::kSingle, MigStrategy::kMixed);
    const auto snapshot = any_node(strategy);
    const auto config = any_config(strategy);
    const auto made = plan(snapshot, config);
    std::set<std::string> seen;
    std::map<std::string, std::set<unsigned>> replicas;
    std::map<std::string, ResourceName> resource_of;
    for (const auto& resource : made.resources) {
      RC_ASSERT(!resource.devices.empty());
      std::tuple<std::size_t, std::optional<std::size_t>, std::optional<unsigned>> before;
      bool first = true;
      for (const auto& device : resource.devices) {
        RC_ASSERT(seen.insert(device.id.str()).second);
        const auto uuid = device.id.str().substr(0, device.id.str().find("::"));
        RC_ASSERT(resource_of.emplace(uuid, resource.name).first->second == resource.name);
        RC_ASSERT(replicas[uuid].insert(device.replica.value_or(0)).second);
        const std::tuple place(device.gpu, device.mig, device.replica);
        RC_ASSERT(first || before < place);
        before = place;
        first = false;
        const auto& owner = snapshot.gpus[device.gpu];
        RC_ASSERT(device.health.healthy == owner.health.healthy);
        RC_ASSERT(uuid == (device.mig ? owner.mig_devices[*device.mig].uuid.str() : owner.uuid.str()));
      }
    }
    RC_ASSERT(std::ranges::is_sorted(made.resources, {}, &Resource::name));
    for (const auto& owner : snapshot.gpus) {
      const bool whole = strategy == MigStrategy::kNone || !owner.mig_enabled;
      RC_ASSERT(replicas.contains(owner.uuid.str()) == whole);
      for (const auto& device : owner.mig_devices) RC_ASSERT(replicas.contains(device.uuid.str()) == !whole);
    }
    for (const auto& [uuid, numbers] : replicas) RC_ASSERT(*numbers.rbegin() + 1 == numbers.size());
  });
}

TEST(Properties, AnotherGpusFaultChangesNoId) {
  rc::check("when one GPU breaks or cannot be read, every id stays in its resource", [] {
    const auto strategy = *rc::gen::element(MigStrategy::kNone, MigStrategy::kSingle, MigStrategy::kMixed);
    auto snapshot = any_node(strategy);
    RC_PRE(!snapshot.gpus.empty());
    const auto config = any_config(strategy);
    auto before = plan(snapshot, config);
    auto& broken = snapshot.gpus[*rc::gen::inRange<std::size_t>(0, snapshot.gpus.size())];
    broken.unreadable = Error(Code::kDeviceLost, "GPU is lost");
    auto after = plan(snapshot, config);
    RC_ASSERT(before.resources.size() == after.resources.size());
    for (auto* made : {&before, &after}) {
      for (auto& resource : made->resources) {
        for (auto& device : resource.devices) {
          if (snapshot.gpus[device.gpu].uuid == broken.uuid) {
            if (made == &after) RC_ASSERT(!device.health.healthy);
            device.health = {};
          }
        }
      }
    }
    RC_ASSERT(before == after);
  });
}

}  // namespace
}  // namespace gpulet::partition

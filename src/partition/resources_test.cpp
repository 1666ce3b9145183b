#include "partition/resources.h"

#include <gtest/gtest.h>

#include "partition/test_node.h"

namespace gpulet::partition {
namespace {

using config::Config;
using config::MigStrategy;
using inventory::Snapshot;

using namespace test;

TEST(Names, PatternsMatchTheWholeText) {
  EXPECT_TRUE(matches_pattern("*", ""));
  EXPECT_TRUE(matches_pattern("*A100*", "NVIDIA A100-SXM4-40GB"));
  EXPECT_TRUE(matches_pattern("NVIDIA*40GB", "NVIDIA A100-SXM4-40GB"));
  EXPECT_TRUE(matches_pattern("1g.5gb+me", "1g.5gb+me"));
  EXPECT_TRUE(matches_pattern("a*b*c", "aXbXbc"));
  EXPECT_FALSE(matches_pattern("A100", "NVIDIA A100-SXM4-40GB"));
  EXPECT_FALSE(matches_pattern("1g.5gb", "1gX5gb"));
  EXPECT_FALSE(matches_pattern("1g.5gb", "1g.5gb+me"));
  EXPECT_FALSE(matches_pattern("", "a"));
  EXPECT_FALSE(matches_pattern("a*b", "a"));
  // No blow-up: what an exponential matcher would never end.
  EXPECT_FALSE(matches_pattern("*a*a*a*a*a*a*a*a*a*a*b", std::string(5000, 'a')));
}

TEST(Names, MixedNamesAreProfiles) {
  const Config config = with(MigStrategy::kMixed);
  const std::pair<const char*, const char*> rows[] = {
      {"1g.5gb", "mig-1g.5gb"},           {"1g.5gb+me", "mig-1g.5gb.me"},
      {"1g.5gb-me", "mig-1g.5gb-me"},     {"1g.12gb+me.all", "mig-1g.12gb.me.all"},
      {"1g.24gb+gfx", "mig-1g.24gb.gfx"}, {"7g.80gb", "mig-7g.80gb"}};
  for (const auto& [profile, name] : rows) {
    EXPECT_EQ(mig_resource_name(mig(0, 0, profile), config, MigStrategy::kMixed)->str(),
              "nvidia.com/" + std::string(name));
  }
  EXPECT_FALSE(mig_resource_name(mig(0, 0, "1c.2g.20gb", 1, 2), config, MigStrategy::kMixed));
  EXPECT_EQ(mig_resource_name(mig(0, 0, "1c.2g.20gb", 1, 2), with(MigStrategy::kSingle), MigStrategy::kSingle)
                ->str(),
            "nvidia.com/gpu");
}

TEST(Names, FirstMatchingPatternApplies) {
  Config config = with(MigStrategy::kMixed);
  config.gpu_resources.insert(config.gpu_resources.begin(), {{"*A100*", ResourceName("nvidia.com/a100")},
                                                             {"*", ResourceName("nvidia.com/other")}});
  config.mig_resources = {{"1c.*", ResourceName("nvidia.com/share")},
                          {"1g.*", ResourceName("nvidia.com/small")}};
  const auto plan_ = plan_resources(node({gpu(0), gpu(1, "Tesla T4"), cut(2, 2)}), config);
  EXPECT_EQ(summary(plan_), "a100=1 other=1 small=2");
  EXPECT_EQ(mig_resource_name(mig(0, 0, "1c.2g.20gb", 1, 2), config, MigStrategy::kMixed)->str(),
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
    EXPECT_EQ(summary(plan_resources(row.node, with(kNone))), row.none) << row.what;
    EXPECT_TRUE(plan_resources(row.node, with(kNone)).notes.empty()) << row.what;
    EXPECT_EQ(summary(plan_resources(row.node, with(kSingle))), row.single) << row.what;
    EXPECT_EQ(plan_resources(row.node, with(kSingle)).notes.size(), row.single_notes) << row.what;
    EXPECT_EQ(summary(plan_resources(row.node, with(kMixed))), row.mixed) << row.what;
    EXPECT_EQ(plan_resources(row.node, with(kMixed)).notes.size(), row.mixed_notes) << row.what;
  }
}

TEST(Mig, NotesNameDeviceAndReason) {
  using enum MigStrategy;
  EXPECT_EQ(notes(plan_resources(node({cut(3, 0)}), with(kMixed))),
            Notes{"GPU 3 (GPU-3) has MIG on and no instance: it is not offered"});
  EXPECT_EQ(notes(plan_resources(node({cut(0, 7), gpu(1)}), with(kSingle))),
            Notes{"GPU 0 (GPU-0) has MIG profile 1g.5gb, and others on the node are whole: with MIG strategy "
                  "single it "
                  "is not offered"});
  EXPECT_EQ(notes(plan_resources(node({cut(0, 7), cut(1, 7), gpu(2)}), with(kSingle))),
            Notes{"GPU 2 (GPU-2) is whole, and others on the node have 1g.5gb: with MIG strategy single it "
                  "is not offered"});
  auto share = cut(0, 1, "1c.2g.20gb");
  share.mig_devices[0].gpu_slices = 2;
  EXPECT_EQ(notes(plan_resources(node({share}), with(kMixed))),
            Notes{"MIG device 0:0 (MIG-0-0): profile 1c.2g.20gb does not match any resource patterns: it is "
                  "not offered"});
}

TEST(Plan, DevicesHaveTheirLocation) {
  const auto made = plan_resources(node({gpu(0), cut(1, 2)}), with(MigStrategy::kMixed));
  ASSERT_EQ(made.resources.size(), 2u);
  const auto& whole = made.resources[0].devices[0];
  EXPECT_EQ(whole.id.str(), "GPU-0");
  EXPECT_EQ(whole.gpu, 0u);
  EXPECT_FALSE(whole.mig || whole.replica || whole.is_shared());
  EXPECT_EQ(whole.numa_node, 0);
  const auto& part = made.resources[1].devices[1];
  EXPECT_EQ(part.id.str(), "MIG-1-1");
  EXPECT_EQ(part.gpu, 1u);
  EXPECT_EQ(part.mig, 1u);
  EXPECT_EQ(part.numa_node, 1);
  EXPECT_EQ(made.resources[0].sharing, config::SharingStrategy::kNone);
  EXPECT_EQ(made.resources[0].replicas, 1u);
}

TEST(Plan, OmitsDevicesWithoutUuidAndDisplayAdapters) {
  auto nameless = gpu(2);
  nameless.uuid = {};
  nameless.unreadable = Error(Code::kDeviceLost, "GPU is lost");
  auto twin = gpu(3);
  twin.uuid = DeviceUuid("GPU-0");
  const auto made =
      plan_resources(node({gpu(0), gpu(1, "NVIDIA DGX Display"), nameless, twin}), with(MigStrategy::kNone));
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
  const auto none = plan_resources(node({gpu(0), sick, unreadable, part}), with(MigStrategy::kNone));
  ASSERT_EQ(summary(none), "gpu=4");
  const auto& devices = none.resources[0].devices;
  EXPECT_TRUE(devices[0].health.healthy);
  EXPECT_EQ(devices[1].health.reason, "XID 79: GPU has fallen off the bus");
  EXPECT_EQ(devices[2].health.reason, "cannot be read: GPU is lost");
  EXPECT_EQ(devices[3].health.reason,
            "XID 94: contained memory error");  // offered whole but partitioned: a fault of a part counts
  const auto mixed = plan_resources(node({gpu(0), part}), with(MigStrategy::kMixed));
  EXPECT_TRUE(mixed.resources[1].devices[0].health.healthy);
  EXPECT_FALSE(mixed.resources[1].devices[1].health.healthy);
  // Never read, so its partitioning is unknown: it does not count as whole.
  const auto single = plan_resources(node({cut(0, 7), unreadable}), with(MigStrategy::kSingle));
  EXPECT_EQ(summary(single), "gpu=8");
  EXPECT_TRUE(single.notes.empty());
}

TEST(Sharing, AllDevicesUnderTheSameName) {
  auto config = sharing({replicated("gpu", 2)});
  config.sharing.fail_requests_greater_than_one = true;
  const auto made = plan_resources(node({gpu(0), gpu(1)}), config);
  EXPECT_EQ(ids(made, "gpu"), "GPU-0::0 GPU-0::1 GPU-1::0 GPU-1::1");
  const auto& resource = made.resources[0];
  EXPECT_EQ(resource.sharing, config::SharingStrategy::kTimeSlicing);
  EXPECT_EQ(resource.replicas, 2u);
  EXPECT_TRUE(resource.fail_requests_greater_than_one);
  EXPECT_EQ(resource.devices[3].replica, 1u);
  EXPECT_TRUE(resource.devices[3].is_shared());
}

TEST(Sharing, RenameAffectsOnlySharedDevices) {
  auto made = plan_resources(node({gpu(0), gpu(1), gpu(2)}),
                             sharing({replicated("gpu", 2, config::DeviceRefs{"1"}, "gpu.shared")}));
  EXPECT_EQ(ids(made, "gpu"), "GPU-0 GPU-2");
  EXPECT_EQ(ids(made, "gpu.shared"), "GPU-1::0 GPU-1::1");
  EXPECT_EQ(made.resources[0].sharing, config::SharingStrategy::kNone);
  EXPECT_EQ(made.resources[1].sharing, config::SharingStrategy::kTimeSlicing);
  // Without rename, the name stays.
  made = plan_resources(node({gpu(0), gpu(1)}), sharing({replicated("gpu", 2, config::DeviceRefs{"1"})}));
  EXPECT_EQ(ids(made, "gpu"), "GPU-0 GPU-1::0 GPU-1::1");
}

TEST(Sharing, DevicesByCountIndexAndUuid) {
  const auto shared = [](const config::DeviceSelection& devices) {
    Config config = with(MigStrategy::kMixed);
    config.sharing.strategy = config::SharingStrategy::kTimeSlicing;
    config.sharing.resources = {replicated("gpu", 2, devices, "s"),
                                replicated("mig-1g.5gb", 2, devices, "m")};
    return plan_resources(node({gpu(0), gpu(1), cut(2, 2)}), config);
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
  const auto made = plan_resources(node({gpu(0), gpu(1), gpu(2)}),
                                   sharing({replicated("gpu", 2, config::DeviceRefs{"0"}, "half"),
                                            replicated("gpu", 3, config::DeviceCount{2}, "third")}));
  EXPECT_EQ(ids(made, "half"), "GPU-0::0 GPU-0::1");  // the first entry that selects it
  EXPECT_EQ(ids(made, "third"), "GPU-1::0 GPU-1::1 GPU-1::2");
  EXPECT_EQ(ids(made, "gpu"), "GPU-2");
}

TEST(Sharing, MpsReplicasAreLimitedToItsClients) {
  Config config = with(MigStrategy::kSingle);
  config.sharing.strategy = config::SharingStrategy::kMps;
  config.sharing.resources = {replicated("gpu", 4)};
  // A seventh of a GPU serves a seventh of the clients.
  const auto made = plan_resources(node({cut(0, 2)}), config);
  EXPECT_EQ(summary(made), "gpu=8");
  EXPECT_EQ(made.resources[0].sharing, config::SharingStrategy::kMps);
  EXPECT_EQ(made.resources[0].mps_daemon, "nvidia.com/gpu");
  EXPECT_EQ(max_mps_replicas(mig(0, 0, "1g.5gb")), 6u);
  EXPECT_EQ(max_mps_replicas(mig(0, 0, "3g.20gb", 3, 3)), 20u);
  EXPECT_EQ(max_mps_replicas(mig(0, 0, "7g.40gb", 7, 7)), 48u);
  config.sharing.resources = {replicated("gpu", 7)};
  const auto too_many = plan_resources(node({cut(0, 2)}), config);
  EXPECT_EQ(ids(too_many, "gpu"), "MIG-0-0 MIG-0-1");
  EXPECT_EQ(too_many.resources[0].sharing, config::SharingStrategy::kNone);
  EXPECT_EQ(
      notes(too_many),
      (Notes{
          "MIG-0-0 of nvidia.com/gpu: MPS serves at most 6 clients on it, not 7; it is offered unshared"}));
  auto old = gpu(0, "Tesla V100");
  old.compute_major = 7;
  EXPECT_EQ(max_mps_replicas(old), 16u);
  EXPECT_EQ(max_mps_replicas(gpu(1)), 48u);
  config.sharing.resources = {replicated("gpu", 17)};
  const auto many = plan_resources(node({old, gpu(1)}), config);
  EXPECT_EQ(summary(many), "gpu=18");
  EXPECT_EQ(many.notes.size(), 1u);
}

}  // namespace
}  // namespace gpulet::partition

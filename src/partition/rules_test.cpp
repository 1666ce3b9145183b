// The rules of gpulet.partition applied: offered devices, desired MIG layouts, notes.
#include <gtest/gtest.h>

#include "config/load.h"
#include "partition/resources.h"
#include "partition/rules.h"
#include "partition/test_node.h"

namespace gpulet::partition {
namespace {

using namespace test;
using config::Config;
using inventory::Gpu;
using inventory::Snapshot;

// A config file's text with these rules, each beginning on its own line from line 3.
Config rules(const std::string& lines, const std::string& before = "") {
  config::Sources sources;
  sources.file_path = "x.yaml";
  sources.file_content = before + "gpulet:\n  partition:\n" + lines;
  auto loaded = config::load(sources);
  EXPECT_TRUE(loaded) << (loaded ? "" : loaded.error().full_message());
  return loaded ? loaded->config : Config{};
}

Snapshot eight() {
  const std::string model = "NVIDIA H100 80GB HBM3";
  std::vector<Gpu> gpus;
  for (unsigned i = 0; i < 7; ++i) gpus.push_back(gpu(i, model));
  gpus.push_back(cut_as(7, {"3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"}, model));
  return node(std::move(gpus));
}

constexpr const char* kMixedRules =
    "  - {devices: [0-3], whole: {}}\n"
    "  - {devices: [4, 5], timeSlicing: {replicas: 4}}\n"
    "  - {devices: [6], mps: {shares: [60, 40]}}\n"
    "  - {devices: [7], mig: {layout: all-balanced}}\n";

TEST(Rules, SharesOnIsOfTheResource) {
  const auto made =
      plan_resources(eight(), rules("  - {devices: [4, 5], timeSlicing: {replicas: 4, sharesOn: "
                                    "oneGPU, name: gpu.sliced}}\n"
                                    "  - {devices: [6], mps: {replicas: 4, sharesOn: "
                                    "differentGPUs}}\n"));
  EXPECT_EQ(find(made, "gpu.sliced")->shares_on, placement::SharesOn::kOneGpu);
  EXPECT_EQ(find(made, "gpu.shared")->shares_on, placement::SharesOn::kDifferentGpus);
  EXPECT_FALSE(find(made, "gpu.shared")->fail_requests_greater_than_one);
}

TEST(Rules, FourModesOnOneNode) {
  const auto made = plan_resources(eight(), rules(kMixedRules));
  EXPECT_EQ(summary(made),
            "gpu=4 gpu.mps-40=1 gpu.mps-60=1 gpu.shared=8 mig-1g.10gb=2 mig-2g.20gb=1 mig-3g.40gb=1");
  EXPECT_EQ(notes(made), Notes{});
  EXPECT_EQ(ids(made, "gpu"), "GPU-0 GPU-1 GPU-2 GPU-3");
  EXPECT_EQ(ids(made, "gpu.mps-60"), "GPU-6::0");
  EXPECT_EQ(ids(made, "gpu.mps-40"), "GPU-6::1");
  EXPECT_EQ(ids(made, "mig-1g.10gb"), "MIG-7-2 MIG-7-3");
  const auto& slices = *find(made, "gpu.shared");
  EXPECT_EQ(slices.sharing, config::SharingStrategy::kTimeSlicing);
  EXPECT_EQ(slices.replicas, 4u);
  EXPECT_FALSE(slices.fail_requests_greater_than_one);
  EXPECT_EQ(slices.shares_on, placement::SharesOn::kAnyGpu);
  EXPECT_EQ(slices.mps_daemon, "");
  for (const auto& [name, size] : {std::pair("gpu.mps-60", 60u), std::pair("gpu.mps-40", 40u)}) {
    const auto& share = *find(made, name);
    EXPECT_EQ(share.sharing, config::SharingStrategy::kMps);
    EXPECT_EQ(share.mps_daemon, "nvidia.com/gpu.mps");  // one daemon for both
    EXPECT_TRUE(share.fail_requests_greater_than_one);
    EXPECT_EQ(share.devices[0].share, (config::MpsShare{size, size}));
    EXPECT_EQ(share.replicas, 1u);
  }
}

TEST(Rules, UnselectedGpusFollowTheRestOfTheFile) {
  const auto made =
      plan_resources(eight(), rules("  - {devices: [0], whole: {name: big}}\n",
                                    "flags: {migStrategy: mixed}\nsharing: {timeSlicing: {resources: "
                                    "[{name: gpu, replicas: 2, devices: [1]}]}}\n"));
  EXPECT_EQ(summary(made), "big=1 gpu=7 mig-1g.10gb=2 mig-2g.20gb=1 mig-3g.40gb=1");
  EXPECT_EQ(ids(made, "gpu"), "GPU-1::0 GPU-1::1 GPU-2 GPU-3 GPU-4 GPU-5 GPU-6");
  // A rule for one GPU leaves strategy single to the others.
  EXPECT_EQ(summary(plan_resources(
                eight(), rules("  - {devices: [7], mig: {layout: a}}\n", "flags: {migStrategy: single}\n"))),
            "gpu=7 mig-1g.10gb=2 mig-2g.20gb=1 mig-3g.40gb=1");
}

TEST(Rules, SelectByIndexUuidModelCountAndLabel) {
  const auto snapshot =
      node({gpu(0, "Tesla T4"), gpu(1), gpu(2), gpu(3, "Tesla T4"), gpu(4), gpu(5, "NVIDIA DGX Display")});
  Config config = rules(
      "  - {devices: 1, model: \"*T4*\", nodeLabel: pool=train, whole: {name: a}}\n"
      "  - {devices: 3, whole: {name: b}}\n"
      "  - {devices: [3], whole: {name: c}}\n"
      "  - {whole: {name: d}}\n");
  EXPECT_EQ(summary(plan_resources(snapshot, config)), "b=3 c=1 d=1");
  EXPECT_EQ(ids(plan_resources(snapshot, config), "b"), "GPU-0 GPU-1 GPU-2");
  EXPECT_EQ(summary(plan_resources(snapshot, config, {.labels = {{"pool", "test"}}, .withdrawn = {}})),
            "b=3 c=1 d=1");
  const NodeFacts train{.labels = {{"pool", "train"}, {"zone", ""}}, .withdrawn = {}};
  const auto made = plan_resources(snapshot, config, train);
  EXPECT_EQ(ids(made, "a"), "GPU-0");
  EXPECT_EQ(ids(made, "b"), "GPU-1 GPU-2 GPU-3");  // a count counts what is left
  EXPECT_EQ(ids(made, "d"), "GPU-4");
  config.gpulet.partition = {{.devices = config::GpuRefs{{0, 0, DeviceUuid("GPU-4")}},
                              .model = "*A100*",
                              .node_label = config::NodeLabel{"zone", std::nullopt},
                              .display = std::nullopt,
                              .mode = config::Whole{ResourceName("nvidia.com/e")},
                              .position = "x.yaml:3:5"}};
  EXPECT_EQ(ids(plan_resources(snapshot, config, train), "e"), "GPU-4");
  EXPECT_EQ(ids(plan_resources(snapshot, config), "e"), "");  // the label is missing
  config.gpulet.partition[0].model = "*T4*";                  // all conditions must hold
  EXPECT_EQ(ids(plan_resources(snapshot, config, train), "e"), "");
}

TEST(Rules, MissingDevicesAreReported) {
  EXPECT_EQ(notes(plan_resources(node({gpu(0), gpu(1)}), rules("  - {devices: [0-3, 9], whole: {}}\n"
                                                               "  - {devices: 2, whole: {}}\n"))),
            (Notes{"x.yaml:3:5: the node does not have all of GPUs 0-3", "x.yaml:3:5: the node has no GPU 9",
                   "x.yaml:4:5: 2 GPUs are wanted, and 0 are left that it applies to"}));
  EXPECT_EQ(notes(plan_resources(
                node({}), rules("  - {devices: [GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0], whole: {}}\n"))),
            Notes{"x.yaml:3:5: the node has no GPU GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"});
}

TEST(Rules, MpsShares) {
  const auto one = node({gpu(0), gpu(1)});
  const auto equal = plan_resources(
      one, rules("  - {devices: [0], mps: {replicas: 3, failRequestsGreaterThanOne: false}}\n"));
  EXPECT_EQ(summary(equal), "gpu=1 gpu.shared=3");
  const auto& shared = *find(equal, "gpu.shared");
  EXPECT_EQ(shared.mps_daemon, "nvidia.com/gpu.shared");
  EXPECT_EQ(shared.replicas, 3u);
  EXPECT_FALSE(shared.fail_requests_greater_than_one);
  EXPECT_FALSE(shared.devices[0].share);  // the daemon's defaults divide the GPU
  EXPECT_FALSE(shared.has_sm_partitions);
  const auto own = plan_resources(one, rules("  - {devices: [0], mps: {replicas: 3, smPartitions: true}}\n"));
  EXPECT_TRUE(find(own, "gpu.shared")->has_sm_partitions);
  const auto listed =
      plan_resources(one, rules("  - {devices: [0], mps: {shares: [30, 30, 30], name: third}}\n"));
  EXPECT_EQ(summary(listed), "gpu=1 third=3");
  EXPECT_EQ(find(listed, "third")->devices[2].share, (config::MpsShare{30, 30}));
  EXPECT_EQ(find(listed, "third")->mps_daemon, "nvidia.com/third");
  const auto uneven = plan_resources(
      one, rules("  - mps: {shares: [50, 20, {memory: 20, threads: 90}, {memory: 10, name: tiny}]}\n"));
  EXPECT_EQ(summary(uneven), "gpu.mps-20=2 gpu.mps-20-90=2 gpu.mps-50=2 tiny=2");
  EXPECT_EQ(ids(uneven, "gpu.mps-20"), "GPU-0::1 GPU-1::1");
  EXPECT_EQ(ids(uneven, "tiny"), "GPU-0::3 GPU-1::3");
  EXPECT_EQ(find(uneven, "gpu.mps-20")->replicas, 1u);
  for (const auto& resource : uneven.resources) EXPECT_EQ(resource.mps_daemon, "nvidia.com/gpu.mps");
  const auto named = plan_resources(one, rules("  - mps: {shares: [60, 20, 20], name: part}\n"));
  EXPECT_EQ(summary(named), "part-20=4 part-60=2");
  EXPECT_EQ(find(named, "part-20")->mps_daemon, "nvidia.com/part");
  EXPECT_EQ(find(named, "part-20")->replicas, 2u);
  auto old = gpu(0, "Tesla V100");
  old.compute_major = 7;
  EXPECT_EQ(
      notes(plan_resources(node({old}), rules("  - mps: {replicas: 17}\n"))),
      Notes{"x.yaml:3:5: GPU 0 (GPU-0): MPS serves at most 16 clients on it, not 17: it is not offered"});
}

TEST(Rules, ModelPatternsNameRuleResources) {
  const std::string names = "resources: {gpus: [{pattern: \"*T4*\", name: t4}]}\n";
  const auto snapshot = node({gpu(0), gpu(1, "Tesla T4")});
  EXPECT_EQ(summary(plan_resources(snapshot, rules("  - timeSlicing: {replicas: 2}\n", names))),
            "gpu.shared=2 t4.shared=2");
  EXPECT_EQ(summary(plan_resources(snapshot, rules("  - mps: {shares: [60, 40]}\n", names))),
            "gpu.mps-40=1 gpu.mps-60=1 t4.mps-40=1 t4.mps-60=1");
  EXPECT_EQ(summary(plan_resources(snapshot, rules("  - whole: {}\n", names))), "gpu=1 t4=1");
  EXPECT_EQ(summary(plan_resources(snapshot, rules("  - whole: {name: any}\n", names))), "any=2");
}

TEST(Rules, GpuThatDiffersFromItsRuleIsOmitted) {
  const auto notes_text = [](const Gpu& gpu, const std::string& rule) {
    const auto made = plan_resources(node({gpu}), rules("  - " + rule + "\n"));
    EXPECT_EQ(summary(made), "") << rule;
    EXPECT_EQ(made.notes.size(), 1u) << rule;
    return made.notes.empty() ? "" : made.notes[0].message;
  };
  EXPECT_EQ(
      notes_text(gpu(0, "Tesla T4"), "mig: {layout: all-1g.5gb}"),
      "x.yaml:3:5: GPU 0 (GPU-0) has no MIG, and its rule wants MIG layout all-1g.5gb: it is not offered");
  EXPECT_EQ(notes_text(gpu(0), "mig: {devices: {1g.5gb: 7}}"),
            "x.yaml:3:5: GPU 0 (GPU-0) has MIG off, and its rule wants 7 x 1g.5gb: it is not offered");
  EXPECT_EQ(notes_text(cut(0, 0), "mig: {layout: a}"),
            "x.yaml:3:5: GPU 0 (GPU-0) has no MIG instance yet, and its rule wants MIG layout a: it is not "
            "offered");
  EXPECT_EQ(notes_text(cut(0, 2), "mig: {devices: {1g.5gb: 3, 2g.10gb: 0}}"),
            "x.yaml:3:5: GPU 0 (GPU-0) has 2 x 1g.5gb, and its rule wants 3 x 1g.5gb: it is not offered");
  EXPECT_EQ(notes_text(cut_as(0, {"3g.20gb", "1g.5gb"}), "mig: {layout: a, strategy: single}"),
            "x.yaml:3:5: GPU 0 (GPU-0) has 1 x 1g.5gb, 1 x 3g.20gb, more than one profile for one resource "
            "(use strategy mixed without a name): it is not offered");
  EXPECT_EQ(notes_text(cut(0, 2), "whole: {}"),
            "x.yaml:3:5: GPU 0 (GPU-0) has MIG on, and its rule wants it whole: it is not offered");
  EXPECT_EQ(notes_text(cut(0, 2), "timeSlicing: {replicas: 2}"),
            "x.yaml:3:5: GPU 0 (GPU-0) has MIG on, and its rule wants it time-sliced: it is not offered");
  EXPECT_EQ(notes_text(cut(0, 2), "mps: {replicas: 2}"),
            "x.yaml:3:5: GPU 0 (GPU-0) has MIG on, and its rule wants it shared with MPS: it is not offered");
  auto lost = gpu(0, "");
  lost.unreadable = Error(Code::kDeviceLost, "GPU is lost");
  EXPECT_EQ(notes_text(lost, "mig: {layout: a}"),
            "x.yaml:3:5: GPU 0 (GPU-0) cannot be read, and its rule wants MIG layout a: it is not offered");
  // A matching GPU is offered; the MIG manager withdraws only the GPU that it changes.
  const auto both = node({cut(0, 3), cut(1, 3)});
  const auto config = rules("  - mig: {devices: {1g.5gb: 3}, strategy: single}\n");
  EXPECT_EQ(summary(plan_resources(both, config)), "gpu=6");
  const auto made =
      plan_resources(both, config, {.labels = {}, .withdrawn = {{DeviceUuid("GPU-1"), "is being cut up"}}});
  EXPECT_EQ(ids(made, "gpu"), "MIG-0-0 MIG-0-1 MIG-0-2");
  EXPECT_EQ(notes(made), Notes{"GPU 1 (GPU-1) is being cut up: it is not offered"});
}

TEST(Rules, ConflictingResourceNameStaysWithItsFirstUser) {
  const std::string names =
      "resources: {gpus: [{pattern: \"*T4*\", name: gpu}]}\n";  // so that the config check cannot detect it
  const auto snapshot = node({gpu(0), gpu(1, "Tesla T4"), gpu(2)});
  const auto made = plan_resources(snapshot, rules("  - {devices: [1], timeSlicing: {replicas: 2}}\n"
                                                   "  - {devices: [2], timeSlicing: {replicas: 4}}\n",
                                                   names));
  EXPECT_EQ(summary(made), "gpu=1 gpu.shared=2");
  EXPECT_EQ(notes(made),
            Notes{"x.yaml:5:5: GPU 2 (GPU-2): nvidia.com/gpu.shared is taken by devices cut or shared in "
                  "another way; set a name: it is not offered"});
  // GPUs without a rule have precedence for their name.
  EXPECT_EQ(ids(plan_resources(node({gpu(0), cut(1, 2)}),
                               rules("  - {devices: [1], mig: {layout: a, strategy: single}}\n")),
                "gpu"),
            "GPU-0");
}

TEST(Rules, ExcludeByIndexUuidAddressModelAndDisplay) {
  auto snapshot = node({gpu(0, "NVIDIA T400 4GB"), gpu(1), gpu(2), gpu(3), gpu(4), gpu(5)});
  snapshot.gpus[0].display = true;
  snapshot.gpus[1].display = false;  // of the others it is unknown
  struct Case {
    const char* rule;
    const char* offered;
  };
  const Case cases[] = {
      {"devices: [1, 4-5]", "GPU-0 GPU-2 GPU-3"},
      {"devices: [GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0, 3]", "GPU-0 GPU-1 GPU-2 GPU-4 GPU-5"},
      {"devices: [\"0000:10:00.0\", 00000000:14:00.0]", "GPU-1 GPU-2 GPU-3 GPU-5"},
      {"model: \"*T400*\"", "GPU-1 GPU-2 GPU-3 GPU-4 GPU-5"},
      {"model: NVIDIA T400 4GB", "GPU-1 GPU-2 GPU-3 GPU-4 GPU-5"},
      {"model: NVIDIA-T400-4GB", "GPU-1 GPU-2 GPU-3 GPU-4 GPU-5"},
      {"model: T400", "GPU-0 GPU-1 GPU-2 GPU-3 GPU-4 GPU-5"},
      {"display: true", "GPU-1 GPU-2 GPU-3 GPU-4 GPU-5"},
      {"display: false", "GPU-0 GPU-2 GPU-3 GPU-4 GPU-5"},
      {"display: true, model: \"*A100*\"", "GPU-0 GPU-1 GPU-2 GPU-3 GPU-4 GPU-5"},
      {"nodeLabel: desktop", "GPU-0 GPU-1 GPU-2 GPU-3 GPU-4 GPU-5"},
      {"devices: 2", "GPU-2 GPU-3 GPU-4 GPU-5"},
      {"devices: all", ""},
  };
  for (const auto& one : cases) {
    const auto config = rules(std::string("  - {") + one.rule + ", exclude: true}\n");
    const auto made = plan_resources(snapshot, config);
    EXPECT_EQ(ids(made, "gpu"), one.offered) << one.rule;
    EXPECT_EQ(made.resources.size(), *one.offered == '\0' ? 0u : 1u) << one.rule;
    EXPECT_EQ(notes(made), Notes{}) << one.rule;
    auto marked = snapshot;
    mark_excluded_gpus(marked, config, {});
    for (const auto& gpu : marked.gpus) {
      const bool offered = std::string(one.offered).find(gpu.uuid.str()) != std::string::npos;
      EXPECT_EQ(gpu.excluded, offered ? "" : "is excluded by the rule at x.yaml:3:5")
          << one.rule << " " << gpu.uuid.str();
    }
    mark_excluded_gpus(marked, rules("  - {devices: [2], whole: {}}\n"), {});
    EXPECT_TRUE(std::ranges::all_of(marked.gpus, [](const auto& gpu) { return gpu.excluded.empty(); }))
        << one.rule;
  }
  EXPECT_EQ(ids(plan_resources(snapshot, rules("  - {nodeLabel: desktop, exclude: true}\n"),
                               {.labels = {{"desktop", ""}}, .withdrawn = {}}),
                "gpu"),
            "");
}

TEST(Rules, AGpuWithTheUuidOfAnExcludedOneIsExcluded) {
  auto snapshot = node({gpu(0), gpu(1), gpu(2)});
  snapshot.gpus[2].uuid = snapshot.gpus[0].uuid;
  mark_excluded_gpus(snapshot, rules("  - {devices: [0], exclude: true}\n"), {});
  EXPECT_FALSE(snapshot.gpus[0].excluded.empty());
  EXPECT_TRUE(snapshot.gpus[1].excluded.empty());
  EXPECT_FALSE(snapshot.gpus[2].excluded.empty());
}

TEST(Rules, ExcludedGpusAreRemarkedAndTheOthersFollowTheirRules) {
  const auto made = plan_resources(eight(), rules("  - {devices: [0, 7], exclude: true}\n"
                                                  "  - {devices: [12], exclude: true}\n"
                                                  "  - {devices: [0-2], timeSlicing: {replicas: 2}}\n"
                                                  "  - {devices: [\"0000:11:00.0\", 5], exclude: true}\n",
                                                  "flags: {migStrategy: mixed}\n"));
  EXPECT_EQ(summary(made), "gpu=3 gpu.shared=4");
  EXPECT_EQ(ids(made, "gpu"), "GPU-3 GPU-4 GPU-6");
  EXPECT_EQ(notes(made), Notes{"x.yaml:7:5: GPU 1 (GPU-1) is not excluded: the earlier rule at x.yaml:6:5 "
                               "applies to it"});
  EXPECT_EQ(remarks(made), (Notes{"x.yaml:5:5: the rule excludes no GPU of this node",
                                  "GPU 0 (GPU-0) is excluded by the rule at x.yaml:4:5",
                                  "GPU 5 (GPU-5) is excluded by the rule at x.yaml:7:5",
                                  "GPU 7 (GPU-7) is excluded by the rule at x.yaml:4:5"}));
  // The rest of the node may be excluded.
  EXPECT_EQ(summary(plan_resources(eight(), rules("  - {devices: [0], whole: {}}\n  - {exclude: true}\n"))),
            "gpu=1");
}

TEST(Rules, StrategySingleDoesNotCountExcludedGpus) {
  const auto snapshot = node({gpu(0), cut(1, 2), gpu(2)});
  EXPECT_EQ(ids(plan_resources(snapshot, rules("  - {devices: [0, 2], exclude: true}\n",
                                               "flags: {migStrategy: single}\n")),
                "gpu"),
            "MIG-1-0 MIG-1-1");
}

TEST(Rules, MigOfExcludedGpusIsLeftAlone) {
  const auto desired = desired_mig(
      eight(), rules("  - {devices: [6, 7], exclude: true}\n  - {devices: [0-7], whole: {}}\n"), {});
  ASSERT_EQ(desired.size(), 6u);
  EXPECT_EQ(desired.back().index, 5u);
}

TEST(Rules, MigOfDynamicGpusIsLeftAlone) {
  config::Config config = rules("  - {devices: [0-7], whole: {}}\n");
  config.gpulet.dra.enabled = true;
  auto dynamic = config.gpulet.partition.front();
  dynamic.devices = config::GpuRefs{{6, 7, {}}};
  dynamic.mode = config::DynamicMig{{"1g.10gb"}};
  config.gpulet.partition.insert(config.gpulet.partition.begin(), dynamic);
  const auto desired = desired_mig(eight(), config, {});
  ASSERT_EQ(desired.size(), 6u);
  EXPECT_EQ(desired.back().index, 5u);
  const auto selection = select_rules(eight(), config, {});
  EXPECT_EQ(selection.dynamic_profiles[7], std::vector<std::string>{"1g.10gb"});
  EXPECT_TRUE(selection.dynamic_profiles[5].empty());
  EXPECT_EQ(selection.side[7], config::OfferSide::kClaims);
}

TEST(Rules, ClaimsShareTheGpusOfARule) {
  config::Config config = rules("  - {devices: [0-7], whole: {}}\n");
  config.gpulet.dra.enabled = true;
  auto shared = config.gpulet.partition.front();
  shared.devices = config::GpuRefs{{6, 7, {}}};
  const config::ConsumableShares shares{config::ShareLimit::kCount, 4};
  shared.mode = config::Whole{.name = {}, .consumable_shares = shares};
  config.gpulet.partition.insert(config.gpulet.partition.begin(), shared);
  const auto selection = select_rules(eight(), config, {});
  EXPECT_EQ(selection.shares[7], shares);
  EXPECT_EQ(selection.shares[5], std::nullopt);
  EXPECT_EQ(selection.side[7], config::OfferSide::kClaims);
  EXPECT_FALSE(desired_mig(eight(), config, {}).back().enabled) << "MIG is off";
}

TEST(Rules, DesiredMig) {
  const auto config = rules(kMixedRules, "");
  auto snapshot = eight();
  snapshot.gpus[1].mig_capable = false;
  const auto desired = desired_mig(snapshot, config, {});
  ASSERT_EQ(desired.size(), 7u);
  EXPECT_EQ(desired[0], (DesiredMig{0, DeviceUuid("GPU-0"), false, "", {}, "x.yaml:3:5"}));
  EXPECT_EQ(desired[1].index, 2u);
  EXPECT_EQ(desired[6], (DesiredMig{7, DeviceUuid("GPU-7"), true, "all-balanced", {}, "x.yaml:6:5"}));
  const auto counted = desired_mig(
      snapshot, rules("  - {devices: [7], nodeLabel: a, mig: {devices: {1g.10gb: 7, 2g.20gb: 0}}}\n"),
      {{"a", ""}});
  ASSERT_EQ(counted.size(), 1u);
  EXPECT_EQ(counted[0].devices, (std::map<std::string, unsigned>{{"1g.10gb", 7}}));
  EXPECT_TRUE(desired_mig(snapshot, rules("  - {nodeLabel: a, mig: {layout: b}}\n"), {}).empty());
}

TEST(Rules, AGpuOnDemandIsOfferedAsItIs) {
  const auto config = rules("  - {mig: {devices: {1g.5gb: 7}, onDemand: true}}\n");
  const auto made = plan_resources(node({cut_as(0, {"3g.20gb", "1g.5gb"}), cut(1, 0)}), config);
  EXPECT_TRUE(made.notes.empty());
  std::vector<std::string> names;
  for (const auto& resource : made.resources) names.push_back(resource.name.str());
  EXPECT_EQ(names, (std::vector<std::string>{"nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"}));
  EXPECT_TRUE(desired_mig(node({cut(0, 7)}), config, {}).at(0).on_demand);
  auto of_claims = config;
  of_claims.gpulet.dra.enabled = true;
  EXPECT_FALSE(desired_mig(node({cut(0, 7)}), of_claims, {}).at(0).on_demand);
}

TEST(Rules, SharingSectionSetsTheMpsDaemon) {
  const auto made = plan_resources(
      node({gpu(0)}),
      sharing({replicated("gpu", 4, config::AllDevices{}, "gpu.shared")}, config::SharingStrategy::kMps));
  EXPECT_EQ(made.resources[0].mps_daemon, "nvidia.com/gpu.shared");
  EXPECT_EQ(plan_resources(node({gpu(0)}), sharing({replicated("gpu", 4)})).resources[0].mps_daemon, "");
}

}  // namespace
}  // namespace gpulet::partition

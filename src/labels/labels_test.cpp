#include <regex>
#include <utility>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "labels/labels.h"
#include "labels/test_nodes.h"
#include "partition/resources.h"

namespace gpulet::labels {
namespace {

using inventory::Gpu;
using inventory::MigDevice;
using inventory::Snapshot;
using test::labels_with;
using test::value;

Gpu gpu(const std::string& model, std::uint64_t mib = 81559) {
  Gpu made;
  made.model = model;
  made.memory = mebibytes(mib);
  made.memory_bandwidth = 3'352'320'000'000;
  made.compute_major = 9;
  made.architecture = "hopper";
  made.pci_class = 0x030200;
  made.mig_capable = true;
  return made;
}

Gpu cut(const std::string& model, const std::vector<std::string>& profiles) {
  Gpu made = gpu(model);
  made.mig_enabled = true;
  for (const auto& profile : profiles) {
    MigDevice mig;
    mig.index = static_cast<unsigned>(made.mig_devices.size());
    mig.profile = profile;
    mig.gpu_instance = mig.index + 1;
    mig.compute_slices = mig.gpu_slices = static_cast<unsigned>(profile[0] - '0');
    mig.memory = mebibytes(9984);
    made.mig_devices.push_back(std::move(mig));
  }
  return made;
}

Snapshot node(std::vector<Gpu> gpus) {
  Snapshot snapshot;
  snapshot.driver = {"570.124.06", 12080};
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    gpus[i].index = static_cast<unsigned>(i);
    const auto number = std::to_string(i);
    gpus[i].uuid = DeviceUuid("GPU-" + number);
    for (auto& mig : gpus[i].mig_devices) {
      mig.uuid = DeviceUuid("MIG-" + number + "-" + std::to_string(mig.index));
    }
  }
  snapshot.gpus = std::move(gpus);
  snapshot.pcie.resize(snapshot.gpus.size() * snapshot.gpus.size());
  return snapshot;
}

constexpr const char* kH100 = "NVIDIA H100 80GB HBM3";
constexpr const char* kL40S = "NVIDIA L40S";

TEST(Labels, NodeWithoutGpusHasNone) { EXPECT_TRUE(labels_with(node({}), "").empty()); }

TEST(Labels, UnknownValuesAreOmitted) {
  auto snapshot = node({Gpu{}, gpu(kH100, 0)});
  snapshot.gpus[1].compute_major = 0;
  snapshot.gpus[1].memory_bandwidth = 0;
  snapshot.driver.cuda_version = 0;
  const auto labels = labels_with(snapshot, "");
  EXPECT_EQ(value(labels, "nvidia.com/gpu.count"), "1") << "the other GPU was never known";
  for (const auto* key : {"gpu.memory", "gpu.family", "gpu.compute.major", "cuda.runtime.major", "gpu.clique",
                          "vgpu.present", "mig.strategy", "gfd.timestamp"}) {
    EXPECT_EQ(value(labels, "nvidia.com/" + std::string(key)), "(absent)");
  }
}

TEST(Labels, DriverVersions) {
  auto snapshot = node({gpu(kH100)});
  snapshot.driver.version = "550.54";
  auto labels = labels_with(snapshot, "");
  EXPECT_EQ(value(labels, "nvidia.com/cuda.driver.minor"), "54");
  EXPECT_EQ(value(labels, "nvidia.com/cuda.driver-version.revision"), "");
  snapshot.driver.version = "1.2.3.4 beta+";
  labels = labels_with(snapshot, "");
  EXPECT_EQ(value(labels, "nvidia.com/cuda.driver-version.full"), "1.2.3.4-beta");
  EXPECT_EQ(labels.at("nvidia.com/cuda.driver-version.full").original, "1.2.3.4 beta+");
  EXPECT_EQ(value(labels, "nvidia.com/cuda.driver.major"), "(absent)");
}

TEST(Labels, MachineType) {
  const auto snapshot = node({gpu(kH100)});
  const config::Config config = test::config_of("");
  EXPECT_EQ(value(labels_with(snapshot, config, " DGX  H100 (rev A)\n"), "nvidia.com/gpu.machine"),
            "DGX-H100-rev-A");
  EXPECT_EQ(value(labels_with(snapshot, config, std::nullopt), "nvidia.com/gpu.machine"), "unknown");
  EXPECT_EQ(value(labels_with(snapshot, config, "\n"), "nvidia.com/gpu.machine"), "");
}

TEST(Labels, ModeRequiresAllGpusToAgree) {
  auto snapshot = node({gpu(kH100), gpu(kH100)});
  EXPECT_EQ(value(labels_with(snapshot, ""), "nvidia.com/gpu.mode"), "compute");
  snapshot.gpus[1].pci_class = 0x030000;
  EXPECT_EQ(value(labels_with(snapshot, ""), "nvidia.com/gpu.mode"), "unknown");
  snapshot.gpus[0].pci_class = 0x030000;
  EXPECT_EQ(value(labels_with(snapshot, ""), "nvidia.com/gpu.mode"), "graphics");
}

TEST(Labels, CliqueRequiresAllGpusInOneClique) {
  auto snapshot = node({gpu(kH100), gpu(kH100), gpu(kH100)});
  snapshot.gpus[0].fabric = snapshot.gpus[2].fabric = inventory::Fabric{"9c6f-5af3", 4026};
  EXPECT_EQ(value(labels_with(snapshot, ""), "nvidia.com/gpu.clique"), "9c6f-5af3.4026");
  snapshot.gpus[1].fabric = inventory::Fabric{"9c6f-5af3", 1};
  EXPECT_EQ(value(labels_with(snapshot, ""), "nvidia.com/gpu.clique"), "(absent)");
}

TEST(Labels, VirtualGpuHasItsHostDriver) {
  auto snapshot = node({gpu(kH100), gpu(kH100)});
  snapshot.gpus[1].vgpu = inventory::VgpuHost{"460.16", "r460_00"};
  const auto labels = labels_with(snapshot, "");
  EXPECT_EQ(value(labels, "nvidia.com/vgpu.present"), "true");
  EXPECT_EQ(value(labels, "nvidia.com/vgpu.host-driver-version"), "460.16");
  EXPECT_EQ(value(labels, "nvidia.com/vgpu.host-driver-branch"), "r460_00");
}

TEST(Labels, PhysicalGpusAreSaidToBeNoneOnlyIfAllAreKnown) {
  auto snapshot = node({gpu(kH100), gpu(kH100)});
  for (auto& one : snapshot.gpus) one.vgpu_known = true;
  EXPECT_EQ(value(labels_with(snapshot, ""), "nvidia.com/vgpu.present"), "false");
  EXPECT_EQ(value(labels_with(snapshot, ""), "nvidia.com/vgpu.host-driver-version"), "(absent)");
  snapshot.gpus[0].vgpu_known = false;
  EXPECT_EQ(value(labels_with(snapshot, ""), "nvidia.com/vgpu.present"), "(absent)");
}

TEST(Labels, ModelWithTheMostGpusIsDescribed) {
  const auto labels = labels_with(node({gpu(kL40S, 46068), gpu(kH100), gpu(kL40S, 46068)}), "");
  EXPECT_EQ(value(labels, "nvidia.com/gpu.product"), "NVIDIA-L40S");
  EXPECT_EQ(value(labels, "nvidia.com/gpu.count"), "2");
  EXPECT_EQ(value(labels, "nvidia.com/gpu.memory"), "46068");
  EXPECT_EQ(labels.at("nvidia.com/gpu.product").subject, "GPU 0,2, of 2 models the first");
  EXPECT_EQ(value(labels, "gpulet.io/gpu.models"), "2");
  EXPECT_EQ(value(labels, "gpulet.io/model.NVIDIA-H100-80GB-HBM3.count"), "1");
  EXPECT_EQ(value(labels, "gpulet.io/model.NVIDIA-L40S.count"), "2");
  EXPECT_EQ(value(labels, "gpulet.io/model.NVIDIA-L40S.memory"), "46068");
  EXPECT_EQ(value(labels, "gpulet.io/model.NVIDIA-H100-80GB-HBM3.memory-bandwidth"), "3300");
  // With equal counts the larger model; a model with unpartitioned GPUs comes first.
  EXPECT_EQ(value(labels_with(node({gpu(kL40S, 46068), gpu(kH100)}), ""), "nvidia.com/gpu.product"),
            "NVIDIA-H100-80GB-HBM3");
  EXPECT_EQ(
      value(labels_with(node({gpu(kL40S, 46068), cut(kH100, {"1g.10gb"}), cut(kH100, {"1g.10gb"})}), ""),
            "nvidia.com/gpu.product"),
      "NVIDIA-L40S");
}

TEST(Labels, ExtendedLabelsCanBeDisabled) {
  for (const auto& [key, label] : labels_with(node({gpu(kH100)}), "gpulet: {labels: {extended: false}}")) {
    EXPECT_FALSE(key.starts_with(kGpuletPrefix)) << key;
  }
}

TEST(Labels, LongNameKeepsItsEnd) {
  const std::string name = "NVIDIA " + std::string(60, 'X');
  const auto labels =
      labels_with(node({gpu(name)}), "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}");
  const auto& product = labels.at("nvidia.com/gpu.product");
  EXPECT_EQ(product.value, "NVIDIA-" + std::string(49, 'X') + "-SHARED");
  EXPECT_EQ(product.original, name + "-SHARED");
  for (const auto& [key, label] : labels) EXPECT_TRUE(is_valid_key(key)) << key;
}

TEST(Labels, SingleRequiresEqualDevices) {
  const std::string yaml = "flags: {migStrategy: single}";
  const std::pair<Snapshot, const char*> invalid[] = {
      {node({cut(kH100, {}), cut(kH100, {})}), "GPU 0-1 without a MIG device"},
      {node({cut(kH100, {"1g.10gb", "2g.20gb"})}), "2 profiles"},
  };
  for (const auto& [snapshot, why] : invalid) {
    const auto labels = labels_with(snapshot, yaml);
    EXPECT_EQ(value(labels, "nvidia.com/gpu.product"), "NVIDIA-H100-80GB-HBM3-MIG-INVALID");
    EXPECT_EQ(labels.at("nvidia.com/gpu.product").subject, why);
    for (const auto* key : {"count", "replicas", "memory"}) {
      EXPECT_EQ(value(labels, "nvidia.com/gpu." + std::string(key)), "0");
    }
    EXPECT_EQ(value(labels, "nvidia.com/gpu.sharing-strategy"), "");
    EXPECT_EQ(value(labels, "nvidia.com/gpu.family"), "hopper");
  }
  const auto labels = labels_with(node({cut(kH100, {"1g.10gb", "1g.10gb"}), cut(kH100, {"1g.10gb"})}), yaml);
  EXPECT_EQ(value(labels, "nvidia.com/gpu.product"), "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb");
  EXPECT_EQ(value(labels, "nvidia.com/gpu.count"), "3");
  EXPECT_EQ(value(labels, "nvidia.com/gpu.replicas"), "1");
  EXPECT_EQ(value(labels, "nvidia.com/gpu.memory"), "9984");
}

TEST(Labels, SingleDescribesTheKindThatIsOffered) {
  struct Row {
    Snapshot node;
    const char *product, *count, *about;
  };
  const Row rows[] = {
      {node({cut(kH100, {"1g.10gb"}), cut(kH100, {"1g.10gb", "1g.10gb"}), gpu(kH100)}),
       "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "3", "3 of GPU 0-1"},
      {node({cut(kH100, {"1g.10gb"}), gpu(kH100), gpu(kH100)}), "NVIDIA-H100-80GB-HBM3", "2",
       "GPU 1-2, others are partitioned"},
      {node({cut(kH100, {"1g.10gb"}), cut(kH100, {})}), "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "1",
       "1 of GPU 0"},
  };
  for (const auto& row : rows) {
    const auto labels = labels_with(row.node, "flags: {migStrategy: single}");
    EXPECT_EQ(value(labels, "nvidia.com/gpu.product"), row.product);
    EXPECT_EQ(value(labels, "nvidia.com/gpu.count"), row.count);
    EXPECT_EQ(value(labels, "nvidia.com/gpu.replicas"), "1");
    EXPECT_EQ(labels.at("nvidia.com/gpu.product").subject, row.about);
  }
}

RC_GTEST_PROP(LabelsProperties, SingleCountsWhatThePluginOffers, ()) {
  const std::vector<Gpu> kinds = {gpu(kH100),
                                  cut(kH100, {}),
                                  cut(kH100, {"1g.10gb"}),
                                  cut(kH100, {"1g.10gb", "1g.10gb"}),
                                  cut(kH100, {"1g.10gb", "3g.40gb"}),
                                  cut(kH100, {"3g.40gb", "3g.40gb"})};
  std::vector<Gpu> gpus;
  for (const auto kind : *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 6))))
    gpus.push_back(kinds[static_cast<std::size_t>(kind)]);
  const auto snapshot = node(gpus);
  const auto shared = *rc::gen::arbitrary<bool>();
  const std::string yaml =
      "flags: {migStrategy: single}\n" +
      std::string(shared ? "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}" : "");
  const auto labels = labels_with(snapshot, yaml);
  std::size_t offered = 0;
  for (const auto& resource : partition::plan_resources(snapshot, test::config_of(yaml)).resources) {
    if (resource.name.str() == "nvidia.com/gpu") offered += resource.devices.size();
  }
  const auto count = std::stoul(value(labels, "nvidia.com/gpu.count"));
  const auto replicas = std::stoul(value(labels, "nvidia.com/gpu.replicas"));
  RC_ASSERT(count * replicas == offered);
}

TEST(Labels, MixedHasEachProfile) {
  const auto labels = labels_with(node({gpu(kH100), cut(kH100, {"1g.10gb", "1g.10gb+me", "1g.10gb"})}),
                                  "flags: {migStrategy: mixed}\n"
                                  "sharing: {timeSlicing: {resources: [{name: mig-1g.10gb, replicas: 3}]}}");
  EXPECT_EQ(value(labels, "nvidia.com/mig-1g.10gb.count"), "2");
  EXPECT_EQ(value(labels, "nvidia.com/mig-1g.10gb.replicas"), "3");
  EXPECT_EQ(value(labels, "nvidia.com/mig-1g.10gb.product"), "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED");
  EXPECT_EQ(value(labels, "nvidia.com/mig-1g.10gb.me.product"), "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.me");
  EXPECT_EQ(value(labels, "nvidia.com/gpu.count"), "2") << "cut up or not";
  EXPECT_EQ(value(labels, "nvidia.com/gpu.replicas"), "1");
  EXPECT_EQ(value(labels_with(node({cut(kH100, {"1g.10gb"})}), "flags: {migStrategy: mixed}"),
                  "nvidia.com/gpu.replicas"),
            "0");
}

// A claim writes no Node.
TEST(Labels, DoNotFollowDevicesThatAreMadeForClaims) {
  for (const char* const strategy : {"none", "single", "mixed"}) {
    const std::string yaml = "version: v1\nflags: {migStrategy: " + std::string(strategy) +
                             "}\ngpulet: {dra: {enabled: true}, partition: [{devices: [1-7], dynamicMig: "
                             "{profiles: [1g.10gb]}}]}\n";
    auto snapshot = test::read_machine("hgx-h100", test::Cut::kUnlike);
    const auto before = plain_labels(labels_with(snapshot, yaml));
    snapshot.gpus[1].mig_devices.clear();
    snapshot.gpus[2].mig_devices.pop_back();
    EXPECT_EQ(plain_labels(labels_with(snapshot, yaml)), before) << strategy;
    EXPECT_EQ(before.at("nvidia.com/mig.capable"), "true") << strategy;
    EXPECT_EQ(before.count("nvidia.com/mig-1g.10gb.count"), 0u) << strategy;
  }
}

TEST(Labels, DescribeOnlyWhatIsNotExcluded) {
  auto snapshot = node({gpu(kL40S), gpu(kL40S), gpu(kH100), cut(kH100, {"1g.10gb"}), gpu(kL40S)});
  const auto labels_without = [&](const std::string& rule) {
    return labels_with(snapshot, "flags: {migStrategy: mixed}\ngpulet: {partition: [" + rule + "]}\n");
  };
  auto labels = labels_without("{devices: [0, 4], exclude: true}");
  EXPECT_EQ(value(labels, "nvidia.com/gpu.count"), "2");
  EXPECT_EQ(value(labels, "nvidia.com/gpu.product"), "NVIDIA-H100-80GB-HBM3");
  EXPECT_EQ(value(labels, "nvidia.com/mig-1g.10gb.count"), "1");
  EXPECT_EQ(value(labels, "gpulet.io/gpu.models"), "2");
  EXPECT_EQ(value(labels, "gpulet.io/model.NVIDIA-L40S.count"), "1");

  labels = labels_without("{model: NVIDIA-H100-80GB-HBM3, exclude: true}");
  EXPECT_EQ(value(labels, "nvidia.com/gpu.count"), "3");
  EXPECT_EQ(value(labels, "nvidia.com/mig-1g.10gb.count"), "(absent)");
  EXPECT_EQ(value(labels, "gpulet.io/gpu.models"), "1");
  EXPECT_EQ(value(labels, "gpulet.io/model.NVIDIA-H100-80GB-HBM3.count"), "(absent)");
  EXPECT_TRUE(labels_without("{exclude: true}").empty()) << "as a node without GPUs";
}

// The labels describe the result of gpulet.partition.
TEST(Labels, FollowPartitionRules) {
  const std::string rules =
      "gpulet:\n  partition:\n"
      "  - {devices: [0], timeSlicing: {replicas: 4, name: gpu.sliced}}\n"
      "  - {devices: [1, 2], mps: {replicas: 2, name: gpu}}\n"
      "  - {devices: [3], mig: {devices: {1g.10gb: 1}}}\n";
  const auto snapshot = node({gpu(kH100), gpu(kH100), gpu(kH100), cut(kH100, {"1g.10gb"})});
  const auto labels = labels_with(snapshot, rules);
  EXPECT_EQ(value(labels, "nvidia.com/mps.capable"), "true");
  EXPECT_EQ(value(labels, "nvidia.com/gpu.replicas"), "2") << "as most of them are shared";
  EXPECT_EQ(value(labels, "nvidia.com/gpu.sharing-strategy"), "mps");
  EXPECT_EQ(value(labels, "nvidia.com/gpu.product"), "NVIDIA-H100-80GB-HBM3-SHARED");
  EXPECT_EQ(value(labels, "nvidia.com/mig.strategy"), "mixed");
  EXPECT_EQ(value(labels, "nvidia.com/mig-1g.10gb.count"), "1");
  const auto single = labels_with(node({cut(kH100, {"1g.10gb"})}),
                                  "gpulet: {partition: [{mig: {devices: {1g.10gb: 1}, strategy: single}}]}");
  EXPECT_EQ(value(single, "nvidia.com/mig.strategy"), "single");
  EXPECT_EQ(value(single, "nvidia.com/gpu.product"), "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb");
}

TEST(Labels, GradeOfMemoryLimits) {
  const auto grade_with = [](const std::string& settings) {
    return value(labels_with(node({gpu(kH100)}), settings), "gpulet.io/gpu.memory-limit");
  };
  const std::string sliced = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}\n";
  EXPECT_EQ(grade_with(sliced), "(absent)");
  EXPECT_EQ(grade_with(sliced + "gpulet: {fraction: {onExceeded: warn}}"), "(absent)");
  EXPECT_EQ(grade_with(sliced + "gpulet: {fraction: {onExceeded: kill}}"), "audited");
  EXPECT_EQ(grade_with("gpulet: {fraction: {onExceeded: kill}}"), "(absent)") << "nothing is shared";
  EXPECT_EQ(grade_with("flags: {mpsRoot: /mps}\nsharing: {mps: {resources: [{name: gpu, replicas: 4}]}}"), "mps");
}

TEST(Labels, DomainIsEveryGpuJoinedByNvlink) {
  auto snapshot = node({gpu(kH100), gpu(kH100), gpu(kH100), gpu(kH100), gpu(kH100)});
  for (unsigned i = 0; i < 5; ++i) snapshot.gpus[i].pci = {0, i + 1, 0, 0};
  EXPECT_EQ(value(labels_with(snapshot, ""), "gpulet.io/gpu.nvlink-domain"), "1");
  const auto link = [&](unsigned a, unsigned b) {
    snapshot.gpus[a].nvlinks.push_back({b, inventory::NvLinkRemote::kGpu, snapshot.gpus[b].pci});
    snapshot.gpus[b].nvlinks.push_back({a, inventory::NvLinkRemote::kGpu, snapshot.gpus[a].pci});
  };
  link(0, 4);
  link(4, 2);
  link(1, 3);
  EXPECT_EQ(value(labels_with(snapshot, ""), "gpulet.io/gpu.nvlink-domain"), "3");
}

TEST(Labels, Classes) {
  const std::pair<std::uint64_t, const char*> classes[] = {
      {3'352'320, "3300"}, {864'096, "860"}, {8'183'808, "8100"}, {99'999, "99"}, {1'000'000, "1000"}};
  for (const auto& [megabytes, expected] : classes) {
    auto snapshot = node({gpu(kH100)});
    snapshot.gpus[0].memory_bandwidth = megabytes * 1'000'000;
    EXPECT_EQ(value(labels_with(snapshot, ""), "gpulet.io/gpu.memory-bandwidth"), expected);
  }
}

TEST(Labels, TimestampIsAnInput) {
  const auto snapshot = node({gpu(kH100)});
  const auto config = test::config_of("");
  const std::map<std::string, std::string> none;
  EXPECT_EQ(value(build_labels({snapshot, config, none, "x", 1700000000}), "nvidia.com/gfd.timestamp"),
            "1700000000");
}

TEST(Labels, Features) {
  EXPECT_EQ(features_text({{"b/2", ""}, {"a/1", "x"}}), "a/1=x\nb/2=\n");
  EXPECT_EQ(features_text({}), "");
}

// A random node with random names.
Snapshot any_node() {
  const std::vector<std::string> names = {
      kH100, kL40S, "NVIDIA A100 (TM)", std::string(70, 'n'), "\xff", *rc::gen::arbitrary<std::string>()};
  std::vector<Gpu> gpus;
  const auto count = *rc::gen::inRange(1, 9);
  for (int i = 0; i < count; ++i) {
    const auto name = *rc::gen::elementOf(names);
    Gpu one = *rc::gen::arbitrary<bool>()
                  ? gpu(name, *rc::gen::element<std::uint64_t>(0, 81559, 40960))
                  : cut(name, *rc::gen::container<std::vector<std::string>>(
                                  rc::gen::element<std::string>("1g.10gb", "1g.10gb+me", "2g.20gb")));
    for (auto& mig : one.mig_devices) mig.decoders = *rc::gen::inRange(0u, 3u);
    one.memory_bandwidth = *rc::gen::element<std::uint64_t>(0, 864'096'000'000, 3'352'320'000'000);
    gpus.push_back(std::move(one));
  }
  return node(std::move(gpus));
}

std::string any_config() {
  const auto strategy = *rc::gen::element<std::string>("none", "single", "mixed");
  const auto sharing = *rc::gen::element<std::string>(
      "", "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}, {name: mig-1g.10gb, replicas: 2}]}}",
      "sharing: {mps: {renameByDefault: true, resources: [{name: gpu, replicas: 4}]}}");
  return "flags: {mpsRoot: /mps, migStrategy: " + strategy + "}\n" + sharing;
}

RC_GTEST_PROP(LabelProperties, KubernetesTakesEveryOne, ()) {
  for (const auto& [key, label] : labels_with(any_node(), any_config())) {
    RC_ASSERT(is_valid_key(key));
    RC_ASSERT(is_valid_value(label.value));
    RC_ASSERT(label.rule != nullptr);
    RC_ASSERT(label.rule == find_rule(key));
    const bool told = label.original != label.value;
    RC_ASSERT(told);
  }
}

RC_GTEST_PROP(LabelProperties, TheOrderOfTheGpusIsNothing, ()) {
  const auto snapshot = any_node();
  const auto config = any_config();
  std::vector<Gpu> gpus = snapshot.gpus;
  for (std::size_t i = gpus.size(); i > 1; --i) {
    std::swap(gpus[i - 1], gpus[*rc::gen::inRange<std::size_t>(0, i)]);
  }
  RC_ASSERT(plain_labels(labels_with(node(std::move(gpus)), config)) ==
            plain_labels(labels_with(snapshot, config)));
}

}  // namespace

namespace {

// The expressions of Kubernetes.
bool as_kubernetes(const std::string& value) {
  static const std::regex form("(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?");
  return value.size() <= 63 && std::regex_match(value, form);
}

TEST(Sanitise, MatchesNvidiasNames) {
  EXPECT_EQ(sanitise_value("NVIDIA H100 80GB HBM3"), "NVIDIA-H100-80GB-HBM3");
  EXPECT_EQ(sanitise_value("Tesla V100-SXM2-32GB"), "Tesla-V100-SXM2-32GB");
  EXPECT_EQ(sanitise_value("GeForce  RTX (TM)  2080"), "GeForce-RTX-TM-2080");
  EXPECT_EQ(sanitise_value("NVIDIA A100", "-MIG-1g.10gb"), "NVIDIA-A100-MIG-1g.10gb");
  EXPECT_EQ(sanitise_value(""), "");
}

TEST(Sanitise, FixesValuesThatKubernetesRefuses) {
  EXPECT_EQ(sanitise_value("(R) NVIDIA."), "R-NVIDIA");
  EXPECT_EQ(sanitise_value("-.x._"), "x");
  EXPECT_EQ(sanitise_value("\xc2\xae", "-SHARED"), "SHARED");
  const std::string longest(63, 'a');
  EXPECT_EQ(sanitise_value(longest), longest);
  EXPECT_EQ(sanitise_value(longest + "b"), longest);
  EXPECT_EQ(sanitise_value(std::string(80, 'a'), "-SHARED"), std::string(56, 'a') + "-SHARED")
      << "the end counts";
  EXPECT_EQ(sanitise_value(std::string(62, 'a') + " b"), std::string(62, 'a'))
      << "no dash is left at the end";
}

TEST(Sanitise, PartsOfKeys) {
  EXPECT_EQ(sanitise_key_part("NVIDIA H100", 40), "NVIDIA-H100");
  EXPECT_EQ(sanitise_key_part("", 40), "unnamed");
  EXPECT_EQ(sanitise_key_part("///", 40), "unnamed");
  const std::string shared(50, 'x');
  const auto one = sanitise_key_part(shared + "1", 40), other = sanitise_key_part(shared + "2", 40);
  EXPECT_EQ(one.size(), 40u);
  EXPECT_NE(one, other);
}

TEST(Sanitise, Keys) {
  for (const char* key : {"nvidia.com/gpu.product", "gpulet.io/model.NVIDIA-H100.count", "a", "a-b.c/d"}) {
    EXPECT_TRUE(is_valid_key(key)) << key;
  }
  for (const char* key : {"", "/", "nvidia.com/", "/gpu", "Nvidia.com/gpu", "nvidia..com/gpu", "-a.b/c",
                          "a.b-/c", "a/b/c", "nvidia.com/.gpu", "nvidia.com/gpu."}) {
    EXPECT_FALSE(is_valid_key(key)) << key;
  }
  EXPECT_TRUE(is_valid_key("n.io/" + std::string(63, 'a')));
  EXPECT_FALSE(is_valid_key("n.io/" + std::string(64, 'a')));
}

// From characters of names, and from any others.
rc::Gen<std::string> anything() {
  return rc::gen::oneOf(rc::gen::arbitrary<std::string>(),
                        rc::gen::container<std::string>(rc::gen::elementOf(std::string("aZ09-_. /\n+(é"))));
}

RC_GTEST_PROP(Sanitise, EveryValueIsOneThatKubernetesTakes, ()) {
  const auto raw = *anything();
  const auto suffix = *rc::gen::elementOf(std::vector<std::string>{"", "-SHARED", "-MIG-1g.10gb-SHARED"});
  const auto value = sanitise_value(raw, suffix);
  RC_ASSERT(as_kubernetes(value));
  RC_ASSERT(is_valid_value(value));
  RC_ASSERT(value.ends_with(suffix) || (!suffix.empty() && suffix.substr(1) == value));
  RC_ASSERT(sanitise_value(value) == value);
}

RC_GTEST_PROP(Sanitise, ValidTextIsUnchanged, ()) {
  const auto raw = *anything();
  RC_ASSERT(is_valid_value(raw) == as_kubernetes(raw));
  if (is_valid_value(raw)) RC_ASSERT(sanitise_value(raw) == raw);
}

RC_GTEST_PROP(Sanitise, EveryPartOfAKeyFits, ()) {
  const auto part = sanitise_key_part(*anything(), *rc::gen::inRange<std::size_t>(16, 50));
  RC_ASSERT(!part.empty());
  RC_ASSERT(is_valid_key("gpulet.io/model." + part));
}

}  // namespace
}  // namespace gpulet::labels

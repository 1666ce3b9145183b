#include "cdi/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cdi/spec.h"
#include "cdi/test_driver_root.h"
#include "cdi/test_node.h"

namespace gpulet::cdi {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Not;

GeneratedSpec generate_or_fail(const TestNode& node, const GenerateOptions& options = {}) {
  const auto made = generate(node.snapshot, node.driver, node.files, options);
  EXPECT_TRUE(made) << made.error().full_message();
  if (!made) return {};
  for (const auto& text : {to_json(made->spec), to_yaml(made->spec)}) {
    for (const auto& problem : read_spec(text, "made").problems) ADD_FAILURE() << problem.problem_text();
  }
  return *made;
}

std::vector<std::string> device_names(const Spec& spec) {
  std::vector<std::string> all;
  for (const auto& device : spec.devices) all.push_back(device.name);
  return all;
}
const Device& find_device(const Spec& spec, const std::string& name) {
  const auto found = std::ranges::find(spec.devices, name, &Device::name);
  if (found != spec.devices.end()) return *found;
  static const Device kNone;
  ADD_FAILURE() << "no device " << name;
  return kNone;
}
std::vector<std::string> device_node_paths(const ContainerEdits& edits) {
  std::vector<std::string> paths;
  for (const auto& node : edits.device_nodes) paths.push_back(node.path);
  return paths;
}

// In the edits of all containers of the document, so once in each.
TEST(Generate, MemoryLimitsAddOneHook) {
  const TestNode node(2);
  GenerateOptions options;
  const auto without = generate_or_fail(node, options).spec;
  options.hooks.limit_socket = "/run/gpulet/limits/agent.sock";
  auto with = generate_or_fail(node, options).spec;
  const auto limits = [](const HookEdit& hook) { return hook.hook_name == "createRuntime"; };
  EXPECT_EQ(std::ranges::count_if(without.edits.hooks, limits), 0);
  EXPECT_EQ(std::erase_if(with.edits.hooks, limits), 1u);
  EXPECT_EQ(with, without);
  options.hooks.path = "/usr/bin/nvidia-cdi-hook";
  EXPECT_FALSE(generate(node.snapshot, node.driver, node.files, options));
}

TEST(Generate, WholeGpus) {
  const auto spec = generate_or_fail(TestNode(2)).spec;
  EXPECT_EQ(spec.kind, "nvidia.com/gpu");
  EXPECT_EQ(spec.version, "0.5.0");
  EXPECT_THAT(device_names(spec), ElementsAre("0", "1", "GPU-00000000", "GPU-00000001", "all"));
  EXPECT_THAT(device_node_paths(find_device(spec, "0").edits),
              ElementsAre("/dev/nvidia0", "/dev/dri/card0", "/dev/dri/renderD128"));
  EXPECT_EQ(find_device(spec, "0").edits, find_device(spec, "GPU-00000000").edits);
  EXPECT_THAT(device_node_paths(find_device(spec, "all").edits),
              ElementsAre("/dev/nvidia0", "/dev/nvidia1", "/dev/dri/card0", "/dev/dri/card1",
                          "/dev/dri/renderD128", "/dev/dri/renderD129"));
  EXPECT_THAT(device_node_paths(spec.edits), ElementsAre("/dev/nvidia-modeset", "/dev/nvidia-uvm",
                                                         "/dev/nvidia-uvm-tools", "/dev/nvidiactl"));
  EXPECT_THAT(spec.edits.env,
              ElementsAre("NVIDIA_CTK_LIBCUDA_DIR=/usr/lib/x86_64-linux-gnu", "NVIDIA_VISIBLE_DEVICES=void"));
  ASSERT_EQ(spec.edits.hooks.size(), 1u);
  EXPECT_THAT(spec.edits.hooks[0].args,
              IsSupersetOf({"--host-driver-version", "570.124.06", "--host-cuda-version", "12.8",
                            "--host-arch", "9.0", "--host-brand", "nvidiartx"}));
  EXPECT_THAT(generate_or_fail(TestNode(2)).warnings, IsEmpty());
}

TEST(Generate, NodesAndMountsHaveNvidiasFields) {
  const auto spec = generate_or_fail(TestNode(1)).spec;
  const auto& edits = find_device(spec, "0").edits;
  EXPECT_EQ(edits.device_nodes[0], (NodeEdit{"/dev/nvidia0", "", "", 195, 0, 0666, "rwm", {}, {}}));
  EXPECT_EQ(edits.device_nodes[1], (NodeEdit{"/dev/dri/card0", "", "", 195, 0, 0660, "rwm", {}, 44}));
  const auto smi = std::ranges::find(spec.edits.mounts, "/usr/bin/nvidia-smi", &MountEdit::container_path);
  ASSERT_NE(smi, spec.edits.mounts.end());
  EXPECT_EQ(smi->host_path, "/run/driver/usr/bin/nvidia-smi");
  EXPECT_THAT(smi->options, ElementsAre("ro", "nosuid", "nodev", "rbind", "rprivate"));
  const auto socket =
      std::ranges::find(spec.edits.mounts, "/run/nvidia-persistenced/socket", &MountEdit::container_path);
  ASSERT_NE(socket, spec.edits.mounts.end());
  EXPECT_THAT(socket->options, ElementsAre("nosuid", "nodev", "rbind", "rprivate", "noexec"));
  EXPECT_EQ(spec.edits.mounts.size(), 42u);
}

TEST(Generate, UsesADifferentDevRootAsTheHostPath) {
  TestNode node(1);
  node.files.gpus[0].node->host_path = "/run/driver/dev/nvidia0";
  const auto spec = generate_or_fail(node).spec;
  EXPECT_EQ(find_device(spec, "0").edits.device_nodes[0].host_path, "/run/driver/dev/nvidia0");
}

TEST(Generate, GivesMigParentsNoDevice) {
  GenerateOptions options;
  options.names = {NameStrategy::kTypeIndex};
  const auto spec = generate_or_fail(TestNode(2, 1), options).spec;
  EXPECT_THAT(device_names(spec), ElementsAre("all", "gpu1", "mig0:0", "mig0:1", "mig0:2", "mig0:3", "mig0:4",
                                              "mig0:5", "mig0:6"));
  EXPECT_THAT(device_node_paths(find_device(spec, "mig0:1").edits),
              ElementsAre("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap5", "/dev/nvidia-caps/nvidia-cap6"));
  // Only a profile with +gfx supports graphics.
  EXPECT_THAT(device_node_paths(find_device(spec, "mig0:0").edits), Contains("/dev/dri/card0"));
  EXPECT_THAT(find_device(spec, "mig0:1").edits.hooks, IsEmpty());
  EXPECT_EQ(find_device(spec, "mig0:0").edits.device_nodes.back().file_mode, 0444u);
}

TEST(Generate, MakesTheLinksOfAllInOneProcess) {
  const auto spec = generate_or_fail(TestNode(3)).spec;
  ASSERT_EQ(find_device(spec, "all").edits.hooks.size(), 1u);
  EXPECT_THAT(find_device(spec, "all").edits.hooks[0].args,
              ElementsAre("gpulet-hook", "create-symlinks", "--link",
                          "../card0::/dev/dri/by-path/pci-0000:00:00.0-card", "--link",
                          "../card1::/dev/dri/by-path/pci-0000:01:00.0-card", "--link",
                          "../card2::/dev/dri/by-path/pci-0000:02:00.0-card"));
  EXPECT_THAT(find_device(spec, "1").edits.hooks[0].args,
              ElementsAre("gpulet-hook", "create-symlinks", "--link",
                          "../card1::/dev/dri/by-path/pci-0000:01:00.0-card"));
}

TEST(Generate, ExcludedGpusAreNotInAll) {
  GenerateOptions options;
  options.names = {NameStrategy::kIndex};
  struct Case {
    std::vector<std::size_t> excluded;
    std::vector<std::string> ids, devices, nodes;  // nodes: of `all`
    std::size_t warnings;
  };
  const std::vector<Case> cases = {
      {{1}, {"all"}, {"1", "2", "all"}, {"/dev/nvidia2", "/dev/dri/card2", "/dev/dri/renderD130"}, 1},
      {{0}, {"0:1", "2"}, {"0:1", "2", "all"}, {"/dev/nvidia2", "/dev/dri/card2", "/dev/dri/renderD130"}, 1},
      {{1}, {"1"}, {"1"}, {}, 1},
      {{1, 2}, {"1", "2"}, {"1", "2"}, {}, 2},
      {{0}, {"1"}, {"1", "all"}, {"/dev/nvidia1", "/dev/dri/card1", "/dev/dri/renderD129"}, 0},
  };
  for (const auto& one : cases) {
    TestNode node(3, 1);
    node.snapshot.gpus[0].mig_devices.resize(one.ids.front() == "all" ? 0 : 2);
    for (const auto i : one.excluded)
      node.snapshot.gpus[i].excluded = "is excluded by the rule at x.yaml:3:5";
    options.device_ids = one.ids;
    const auto made = generate_or_fail(node, options);
    const auto about = testing::PrintToString(one.ids) + " without " + testing::PrintToString(one.excluded);
    EXPECT_THAT(device_names(made.spec), ElementsAreArray(one.devices)) << about;
    EXPECT_EQ(made.warnings.size(), one.warnings) << about;
    if (one.nodes.empty()) continue;
    const auto& all = find_device(made.spec, "all").edits;
    EXPECT_THAT(device_node_paths(all), ElementsAreArray(one.nodes)) << about;
    EXPECT_EQ(std::ranges::count(all.hooks.at(0).args, "--link"), 1) << about;
  }
  TestNode node(2);
  node.snapshot.gpus[1].excluded = "is excluded by the rule at x.yaml:3:5";
  EXPECT_THAT(generate_or_fail(node).warnings,
              ElementsAre("GPU 1 is not in the device all: it is excluded by the rule at x.yaml:3:5"));
  EXPECT_THAT(generate_or_fail(node, {.all_device = false}).warnings, IsEmpty());
}

TEST(Generate, EveryHookHasAnEnvironment) {
  for (const char* path : {"/usr/bin/gpulet-hook", "/usr/bin/nvidia-cdi-hook", "/usr/bin/nvidia-ctk"}) {
    GenerateOptions options;
    options.hooks.path = path;
    options.hooks.enabled = {"chmod"};
    const auto spec = generate_or_fail(TestNode(2, 1), options).spec;
    std::size_t hooks = 0;
    const auto check = [&](const ContainerEdits& edits) {
      for (const auto& hook : edits.hooks) EXPECT_FALSE(hook.env.empty()) << hook.args[1];
      hooks += edits.hooks.size();
    };
    check(spec.edits);
    for (const auto& each : spec.devices) check(each.edits);
    EXPECT_GE(hooks, 5u);
  }
}

TEST(Generate, AdditionalGidsRaiseTheVersion) {
  GenerateOptions options;
  options.additional_gids = true;
  const auto spec = generate_or_fail(TestNode(1), options).spec;
  EXPECT_EQ(spec.version, "0.7.0");
  EXPECT_THAT(find_device(spec, "0").edits.additional_gids, ElementsAre(44, 105));
  EXPECT_THAT(find_device(generate_or_fail(TestNode(1)).spec, "0").edits.additional_gids, IsEmpty());
}

TEST(Generate, DevicesById) {
  const TestNode node(3, 1);
  const auto with = [&](std::vector<std::string> ids) {
    GenerateOptions options;
    options.names = {NameStrategy::kIndex};
    options.device_ids = std::move(ids);
    return generate(node.snapshot, node.driver, node.files, options);
  };
  EXPECT_THAT(device_names(with({"1"})->spec), ElementsAre("1", "all"));
  EXPECT_THAT(device_names(with({"GPU-00000002", "gpu1", "2"})->spec), ElementsAre("1", "2", "all"));
  EXPECT_THAT(device_names(with({"0:3", "MIG-0-4"})->spec), ElementsAre("0:3", "0:4", "all"));
  EXPECT_EQ(with({"0"})->spec.devices.size(), 8u);  // a MIG parent selects its MIG devices
  EXPECT_EQ(with({"7"}).error().code(), Code::kNotFound);
  const auto none = with({"none"});
  EXPECT_THAT(device_names(none->spec), ElementsAre("none"));
  EXPECT_THAT(find_device(none->spec, "none").edits.env, ElementsAre("NVCT_EMPTY_DEVICE="));
}

TEST(Generate, LeavesOutMissingItemsWithAWarning) {
  TestNode node(4, 2);
  node.files.gpus[0].mig[{8, 0}].pop_back();
  node.files.gpus[2].node.reset();
  node.snapshot.gpus[3].unreadable = Error(Code::kDeviceLost, "gone");
  node.snapshot.gpus[3].model.clear();
  GenerateOptions options;
  options.names = {NameStrategy::kIndex};
  const auto made = generate_or_fail(node, options);
  EXPECT_EQ(made.spec.devices.size(), 6u + 7u + 1u);
  EXPECT_THAT(device_names(made.spec), Not(Contains("0:1")));
  EXPECT_THAT(made.warnings,
              ElementsAre("MIG device 0:1 is left out: its capabilities in /dev/nvidia-caps do not exist",
                          "GPU 2 is left out: there is no device node /dev/nvidia2",
                          "GPU 3 is left out: it cannot be read"));
  for (auto& gpu : node.files.gpus) gpu.node.reset();
  EXPECT_EQ(generate(node.snapshot, node.driver, node.files, options).error().code(), Code::kNotFound);
}

TEST(Generate, OtherModes) {
  TestNode node(1);
  node.files = {};
  GenerateOptions options;
  options.vendor = "management.nvidia.com";
  for (const auto mode :
       {Mode::kGds, Mode::kMofed, Mode::kGdrcopy, Mode::kNvswitch, Mode::kManagement, Mode::kWsl}) {
    options.mode = mode;
    options.device_class = mode_class(mode);
    EXPECT_EQ(generate(node.snapshot, node.driver, node.files, options).error().code(), Code::kNotFound);
    TestNode other = node;
    other.files.nodes = {TestNode::test_device_node("/dev/something0", 1)};
    const auto spec = generate_or_fail(other, options).spec;
    EXPECT_EQ(spec.kind, "management.nvidia.com/" + std::string(mode_class(mode)));
    EXPECT_THAT(device_names(spec), ElementsAre("all"));
    EXPECT_THAT(device_node_paths(spec.devices[0].edits), ElementsAre("/dev/something0"));
    const bool driver = mode == Mode::kManagement || mode == Mode::kWsl;
    EXPECT_EQ(spec.edits.mounts.empty(), !driver) << mode_name(mode);
    EXPECT_EQ(spec.edits.hooks.empty(), !driver) << mode_name(mode);
    EXPECT_THAT(spec.edits.env, Contains("NVIDIA_VISIBLE_DEVICES=void"));
    EXPECT_EQ(*parse_mode(mode_name(mode)), mode);
  }
  EXPECT_EQ(parse_mode("csv").error().code(), Code::kUnsupported);
  EXPECT_EQ(parse_mode("nvm").error().code(), Code::kInvalidArgument);
}

TEST(Generate, ImexChannels) {
  TestNode node(1);
  for (const unsigned id : {0u, 3u, 12u}) {
    node.files.channels.emplace_back(
        id, TestNode::test_device_node("/dev/nvidia-caps-imex-channels/channel" + std::to_string(id), id));
  }
  GenerateOptions options;
  options.mode = Mode::kImex;
  options.device_class = "imex-channel";
  const auto spec = generate_or_fail(node, options).spec;
  EXPECT_THAT(device_names(spec), ElementsAre("0", "12", "3", "all"));
  EXPECT_EQ(find_device(spec, "12").edits.device_nodes[0].major, 195);  // nvidia-ctk leaves it out
  EXPECT_EQ(find_device(spec, "all").edits.device_nodes.size(), 3u);
  options.device_ids = {"channel3"};
  options.all_device = false;
  EXPECT_THAT(device_names(generate_or_fail(node, options).spec), ElementsAre("3"));
  options.device_ids = {"4"};
  EXPECT_EQ(generate(node.snapshot, node.driver, node.files, options).error().code(), Code::kNotFound);
}

TEST(Generate, ChecksKinds) {
  GenerateOptions options;
  options.vendor = "nvidia com";
  const TestNode node(1);
  EXPECT_EQ(generate(node.snapshot, node.driver, node.files, options).error().code(), Code::kInvalidArgument);
}

TEST(Generate, SameInputSameBytes) {
  EXPECT_EQ(to_json(generate_or_fail(TestNode(8, 4)).spec), to_json(generate_or_fail(TestNode(8, 4)).spec));
  TestNode shuffled(8, 4);
  std::ranges::reverse(shuffled.driver.libraries);
  std::ranges::reverse(shuffled.files.control);
  EXPECT_EQ(to_yaml(generate_or_fail(shuffled).spec), to_yaml(generate_or_fail(TestNode(8, 4)).spec));
}

// From a real tree, through collect_node_files and make_node_specs.
class NodeSpecsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!tree.make_node("/dev/nvidiactl", 195, 255))
      GTEST_FAIL() << "this test creates device nodes; run it as root";
    tree.make_node("/dev/nvidia0", 195, 0);
    tree.make_node("/dev/nvidia-uvm", 510, 0);
    tree.make_file("/usr/lib/x86_64-linux-gnu/libcuda.so.570.124.06");
    tree.make_file("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.124.06");
    node.snapshot.gpus[0].mig_enabled = false;
  }
  NodeSpecs specs() {
    const auto roots = tree.open_tree("/host");
    return make_node_specs(roots, node.snapshot, options);
  }

  TestTree tree;
  TestNode node{1};
  NodeSpecOptions options;
};

TEST_F(NodeSpecsTest, GeneratesOnlyExistingClasses) {
  auto made = specs();
  EXPECT_FALSE(made.no_gpus) << made.no_gpus->full_message();
  ASSERT_EQ(made.specs.size(), 1u);
  EXPECT_EQ(made.specs[0].kind, "k8s.device-plugin.nvidia.com/gpu");
  EXPECT_THAT(device_names(made.specs[0]), ElementsAre("GPU-00000000"));
  EXPECT_EQ(made.specs[0].devices[0].edits.device_nodes[0].host_path, "/host/dev/nvidia0");
  tree.make_node("/dev/nvidia-fs0", 500, 0);
  tree.make_node("/dev/gdrdrv", 501, 0);
  tree.make_node("/dev/nvidia-caps-imex-channels/channel0", 502, 0);
  options.gds = options.mofed = options.gdrcopy = true;
  options.names = NameStrategy::kIndex;
  made = specs();
  std::vector<std::string> kinds;
  for (const auto& spec : made.specs) kinds.push_back(spec.kind);
  EXPECT_THAT(kinds, ElementsAre("k8s.device-plugin.nvidia.com/gpu", "k8s.device-plugin.nvidia.com/gds",
                                 "k8s.device-plugin.nvidia.com/gdrcopy",
                                 "k8s.device-plugin.nvidia.com/imex-channel"));
  EXPECT_THAT(device_names(made.specs[0]), ElementsAre("0"));
  EXPECT_THAT(made.warnings, Contains(testing::HasSubstr("mofed")));
}

TEST_F(NodeSpecsTest, OffersNoGpusWithoutTheLoadedDriversFiles) {
  node.snapshot.driver.version = "580.1";
  tree.make_node("/dev/nvidia-caps-imex-channels/channel0", 502, 0);
  const auto made = specs();
  ASSERT_TRUE(made.no_gpus);
  EXPECT_EQ(made.no_gpus->code(), Code::kNotFound);
  EXPECT_EQ(made.specs.size(), 1u);  // the channels need no driver files
}

TEST(FeatureFlags, AcceptsNvidiasAndItsOwn) {
  DriverFileOptions driver;
  bool groups = false;
  for (const char* flag :
       {"enable-explicit-driver-libraries", "disable-ipc-discoverer", "disable-nvsandboxutils",
        "enable-coherent-annotations", "disable-multiple-csv-devices", "additional-gids-for-device-nodes"}) {
    EXPECT_TRUE(apply_feature_flag(flag, driver, groups)) << flag;
  }
  EXPECT_TRUE(driver.explicit_libraries);
  EXPECT_FALSE(driver.sockets);
  EXPECT_TRUE(groups);
  EXPECT_TRUE(apply_feature_flag("no-additional-gids-for-device-nodes", driver, groups));
  EXPECT_FALSE(groups);
  EXPECT_FALSE(apply_feature_flag("additional-gids", driver, groups));
}

}  // namespace
}  // namespace gpulet::cdi

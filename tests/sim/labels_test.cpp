// The node's labels as a file, written by the agent while GPUs change, and by the drop-in for NVIDIA's
// program.
#include <signal.h>

#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

class SimLabels : public NodeTest {
 protected:
  std::string labels_path() { return sim_node().directory() + "/features.d/gfd"; }
  // The environment of both programs.
  std::vector<std::string> label_environment() {
    return {"GFD_OUTPUT_FILE=" + labels_path(), "USE_NODE_FEATURE_API=false",
            "GFD_MACHINE_TYPE_FILE=" + sim_node().driver_root() + "/sys/class/dmi/id/product_name",
            "GPULET_HEALTH_LIVENESS_INTERVAL=1s"};
  }
  sim::AgentOptions agent_options(std::vector<std::string> arguments = {}) {
    auto variables = label_environment();
    variables.emplace_back("GPULET_LABELS=file");
    return {.arguments = std::move(arguments), .environment = std::move(variables)};
  }
  sim::AgentOptions discovery_options(std::vector<std::string> arguments) {
    return {.name = "gpu-feature-discovery",
            .arguments = std::move(arguments),
            .environment = label_environment()};
  }
  std::string labels_file() { return read_file(labels_path()).value_or(""); }
  std::string label_value(const std::string& key) {
    for (const auto& line : text::split(labels_file(), '\n')) {
      if (line.starts_with(key + "=")) return line.substr(key.size() + 1);
    }
    return "(absent)";
  }
  bool label_becomes(const std::string& key, const std::string& wanted) {
    const bool was = becomes_true([&] { return label_value(key) == wanted; });
    if (!was) ADD_FAILURE() << key << " is " << label_value(key) << "\n" << labels_file();
    return was;
  }
};

TEST_F(SimLabels, TheAgentFollowsMigChanges) {
  bring_up_node();
  start_agent(agent_options({"--mig-strategy=mixed"}));
  ASSERT_TRUE(label_becomes("nvidia.com/gpu.count", "8"));
  EXPECT_EQ(label_value("nvidia.com/gpu.product"), "NVIDIA-H100-80GB-HBM3");
  EXPECT_EQ(label_value("nvidia.com/gpu.mode"), "compute");
  EXPECT_NE(label_value("nvidia.com/gpu.machine"), "unknown");
  EXPECT_EQ(label_value("nvidia.com/mig-1g.10gb.count"), "(absent)");
  create_mig_devices(3, {"1g.10gb", "1g.10gb", "1g.10gb"});
  ASSERT_TRUE(label_becomes("nvidia.com/mig-1g.10gb.count", "3"));
  EXPECT_EQ(label_value("nvidia.com/mig-1g.10gb.product"), "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb");
  remove_mig_devices(3);
  ASSERT_TRUE(label_becomes("nvidia.com/mig-1g.10gb.count", "(absent)"));

  // `gpulet labels` prints the same, except for the timestamp and host name.
  const auto said = sim::program_output({std::string(GPULET_PROGRAMS) + "/gpulet", "labels", "--mig-strategy",
                                         "mixed", "--driver-root", sim_node().driver_root()});
  ASSERT_TRUE(said) << said.error().full_message();
  const auto without = [](const std::string& text) {
    std::vector<std::string> lines;
    for (const auto& line : text::split(text, '\n')) {
      if (!line.starts_with("nvidia.com/gpu.machine=") && !line.starts_with("nvidia.com/gfd.timestamp=")) {
        lines.push_back(line);
      }
    }
    return text::join(lines, "\n");
  };
  EXPECT_EQ(without(*said), without(labels_file()));

  allow_agent_exit();
  ASSERT_TRUE(sim_node().stop_agent());
  EXPECT_EQ(label_value("nvidia.com/gpu.count"), "8") << "labels outlive the agent";
}

TEST_F(SimLabels, ALostGpuStillCounts) {
  bring_up_node();
  start_agent(agent_options());
  ASSERT_TRUE(label_becomes("nvidia.com/gpu.count", "8"));
  ASSERT_TRUE(sim::control::post_xid(machine_state(), 0, kFallenOffTheBus));
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(0)}));
  EXPECT_EQ(label_value("nvidia.com/gpu.count"), "8");
}

TEST_F(SimLabels, FollowsAChangedConfig) {
  bring_up_node();
  write_config("version: v1\n");
  start_agent(agent_options({"--config-file", config_path()}));
  ASSERT_TRUE(label_becomes("nvidia.com/gpu.replicas", "1"));
  write_config("version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}\n");
  ASSERT_TRUE(label_becomes("nvidia.com/gpu.replicas", "4"));
  EXPECT_EQ(label_value("nvidia.com/gpu.product"), "NVIDIA-H100-80GB-HBM3-SHARED");
  write_config("version: v1\nflags: {gfd: {noTimestamp: true}}\n");
  ASSERT_TRUE(label_becomes("nvidia.com/gfd.timestamp", "(absent)"));
}

TEST_F(SimLabels, UnderNvidiasNameOneshotExits) {
  bring_up_node();
  start_agent(discovery_options({"-oneshot", "--no-timestamp", "-mig-strategy=single"}));
  allow_agent_exit();
  const auto exit = sim_node().wait_agent(kTestTimeout);
  ASSERT_TRUE(exit) << exit.error().full_message();
  EXPECT_EQ(exit->code, 0) << agent_log();
  EXPECT_EQ(label_value("nvidia.com/gpu.count"), "8");
  EXPECT_EQ(label_value("nvidia.com/mig.strategy"), "single");
  EXPECT_EQ(label_value("nvidia.com/gfd.timestamp"), "(absent)");
}

TEST_F(SimLabels, UnderNvidiasNameItFollowsChanges) {
  bring_up_node();
  write_config("version: v1\nflags: {migStrategy: mixed, gfd: {sleepInterval: 1s}}\n");
  const auto other = sim_node().directory() + "/other";
  start_agent(discovery_options({"-config-file=" + config_path(), "-o=" + other}));
  allow_agent_exit();
  ASSERT_TRUE(becomes_true([&] { return std::filesystem::exists(other); }));
  EXPECT_FALSE(std::filesystem::exists(labels_path())) << "a flag goes before the variable";
  const auto holds = [&](const std::string& line) {
    return becomes_true([&] { return read_file(other).value_or("").find(line + "\n") != std::string::npos; });
  };
  create_mig_devices(0, {"3g.40gb", "3g.40gb"});
  ASSERT_TRUE(holds("nvidia.com/mig-3g.40gb.count=2"));
  write_config(
      "version: v1\nflags: {migStrategy: mixed, gfd: {sleepInterval: infinite}}\n"
      "sharing: {timeSlicing: {resources: [{name: mig-3g.40gb, replicas: 2}]}}\n");
  sim_node().signal_agent(SIGHUP);
  ASSERT_TRUE(holds("nvidia.com/mig-3g.40gb.replicas=2"));
  ASSERT_TRUE(sim_node().stop_agent());
  EXPECT_TRUE(std::filesystem::exists(other)) << "labels outlive the program";
}

// GPUs that are passed through to virtual machines have no driver here: NVML is not asked.
TEST_F(SimLabels, UnderNvidiasNameItFindsPassedThroughGpus) {
  namespace fs = std::filesystem;
  bring_up_node();
  const fs::path sys = sim_node().driver_root() + "/sys/bus/pci";
  fs::create_directories(sys / "drivers/vfio-pci");
  const auto bind = [&](const fs::path& device, const char* driver) {
    fs::remove(device / "driver");
    fs::create_directory_symlink(std::string("../../../bus/pci/drivers/") + driver, device / "driver");
  };
  std::vector<fs::path> gpus;
  for (const auto& device : fs::directory_iterator(sys / "devices")) {
    if (fs::is_symlink(device.path() / "driver") &&
        read_file(device.path() / "class").value_or("") == "0x030200\n")
      gpus.push_back(device.path());
  }
  ASSERT_EQ(gpus.size(), 8u);
  for (std::size_t i = 0; i < 7; ++i) bind(gpus[i], "vfio-pci");
  ASSERT_TRUE(sim_node().run_gpulet_sim({"fail", "init", "9"}));
  start_agent(discovery_options({"--device-discovery-strategy=vfio", "--sleep-interval=1s"}));
  ASSERT_TRUE(label_becomes("nvidia.com/gpu.count", "7"));
  EXPECT_EQ(label_value("nvidia.com/gpu.product"), "GH100-H100-SXM5-80GB");
  EXPECT_EQ(label_value("nvidia.com/gpu.mode"), "compute");
  EXPECT_EQ(label_value("nvidia.com/mig.capable"), "false");
  EXPECT_EQ(label_value("nvidia.com/cuda.driver-version.major"), "unknown");
  for (const auto* key : {"gpu.memory", "gpu.family", "gpu.compute.major", "cuda.runtime-version.full"})
    EXPECT_EQ(label_value("nvidia.com/" + std::string(key)), "(absent)") << key;
  bind(gpus[0], "nvidia");
  ASSERT_TRUE(label_becomes("nvidia.com/gpu.count", "6"));
  allow_agent_exit();
}

TEST_F(SimLabels, RefusesTheObjectWithoutACluster) {
  bring_up_node();
  start_agent(discovery_options({"--use-node-feature-api=true", "--node-name=n1"}));
  allow_agent_exit();
  const auto exit = sim_node().wait_agent(kTestTimeout);
  ASSERT_TRUE(exit) << exit.error().full_message();
  EXPECT_EQ(exit->code, 1);
  EXPECT_NE(agent_log().find("KUBERNETES_SERVICE_HOST"), std::string::npos) << agent_log();
}

}  // namespace
}  // namespace gpulet::tests

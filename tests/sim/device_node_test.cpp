// Device nodes that come late, go, or never come: specs and offers follow them, and the agent creates what it
// may.
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/file.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

constexpr const char* kSpecFile = "/k8s.device-plugin.nvidia.com-gpu.json";
constexpr const char* kNotCreated = "--create-device-nodes=false";

class SimDeviceNodes : public NodeTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root, for device nodes";
    bring_up_node();
  }
  std::string spec_directory() const { return std::filesystem::path(config_path()).parent_path() / "cdi"; }
  bool is_in_spec(const std::string& path) const {
    const auto text = read_file(spec_directory() + kSpecFile);
    return text && text->find("\"" + path + "\"") != std::string::npos;
  }
  bool has_node(const std::string& path) {
    struct stat status{};
    return ::stat((sim_node().driver_root() + path).c_str(), &status) == 0 && S_ISCHR(status.st_mode);
  }
  void change(std::vector<std::string> command) {
    const auto done = sim_node().run_gpulet_sim(std::move(command));
    ASSERT_TRUE(done) << done.error().full_message();
  }
  void serve_by_cdi(std::vector<std::string> arguments = {}) {
    write_config("version: v1\nflags: {migStrategy: mixed, plugin: {deviceListStrategy: [cdi-cri]}}\n");
    arguments.insert(arguments.end(),
                     {"--config-file=" + config_path(), "--cdi-spec-dir=" + spec_directory()});
    start_agent({.arguments = std::move(arguments)});
  }
  bool becomes_withdrawn() {
    return wait_for_kubelet([](const auto& state) {
      const auto* gpus = find_resource(state, kGpu);
      return gpus != nullptr && gpus->capacity() == 8 && gpus->allocatable() == 0;
    });
  }
};

TEST_F(SimDeviceNodes, NoGpuIsOfferedWithoutUvm) {
  change({"uvm", "unload"});
  serve_by_cdi();
  ASSERT_TRUE(becomes_withdrawn()) << agent_log();
  EXPECT_NE(wait_for_log("NotOffered", "/dev/nvidia-uvm is missing: load nvidia-uvm"), "");
  change({"uvm", "load"});
  ASSERT_TRUE(becomes_allocatable(8)) << agent_log();
  EXPECT_TRUE(is_in_spec(sim_node().driver_root() + "/dev/nvidia-uvm")) << "offered before its spec";
  change({"uvm", "unload"});
  ASSERT_TRUE(becomes_withdrawn()) << agent_log();
  EXPECT_TRUE(becomes_true([&] { return !is_in_spec(sim_node().driver_root() + "/dev/nvidia-uvm"); }));
}

TEST_F(SimDeviceNodes, OffersFollowWithoutCdiToo) {
  change({"uvm", "unload"});
  start_agent({.arguments = {kNotCreated}});
  ASSERT_TRUE(becomes_withdrawn()) << agent_log();
  change({"uvm", "load"});
  ASSERT_TRUE(becomes_allocatable(8)) << agent_log();
}

TEST_F(SimDeviceNodes, CreatesTheNodesOfALoadedUvm) {
  change({"uvm", "unload"});
  change({"uvm", "load", "--without-nodes"});
  serve_by_cdi();
  ASSERT_TRUE(becomes_allocatable(8)) << agent_log();
  EXPECT_TRUE(has_node("/dev/nvidia-uvm"));
  EXPECT_TRUE(has_node("/dev/nvidia-uvm-tools"));
  change({"device-node", "remove", "nvidia-uvm"});
  EXPECT_TRUE(becomes_true([&] { return has_node("/dev/nvidia-uvm"); })) << agent_log();
  EXPECT_TRUE(becomes_allocatable(8)) << agent_log();
}

TEST_F(SimDeviceNodes, CreatesTheNodesOfMigDevices) {
  serve_by_cdi({"--health-liveness-interval=1s"});
  ASSERT_TRUE(becomes_allocatable(8)) << agent_log();
  create_mig_devices(7, {"3g.40gb@4"});
  ASSERT_TRUE(becomes_allocatable(1, kLarge)) << agent_log();
  const auto machine = std::make_unique<sim::Machine>(*machine_state().lock_for_read());
  const auto& gpu = machine->gpus[7];
  const auto instance =
      std::ranges::find_if(gpu.mig.instances, [](const auto& candidate) { return candidate.used != 0; });
  const std::string node =
      "/dev/nvidia-caps/nvidia-cap" + std::to_string(sim::gpu_instance_minor(gpu.minor, instance->id));
  ASSERT_TRUE(has_node(node));
  ASSERT_TRUE(std::filesystem::remove(sim_node().driver_root() + node));
  EXPECT_TRUE(becomes_true([&] { return has_node(node) && is_in_spec(sim_node().driver_root() + node); }))
      << agent_log();
}

// The agent also runs on nodes that nobody has labelled: without a GPU it is ready, and quiet.
TEST_F(SimDeviceNodes, ANodeWithoutAGpuIsReadyUntilOneComes) {
  namespace fs = std::filesystem;
  change({"driver-unload"});
  change({"device-node", "remove", "nvidiactl"});
  const fs::path bus = sim_node().driver_root() + "/sys/bus/pci/devices",
                 away = sim_node().directory() + "/bus";
  fs::rename(bus, away);
  fs::create_directory(bus);
  start_agent({.arguments = {"--fail-on-init-error=false"}});
  EXPECT_TRUE(becomes_true([&] {
    return http_get(listener_port(), "/readyz").status == 200 &&
           agent_log().find("this node has no NVIDIA GPU") != std::string::npos;
  })) << agent_log();
  EXPECT_EQ(agent_log().find("\"level\":\"warn"), std::string::npos) << agent_log();
  EXPECT_EQ(agent_log().find("\"level\":\"err"), std::string::npos) << agent_log();
  EXPECT_EQ(http_get(listener_port(), "/metrics").body.find("gpulet_driver_up"), std::string::npos);
  fs::remove(bus);
  fs::rename(away, bus);
  change({"driver-load"});
  change({"device-node", "add", "nvidiactl"});
  EXPECT_TRUE(becomes_allocatable(8)) << agent_log();
}

}  // namespace
}  // namespace gpulet::tests

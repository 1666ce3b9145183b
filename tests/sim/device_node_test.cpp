// Device nodes that come late, go, or never come: specs and offers follow them.
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

constexpr const char* kSpecFile = "/k8s.device-plugin.nvidia.com-gpu.json";

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
  start_agent();
  ASSERT_TRUE(becomes_withdrawn()) << agent_log();
  change({"uvm", "load"});
  ASSERT_TRUE(becomes_allocatable(8)) << agent_log();
}

}  // namespace
}  // namespace gpulet::tests

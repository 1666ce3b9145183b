// Containers that get GPUs by CDI: the specs on disk follow the node, and no device is offered before its
// spec exists.
#include <filesystem>

#include "base/file.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

constexpr const char* kVendor = "k8s.device-plugin.nvidia.com";

class SimCdi : public NodeTest {
 protected:
  void SetUp() override { bring_up_node(); }
  std::string spec_directory() const { return std::filesystem::path(config_path()).parent_path() / "cdi"; }
  std::string read_spec() const {
    const auto text = read_file(spec_directory() + "/" + kVendor + "-gpu.json");
    return text ? *text : "";
  }
  void serve_by_cdi(const std::string& more = {}, std::vector<std::string> arguments = {}) {
    write_config("version: v1\nflags: {migStrategy: mixed, plugin: {deviceListStrategy: [cdi-cri]}}\n" +
                 more);
    arguments.insert(arguments.end(),
                     {"--config-file=" + config_path(), "--cdi-spec-dir=" + spec_directory()});
    start_agent({.arguments = std::move(arguments)});
  }
};

TEST_F(SimCdi, OfferedDevicesAreOnDisk) {
  serve_by_cdi();
  ASSERT_TRUE(wait_for_kubelet([&](const auto& state) {
    const auto* gpus = find_resource(state, kGpu);
    if (gpus == nullptr) return false;
    const auto text = read_spec();
    for (const auto& id : healthy_ids(*gpus)) {
      EXPECT_NE(text.find("\"name\":\"" + id + "\""), std::string::npos)
          << id << " is offered and not on disk";
    }
    return gpus->allocatable() == gpu_count();
  })) << agent_log();
  const auto grant = admit_pod("pod", 2);
  std::set<std::string> named(grant.containers.at(0).cdi_devices.begin(),
                              grant.containers.at(0).cdi_devices.end());
  std::set<std::string> wanted;
  for (const auto& id : granted_ids(grant)) wanted.insert(std::string(kVendor) + "/gpu=" + id);
  EXPECT_EQ(named, wanted);
  EXPECT_FALSE(grant.containers.at(0).envs.contains("NVIDIA_VISIBLE_DEVICES"));
}

TEST_F(SimCdi, OffersAMigDeviceOnceItIsOnDisk) {
  serve_by_cdi({}, {"--health-liveness-interval=1s"});
  ASSERT_TRUE(becomes_allocatable(8)) << agent_log();
  const auto uuids = create_mig_devices(7, {"3g.40gb@4", "2g.20gb@0"});
  ASSERT_TRUE(becomes_allocatable(1, "nvidia.com/mig-3g.40gb")) << agent_log();
  ASSERT_TRUE(becomes_allocatable(1, "nvidia.com/mig-2g.20gb"));
  for (const auto& id : uuids) EXPECT_NE(read_spec().find(id), std::string::npos) << id;
  EXPECT_EQ(read_spec().find("\"name\":\"" + gpu_uuid(7) + "\""), std::string::npos)
      << "a GPU in MIG mode has no device of its own";
}

TEST_F(SimCdi, UpdatesSpecsBeforeOfferingGpusAfterAnUpgrade) {
  serve_by_cdi();
  ASSERT_TRUE(becomes_allocatable(8)) << agent_log();
  const std::string before = machine_state().lock_for_read()->driver.version;
  EXPECT_NE(read_spec().find("libcuda.so." + before), std::string::npos);
  ASSERT_TRUE(sim_node().run_gpulet_sim({"driver-reload", "--force", "--version", "575.57.08"}));
  ASSERT_TRUE(becomes_true([&] { return read_spec().find("libcuda.so.575.57.08") != std::string::npos; }))
      << agent_log();
  EXPECT_EQ(read_spec().find(".so." + before), std::string::npos);
  ASSERT_TRUE(becomes_allocatable(8)) << agent_log();
}

TEST_F(SimCdi, OffersNothingWithoutLibcuda) {
  const auto libraries = std::filesystem::path(sim_node().driver_root()) / "usr/lib";
  std::vector<std::pair<std::filesystem::path, std::filesystem::path>> away;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(libraries)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("libcuda.so")) away.emplace_back(entry.path(), sim_node().directory() + "/" + name);
  }
  ASSERT_FALSE(away.empty());
  for (const auto& [from, to] : away) std::filesystem::rename(from, to);
  serve_by_cdi();
  EXPECT_NE(wait_for_log("CdiSpecFailed"), "");
  EXPECT_TRUE(wait_for_kubelet([](const auto& state) {
    return find_resource(state, kGpu) != nullptr && find_resource(state, kGpu)->capacity() == 8;
  }));
  EXPECT_EQ(find_resource(sim_kubelet().kubelet_state(), kGpu)->allocatable(), 0u);
  for (const auto& [from, to] : away) std::filesystem::rename(to, from);
  EXPECT_TRUE(becomes_allocatable(8)) << agent_log();
}

TEST_F(SimCdi, InstallsTheHookAtThePathInSpecs) {
  const std::string hooks = sim_node().directory() + "/hooks";
  serve_by_cdi({}, {"--cdi-hook-dir=" + hooks});
  ASSERT_TRUE(becomes_allocatable(8)) << agent_log();
  EXPECT_NE(read_spec().find("\"path\":\"" + hooks + "/gpulet-hook\""), std::string::npos) << read_spec();
  const auto version = sim::program_output({hooks + "/gpulet-hook", "--version"}, {});
  EXPECT_TRUE(version) << version.error().full_message();
}

}  // namespace
}  // namespace gpulet::tests

// Containers that get their GPUs by CDI: the specs on disk follow the node, and nothing is offered or named
// before it is there.
#include <filesystem>

#include "base/file.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

constexpr const char* kVendor = "k8s.device-plugin.nvidia.com";

class SimCdi : public NodeTest {
 protected:
  void SetUp() override { up(); }
  std::string folder() const { return std::filesystem::path(config_path()).parent_path() / "cdi"; }
  std::string spec() const {
    const auto text = read_file(folder() + "/" + kVendor + "-gpu.json");
    return text ? *text : "";
  }
  void serve_by_cdi(const std::string& more = {}, std::vector<std::string> arguments = {}) {
    write_config("version: v1\nflags: {migStrategy: mixed, plugin: {deviceListStrategy: [cdi-cri]}}\n" +
                 more);
    arguments.insert(arguments.end(), {"--config-file=" + config_path(), "--cdi-spec-dir=" + folder()});
    start_agent({.arguments = std::move(arguments)});
  }
};

TEST_F(SimCdi, WhatIsOfferedIsOnDisk) {
  serve_by_cdi();
  ASSERT_TRUE(wait_for([&](const auto& state) {
    const auto* gpus = find(state, kGpu);
    if (gpus == nullptr) return false;
    const auto text = spec();
    for (const auto& id : healthy_ids(*gpus)) {
      EXPECT_NE(text.find("\"name\":\"" + id + "\""), std::string::npos)
          << id << " is offered and not on disk";
    }
    return gpus->allocatable() == gpu_count();
  })) << log();
  const auto grant = admit("pod", 2);
  std::set<std::string> named(grant.containers.at(0).cdi_devices.begin(),
                              grant.containers.at(0).cdi_devices.end());
  std::set<std::string> wanted;
  for (const auto& id : ids_of(grant)) wanted.insert(std::string(kVendor) + "/gpu=" + id);
  EXPECT_EQ(named, wanted);
  EXPECT_FALSE(grant.containers.at(0).envs.contains("NVIDIA_VISIBLE_DEVICES"));
}

TEST_F(SimCdi, AMigDeviceIsOfferedOnceItIsOnDisk) {
  serve_by_cdi({}, {"--health-alive-interval=1s"});
  ASSERT_TRUE(offered(8)) << log();
  const auto uuids = cut_up(7, {"3g.40gb@4", "2g.20gb@0"});
  ASSERT_TRUE(offered(1, "nvidia.com/mig-3g.40gb")) << log();
  ASSERT_TRUE(offered(1, "nvidia.com/mig-2g.20gb"));
  for (const auto& id : uuids) EXPECT_NE(spec().find(id), std::string::npos) << id;
  EXPECT_EQ(spec().find("\"name\":\"" + uuid(7) + "\""), std::string::npos)
      << "a GPU in MIG mode has no device of its own";
}

TEST_F(SimCdi, ADriverUpgradeIsInTheSpecsBeforeGpusAreOfferedAgain) {
  serve_by_cdi();
  ASSERT_TRUE(offered(8)) << log();
  const std::string before = machine().read()->driver.version;
  EXPECT_NE(spec().find("libcuda.so." + before), std::string::npos);
  ASSERT_TRUE(node().sim({"driver-reload", "--version", "575.57.08"}));
  ASSERT_TRUE(eventually([&] { return spec().find("libcuda.so.575.57.08") != std::string::npos; })) << log();
  EXPECT_EQ(spec().find(".so." + before), std::string::npos);
  ASSERT_TRUE(offered(8)) << log();
}

TEST_F(SimCdi, ADriverWithoutLibcudaIsSaidAndNothingIsOffered) {
  const auto libraries = std::filesystem::path(node().root()) / "usr/lib";
  std::vector<std::pair<std::filesystem::path, std::filesystem::path>> away;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(libraries)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("libcuda.so")) away.emplace_back(entry.path(), node().folder() + "/" + name);
  }
  ASSERT_FALSE(away.empty());
  for (const auto& [from, to] : away) std::filesystem::rename(from, to);
  serve_by_cdi();
  EXPECT_NE(said("CdiSpecFailed"), "");
  EXPECT_TRUE(wait_for(
      [](const auto& state) { return find(state, kGpu) != nullptr && find(state, kGpu)->capacity() == 8; }));
  EXPECT_EQ(find(kubelet().state(), kGpu)->allocatable(), 0u);
  for (const auto& [from, to] : away) std::filesystem::rename(to, from);
  EXPECT_TRUE(offered(8)) << log();
}

TEST_F(SimCdi, TheHookIsPutWhereSpecsNameIt) {
  const std::string hooks = node().folder() + "/hooks";
  serve_by_cdi({}, {"--cdi-hook-dir=" + hooks});
  ASSERT_TRUE(offered(8)) << log();
  EXPECT_NE(spec().find("\"path\":\"" + hooks + "/gpulet-hook\""), std::string::npos) << spec();
  const auto version = cli::output_of({hooks + "/gpulet-hook", "--version"}, {});
  EXPECT_TRUE(version) << version.error().text();
}

}  // namespace
}  // namespace gpulet::tests

#include "sim/root/root.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/file.h"
#include "base/process.h"
#include "inventory/mig_minors.h"
#include "sim/machine/machine.h"
#include "sim/root/driver_files.h"
#include "sim/root/shared_object.h"
#include "sim/root/texts.h"
#include "sim/state/capabilities.h"
#include "sim/state/mig.h"

namespace gpulet::sim {
namespace {

namespace fs = std::filesystem;

std::string slurp(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream) << path;
  return (std::stringstream() << stream.rdbuf()).str();
}

class RootTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/gpulet-root-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    std::ofstream(folder_ / "libnvidia-ml.so.1") << make_shared_object("libnvidia-ml.so.1");
    std::ofstream(folder_ / "nvidia-smi") << "#!/bin/sh\n";
    const fs::path probe = folder_ / "probe";
    may_make_nodes_ = mknod(probe.c_str(), S_IFCHR | 0600, makedev(195, 0)) == 0;
    fs::remove(probe);
  }
  void TearDown() override { fs::remove_all(folder_); }

  RootOptions options() const {
    return {root(), may_make_nodes_, folder_ / "libnvidia-ml.so.1", folder_ / "nvidia-smi"};
  }
  std::string root() const { return folder_ / "root"; }
  StateFile bring_up(const std::string& name) {
    machine_ = *load_machine(name);
    auto state = up(*machine_, options());
    EXPECT_TRUE(state) << state.error().text();
    return std::move(*state);
  }
  std::size_t files_in(const fs::path& path) const {
    std::error_code error;
    const fs::directory_iterator first(path, error);
    return error ? 0 : std::distance(first, fs::directory_iterator());
  }
  void expect_node(const std::string& path, unsigned major, unsigned minor, mode_t mode) const {
    struct stat info{};
    ASSERT_EQ(lstat((root() + "/" + path).c_str(), &info), 0) << path;
    EXPECT_TRUE(S_ISCHR(info.st_mode)) << path;
    EXPECT_EQ(gnu_dev_major(info.st_rdev), major) << path;
    EXPECT_EQ(gnu_dev_minor(info.st_rdev), minor) << path;
    EXPECT_EQ(info.st_mode & 0777, mode) << path;
  }

  fs::path folder_;
  bool may_make_nodes_ = false;
  std::unique_ptr<Machine> machine_;
};

TEST_F(RootTest, LaysOutProcAndSys) {
  const StateFile state = bring_up("hgx-h100");
  const fs::path proc = root() + "/proc/driver/nvidia";
  EXPECT_NE(
      slurp(proc / "version").find("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06"),
      std::string::npos);
  EXPECT_EQ(files_in(proc / "gpus"), 8u);
  const std::string information = slurp(proc / "gpus/0000:1b:00.0/information");
  EXPECT_NE(information.find("Model: \t\t NVIDIA H100 80GB HBM3\n"), std::string::npos);
  EXPECT_NE(information.find(std::string("GPU UUID: \t ") + state.read()->gpus[0].uuid + "\n"),
            std::string::npos);
  EXPECT_NE(information.find("Device Minor: \t 0\n"), std::string::npos);
  EXPECT_NE(slurp(root() + "/proc/devices").find("195 nvidia\n"), std::string::npos);

  const fs::path device = root() + "/sys/bus/pci/devices/0000:9d:00.0";
  EXPECT_TRUE(fs::is_symlink(device));
  EXPECT_EQ(slurp(device / "class"), "0x030200\n");
  EXPECT_EQ(slurp(device / "vendor"), "0x10de\n");
  EXPECT_EQ(slurp(device / "device"), "0x2330\n");
  EXPECT_EQ(slurp(device / "numa_node"), "1\n");
  EXPECT_EQ(slurp(device / "local_cpulist"), "56-111,168-223\n");
  EXPECT_TRUE(fs::is_directory(device / "drm/renderD132"));
  EXPECT_TRUE(fs::equivalent(root() + "/sys/bus/pci/drivers/nvidia/0000:9d:00.0", device));
  EXPECT_EQ(slurp(root() + "/sys/bus/pci/devices/0000:07:00.0/class"), "0x068000\n")
      << "an NVSwitch is a bridge";
  EXPECT_EQ(slurp(root() + "/sys/class/dmi/id/product_name"), "HGX H100 8-GPU\n");
}

TEST_F(RootTest, PciConfigurationHasItsHeaderAndCapabilities) {
  bring_up("t4");
  const std::string config = slurp(root() + "/sys/bus/pci/devices/0000:3b:00.0/config");
  ASSERT_EQ(config.size(), 256u);
  const auto byte = [&config](std::size_t at) { return static_cast<unsigned char>(config[at]); };
  EXPECT_EQ(byte(0) | byte(1) << 8, 0x10de);
  EXPECT_EQ(byte(2) | byte(3) << 8, 0x1eb8);
  EXPECT_EQ(byte(0x0b) << 16 | byte(0x0a) << 8 | byte(0x09), 0x030200);
  EXPECT_EQ(byte(0x2e) | byte(0x2f) << 8, 0x12a2);
  ASSERT_TRUE(byte(6) & 0x10) << "has a capability list";
  std::vector<int> capabilities;
  for (std::size_t at = byte(0x34); at != 0 && capabilities.size() < 10; at = byte(at + 1))
    capabilities.push_back(byte(at));
  EXPECT_EQ(capabilities, (std::vector<int>{0x01, 0x05, 0x10}));
}

TEST_F(RootTest, MakesDeviceNodes) {
  if (!may_make_nodes_) {
    // Then `up` must say so and leave nothing: the next test's other half.
    machine_ = *load_machine("gb200");
    RootOptions with_nodes = options();
    with_nodes.device_nodes = true;
    EXPECT_EQ(up(*machine_, with_nodes).error().code(), Code::kPermissionDenied);
    EXPECT_FALSE(fs::exists(root() + "/dev"));
    return;
  }
  bring_up("gb200");
  expect_node("dev/nvidia0", 195, 0, 0666);
  expect_node("dev/nvidia3", 195, 3, 0666);
  expect_node("dev/nvidiactl", 195, 255, 0666);
  expect_node("dev/nvidia-modeset", 195, 254, 0666);
  expect_node("dev/nvidia-uvm", kUvmMajor, 0, 0666);
  expect_node("dev/nvidia-uvm-tools", kUvmMajor, 1, 0666);
  expect_node("dev/nvidia-caps/nvidia-cap1", kCapsMajor, 1, 0400);
  expect_node("dev/nvidia-caps/nvidia-cap2", kCapsMajor, 2, 0444);
  expect_node("dev/nvidia-caps-imex-channels/channel0", kImexMajor, 0, 0666);
  expect_node("dev/dri/renderD128", 226, 128, 0666);
  EXPECT_FALSE(fs::exists(root() + "/dev/nvidia4"));
}

TEST_F(RootTest, LibrariesHaveTheirNames) {
  bring_up("l40s");
  const fs::path libraries = root() + "/" + std::string(kLibraryFolder);
  EXPECT_EQ(fs::read_symlink(libraries / "libcuda.so.1"), "libcuda.so.570.124.06");
  EXPECT_EQ(fs::read_symlink(libraries / "libcuda.so"), "libcuda.so.1");
  EXPECT_EQ(fs::read_symlink(libraries / "libnvidia-ml.so.1"), "libnvidia-ml.so.570.124.06");
  EXPECT_EQ(slurp(libraries / "libnvidia-ml.so.1"), slurp(folder_ / "libnvidia-ml.so.1"));
  EXPECT_TRUE(fs::is_regular_file(libraries / "libnvidia-glcore.so.570.124.06"));
  EXPECT_TRUE(fs::is_regular_file(root() + "/lib/firmware/nvidia/570.124.06/gsp_ga10x.bin"));
  EXPECT_NE(fs::status(root() + "/usr/bin/nvidia-smi").permissions() & fs::perms::owner_exec,
            fs::perms::none);

  // The loader itself reads the stub: it knows it by its SONAME afterwards.
  void* stub = dlopen((libraries / "libnvoptix.so.570.124.06").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(stub, nullptr) << dlerror();
  void* known = dlopen("libnvoptix.so.1", RTLD_NOW | RTLD_NOLOAD);
  EXPECT_EQ(known, stub);
  if (known != nullptr) dlclose(known);
  dlclose(stub);
}

TEST_F(RootTest, MigMinorsAreHardwares) {
  const std::string text = mig_minors_text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4322);
  const auto parsed = inventory::parse_mig_minors(text);
  ASSERT_TRUE(parsed) << parsed.error().text();
  EXPECT_EQ(parsed->gpu_instance(0, 0), 3u);
  EXPECT_EQ(parsed->compute_instance(3, 3, 3), 439u);
  EXPECT_EQ(parsed->compute_instance(6, 11, 7), 920u);
  EXPECT_EQ(parsed->compute_instance(31, 14, 7), 4322u);
}

TEST_F(RootTest, CapabilitiesFollowTheInstances) {
  const StateFile state = bring_up("hgx-h100");
  const fs::path mig = root() + "/proc/driver/nvidia/capabilities/gpu2/mig";
  EXPECT_EQ(files_in(mig), 0u);
  Gpu gpu = state.read()->gpus[2];
  ASSERT_EQ(set_mig_mode(gpu, true), MigOutcome::kOk);
  GpuInstance* instance = nullptr;
  ComputeInstance* compute = nullptr;
  ASSERT_EQ(create_gpu_instance(gpu, 9, 4, &instance),
            MigOutcome::kOk);  // 3g.40gb in the upper half: instance 1
  ASSERT_EQ(create_compute_instance(gpu, *instance, 0, std::nullopt, &compute), MigOutcome::kOk);
  sync_capabilities(root(), gpu);
  EXPECT_EQ(slurp(mig / "gi1/access"), "DeviceFileMinor: 282\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
  EXPECT_EQ(slurp(mig / "gi1/ci0/access"),
            "DeviceFileMinor: 283\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
  if (may_make_nodes_) {
    expect_node("dev/nvidia-caps/nvidia-cap282", kCapsMajor, 282, 0444);
    expect_node("dev/nvidia-caps/nvidia-cap283", kCapsMajor, 283, 0444);
  }
  ASSERT_EQ(destroy_compute_instance(gpu, *instance, compute->id), MigOutcome::kOk);
  sync_capabilities(root(), gpu);
  EXPECT_FALSE(fs::exists(mig / "gi1/ci0"));
  EXPECT_FALSE(fs::exists(root() + "/dev/nvidia-caps/nvidia-cap283"));
  EXPECT_TRUE(fs::exists(mig / "gi1"));
  ASSERT_EQ(destroy_gpu_instance(gpu, instance->id), MigOutcome::kOk);
  sync_capabilities(root(), gpu);
  EXPECT_EQ(files_in(mig), 0u);
  EXPECT_EQ(files_in(root() + "/dev/nvidia-caps"), may_make_nodes_ ? 2u : 0u) << "config and monitor stay";
}

TEST_F(RootTest, RefreshFollowsAReplacedGpuAndANewDriver) {
  const StateFile state = bring_up("t4");
  replace_gpu(*state.edit(), 1);
  set_text(state.edit()->driver.version, "580.95.05");
  const auto machine = std::make_unique<Machine>(*state.read());
  const auto done = refresh(root(), *machine);
  ASSERT_TRUE(done) << done.error().text();
  EXPECT_NE(slurp(root() + "/proc/driver/nvidia/gpus/0000:5e:00.0/information").find(machine->gpus[1].uuid),
            std::string::npos);
  EXPECT_NE(slurp(root() + "/proc/driver/nvidia/version").find("  580.95.05  "), std::string::npos);
  const fs::path libraries = root() + "/" + std::string(kLibraryFolder);
  EXPECT_EQ(fs::read_symlink(libraries / "libnvidia-ml.so.1"), "libnvidia-ml.so.580.95.05");
  for (const auto& entry : fs::directory_iterator(libraries)) {
    EXPECT_EQ(entry.path().filename().string().find("570.124.06"), std::string::npos) << entry.path();
    EXPECT_TRUE(fs::exists(entry.path())) << entry.path() << " leads nowhere";
  }
  ASSERT_TRUE(down(root()));
  EXPECT_EQ(files_in(root()), 0u);
}

TEST_F(RootTest, DownRemovesAllThatUpMadeAndNothingElse) {
  fs::create_directories(root() + "/etc");
  std::ofstream(root() + "/etc/hosts") << "kept\n";
  const StateFile state = bring_up("dgx-a100");
  ASSERT_TRUE(down(root()));
  EXPECT_EQ(state.read()->driver.loaded, 0) << "who has it mapped sees the driver go";
  EXPECT_EQ(files_in(root()), 1u);
  EXPECT_EQ(slurp(root() + "/etc/hosts"), "kept\n");
  EXPECT_EQ(down(root()).error().code(), Code::kNotFound);
}

TEST_F(RootTest, DownEndsWhatRunsFromTheRoot) {
  bring_up("t4");
  fs::copy_file("/usr/bin/sleep", root() + "/usr/bin/sleep");
  auto inside = gpulet::Process::start({.program = root() + "/usr/bin/sleep", .arguments = {"sleep", "1000"}});
  auto outside = gpulet::Process::start({.program = "/usr/bin/sleep", .arguments = {"sleep", "1000"}});
  ASSERT_TRUE(inside && outside);
  ASSERT_TRUE(down(root()));
  EXPECT_TRUE((*inside)->wait(std::chrono::seconds(30)));
  EXPECT_EQ(::kill((*outside)->id(), 0), 0);
}

TEST_F(RootTest, RefusesASecondMachineAndForeignFiles) {
  bring_up("t4");
  EXPECT_EQ(up(*machine_, options()).error().code(), Code::kFailedPrecondition);
  ASSERT_TRUE(down(root()));
  fs::create_directories(root() + "/proc/driver/nvidia");
  std::ofstream(root() + "/proc/driver/nvidia/version") << "a real driver\n";
  const auto refused = up(*machine_, options());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kFailedPrecondition);
  EXPECT_EQ(slurp(root() + "/proc/driver/nvidia/version"), "a real driver\n");
  EXPECT_FALSE(fs::exists(root() + "/dev")) << "nothing half is left";
  EXPECT_FALSE(fs::exists(root() + "/run"));
}

TEST_F(RootTest, DownRefusesAListThatLeadsOut) {
  bring_up("t4");
  const fs::path victim = folder_ / "victim";
  std::ofstream(victim) << "kept\n";
  for (const std::string line : {"../victim", "/etc/passwd", "usr/../../victim"}) {
    std::ofstream(root() + "/run/gpulet-sim/made") << line << "\n";
    EXPECT_EQ(down(root()).error().code(), Code::kInvalidArgument) << line;
  }
  EXPECT_TRUE(fs::exists(victim));
}

TEST_F(RootTest, WithoutDeviceNodesThereIsNoDev) {
  machine_ = *load_machine("t4");
  RootOptions without = options();
  without.device_nodes = false;
  ASSERT_TRUE(up(*machine_, without));
  EXPECT_FALSE(fs::exists(root() + "/dev"));
}

TEST(Root, OfAStateFile) {
  EXPECT_EQ(root_of_state("/x/root/run/gpulet-sim/state"), "/x/root");
  EXPECT_EQ(root_of_state("/run/gpulet-sim/state"), "/.");
  EXPECT_EQ(root_of_state("/tmp/state"), "");
}

}  // namespace
}  // namespace gpulet::sim

#include "sim/root/driver_root.h"

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
#include "inventory/host_files.h"
#include "sim/machine/machine.h"
#include "sim/root/driver_files.h"
#include "sim/state/mig.h"

namespace gpulet::sim {
namespace {

namespace fs = std::filesystem;

std::string read_whole(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream) << path;
  return (std::stringstream() << stream.rdbuf()).str();
}

class RootTest : public testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/gpulet-root-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    std::ofstream(directory_ / "libnvidia-ml.so.1") << make_shared_object("libnvidia-ml.so.1");
    std::ofstream(directory_ / "nvidia-smi") << "#!/bin/sh\n";
    const fs::path probe = directory_ / "probe";
    may_make_nodes_ = mknod(probe.c_str(), S_IFCHR | 0600, makedev(195, 0)) == 0;
    fs::remove(probe);
  }
  void TearDown() override { fs::remove_all(directory_); }

  RootOptions root_options() const {
    return {root_path(), may_make_nodes_, directory_ / "libnvidia-ml.so.1", directory_ / "nvidia-smi"};
  }
  std::string root_path() const { return directory_ / "root"; }
  StateFile bring_up(const std::string& name) {
    machine_ = *load_machine(name);
    auto state = create_driver_root(*machine_, root_options());
    EXPECT_TRUE(state) << state.error().full_message();
    return std::move(*state);
  }
  std::size_t files_in(const fs::path& path) const {
    std::error_code error;
    const fs::directory_iterator first(path, error);
    return error ? 0 : std::distance(first, fs::directory_iterator());
  }
  void expect_node(const std::string& path, unsigned major, unsigned minor, mode_t mode) const {
    struct stat info{};
    ASSERT_EQ(lstat((root_path() + "/" + path).c_str(), &info), 0) << path;
    EXPECT_TRUE(S_ISCHR(info.st_mode)) << path;
    EXPECT_EQ(gnu_dev_major(info.st_rdev), major) << path;
    EXPECT_EQ(gnu_dev_minor(info.st_rdev), minor) << path;
    EXPECT_EQ(info.st_mode & 0777, mode) << path;
  }

  fs::path directory_;
  bool may_make_nodes_ = false;
  std::unique_ptr<Machine> machine_;
};

TEST_F(RootTest, LaysOutProcAndSys) {
  const StateFile state = bring_up("hgx-h100");
  const fs::path proc = root_path() + "/proc/driver/nvidia";
  EXPECT_NE(read_whole(proc / "version")
                .find("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06"),
            std::string::npos);
  EXPECT_EQ(files_in(proc / "gpus"), 8u);
  const std::string information = read_whole(proc / "gpus/0000:1b:00.0/information");
  EXPECT_NE(information.find("Model: \t\t NVIDIA H100 80GB HBM3\n"), std::string::npos);
  EXPECT_NE(information.find(std::string("GPU UUID: \t ") + state.lock_for_read()->gpus[0].uuid + "\n"),
            std::string::npos);
  EXPECT_NE(information.find("Device Minor: \t 0\n"), std::string::npos);
  EXPECT_NE(read_whole(root_path() + "/proc/devices").find("195 nvidia\n"), std::string::npos);

  const fs::path device = root_path() + "/sys/bus/pci/devices/0000:9d:00.0";
  EXPECT_TRUE(fs::is_symlink(device));
  EXPECT_EQ(read_whole(device / "class"), "0x030200\n");
  EXPECT_EQ(read_whole(device / "vendor"), "0x10de\n");
  EXPECT_EQ(read_whole(device / "device"), "0x2330\n");
  EXPECT_EQ(read_whole(device / "numa_node"), "1\n");
  EXPECT_EQ(read_whole(device / "local_cpulist"), "56-111,168-223\n");
  EXPECT_TRUE(fs::is_directory(device / "drm/renderD132"));
  EXPECT_TRUE(fs::equivalent(root_path() + "/sys/bus/pci/drivers/nvidia/0000:9d:00.0", device));
  EXPECT_EQ(read_whole(root_path() + "/sys/bus/pci/devices/0000:07:00.0/class"), "0x068000\n")
      << "an NVSwitch is a bridge";
  EXPECT_EQ(read_whole(root_path() + "/sys/class/dmi/id/product_name"), "HGX H100 8-GPU\n");
}

// As NVIDIA's go-nvlib reads it: three hexadecimal numbers a line; a device without the file is an error
// there.
TEST_F(RootTest, PciResourcesAreAsTheKernelPrintsThem) {
  bring_up("hgx-h100");
  const fs::path devices = root_path() + "/sys/bus/pci/devices";
  const std::string none = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
  std::string zeros;
  for (int i = 0; i < 9; ++i) zeros += none;
  EXPECT_EQ(read_whole(devices / "0000:1b:00.0/resource"),
            "0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n"
            "0x0000200000000000 0x0000201fffffffff 0x000000000014220c\n" +
                none + "0x0000208000000000 0x0000208001ffffff 0x000000000014220c\n" + zeros);
  EXPECT_EQ(read_whole(devices / "0000:07:00.0/resource").substr(0, 57),
            "0x00000000c0000000 0x00000000c1ffffff 0x0000000000040200\n");
  std::set<std::string> different;
  for (const auto& device : fs::directory_iterator(devices))
    EXPECT_TRUE(different.insert(read_whole(device.path() / "resource")).second) << device.path();
  EXPECT_EQ(different.size(), 12u) << "8 GPUs and 4 NVSwitches";
  // The configuration space has the same addresses.
  const std::string config = read_whole(devices / "0000:1b:00.0/config");
  EXPECT_EQ(config.substr(0x10, 0x18), std::string("\0\0\0\xa0"
                                                   "\x0c\0\0\0\0\x20\0\0"
                                                   "\x0c\0\0\0\x80\x20\0\0"
                                                   "\0\0\0\0",
                                                   0x18));
}

TEST_F(RootTest, PciConfigHasHeaderAndCapabilities) {
  bring_up("t4");
  const std::string config = read_whole(root_path() + "/sys/bus/pci/devices/0000:3b:00.0/config");
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
    // Then create_driver_root must fail and leave nothing.
    machine_ = *load_machine("gb200");
    RootOptions with_nodes = root_options();
    with_nodes.device_nodes = true;
    EXPECT_EQ(create_driver_root(*machine_, with_nodes).error().code(), Code::kPermissionDenied);
    EXPECT_FALSE(fs::exists(root_path() + "/dev"));
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
  EXPECT_FALSE(fs::exists(root_path() + "/dev/nvidia4"));
}

TEST_F(RootTest, DeviceNodesComeLateAndGo) {
  if (!may_make_nodes_) GTEST_SKIP() << "needs CAP_MKNOD";
  machine_ = *load_machine("t4");
  RootOptions without_uvm = root_options();
  without_uvm.uvm = false;
  ASSERT_TRUE(create_driver_root(*machine_, without_uvm));
  const std::string uvm = root_path() + "/dev/nvidia-uvm";
  const auto uvm_loaded = [&] {
    return read_whole(root_path() + "/proc/devices").find("505 nvidia-uvm\n") != std::string::npos;
  };
  EXPECT_FALSE(fs::exists(uvm));
  EXPECT_FALSE(uvm_loaded());
  ASSERT_TRUE(load_uvm(root_path(), false));
  EXPECT_FALSE(fs::exists(uvm));
  EXPECT_TRUE(uvm_loaded());
  ASSERT_TRUE(load_uvm(root_path(), true));
  expect_node("dev/nvidia-uvm", kUvmMajor, 0, 0666);
  expect_node("dev/nvidia-uvm-tools", kUvmMajor, 1, 0666);
  ASSERT_TRUE(unload_uvm(root_path()));
  EXPECT_FALSE(fs::exists(uvm));
  EXPECT_FALSE(uvm_loaded());

  ASSERT_TRUE(remove_device_node(root_path(), "nvidia0"));
  EXPECT_EQ(remove_device_node(root_path(), "nvidia0").error().code(), Code::kNotFound);
  EXPECT_EQ(add_device_node(root_path(), "nvidia9").error().code(), Code::kNotFound);
  ASSERT_TRUE(add_device_node(root_path(), "nvidia0"));
  expect_node("dev/nvidia0", 195, 0, 0666);
  EXPECT_EQ(add_device_node(root_path(), "nvidia0").error().code(), Code::kFailedPrecondition);
  ASSERT_TRUE(load_uvm(root_path(), true));
  ASSERT_TRUE(remove_driver_root(root_path()));
  EXPECT_FALSE(fs::exists(root_path() + "/dev"));
}

TEST_F(RootTest, LibrariesHaveTheirNames) {
  bring_up("l40s");
  const fs::path libraries = root_path() + "/" + std::string(kLibraryDirectory);
  EXPECT_EQ(fs::read_symlink(libraries / "libcuda.so.1"), "libcuda.so.570.124.06");
  EXPECT_EQ(fs::read_symlink(libraries / "libcuda.so"), "libcuda.so.1");
  EXPECT_EQ(fs::read_symlink(libraries / "libnvidia-ml.so.1"), "libnvidia-ml.so.570.124.06");
  EXPECT_EQ(read_whole(libraries / "libnvidia-ml.so.1"), read_whole(directory_ / "libnvidia-ml.so.1"));
  EXPECT_TRUE(fs::is_regular_file(libraries / "libnvidia-glcore.so.570.124.06"));
  EXPECT_TRUE(fs::is_regular_file(root_path() + "/lib/firmware/nvidia/570.124.06/gsp_ga10x.bin"));
  EXPECT_NE(fs::status(root_path() + "/usr/bin/nvidia-smi").permissions() & fs::perms::owner_exec,
            fs::perms::none);

  // The loader accepts the stub and registers its SONAME.
  void* stub = dlopen((libraries / "libnvoptix.so.570.124.06").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(stub, nullptr) << dlerror();
  void* known = dlopen("libnvoptix.so.1", RTLD_NOW | RTLD_NOLOAD);
  EXPECT_EQ(known, stub);
  if (known != nullptr) dlclose(known);
  dlclose(stub);
}

TEST_F(RootTest, MigMinorsMatchHardware) {
  const std::string text = mig_minors_text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4322);
  const auto parsed = inventory::parse_mig_minors(text);
  ASSERT_TRUE(parsed) << parsed.error().full_message();
  EXPECT_EQ(parsed->gpu_instance_minor(0, 0), 3u);
  EXPECT_EQ(parsed->compute_instance_minor(3, 3, 3), 439u);
  EXPECT_EQ(parsed->compute_instance_minor(6, 11, 7), 920u);
  EXPECT_EQ(parsed->compute_instance_minor(31, 14, 7), 4322u);
}

TEST_F(RootTest, CapabilitiesFollowInstances) {
  const StateFile state = bring_up("hgx-h100");
  const fs::path mig = root_path() + "/proc/driver/nvidia/capabilities/gpu2/mig";
  EXPECT_EQ(files_in(mig), 0u);
  Gpu gpu = state.lock_for_read()->gpus[2];
  ASSERT_EQ(set_mig_mode(gpu, true), MigOutcome::kOk);
  GpuInstance* instance = nullptr;
  ComputeInstance* compute = nullptr;
  ASSERT_EQ(create_gpu_instance(gpu, 9, 4, &instance),
            MigOutcome::kOk);  // 3g.40gb in the upper half: instance 1
  ASSERT_EQ(create_compute_instance(gpu, *instance, 0, std::nullopt, &compute), MigOutcome::kOk);
  sync_capabilities(root_path(), gpu);
  EXPECT_EQ(read_whole(mig / "gi1/access"),
            "DeviceFileMinor: 282\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
  EXPECT_EQ(read_whole(mig / "gi1/ci0/access"),
            "DeviceFileMinor: 283\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
  if (may_make_nodes_) {
    expect_node("dev/nvidia-caps/nvidia-cap282", kCapsMajor, 282, 0444);
    expect_node("dev/nvidia-caps/nvidia-cap283", kCapsMajor, 283, 0444);
  }
  ASSERT_EQ(destroy_compute_instance(gpu, *instance, compute->id), MigOutcome::kOk);
  sync_capabilities(root_path(), gpu);
  EXPECT_FALSE(fs::exists(mig / "gi1/ci0"));
  EXPECT_FALSE(fs::exists(root_path() + "/dev/nvidia-caps/nvidia-cap283"));
  EXPECT_TRUE(fs::exists(mig / "gi1"));
  ASSERT_EQ(destroy_gpu_instance(gpu, instance->id), MigOutcome::kOk);
  sync_capabilities(root_path(), gpu);
  EXPECT_EQ(files_in(mig), 0u);
  EXPECT_EQ(files_in(root_path() + "/dev/nvidia-caps"), may_make_nodes_ ? 2u : 0u)
      << "config and monitor stay";
}

TEST_F(RootTest, RefreshFollowsAReplacedGpuAndANewDriver) {
  const StateFile state = bring_up("t4");
  replace_gpu(*state.lock_for_edit(), 1);
  set_text(state.lock_for_edit()->driver.version, "580.95.05");
  state.lock_for_edit()->memory.mode = MemoryBackend::kOff;
  const auto machine = std::make_unique<Machine>(*state.lock_for_read());
  const auto done = refresh_driver_root(root_path(), *machine);
  ASSERT_TRUE(done) << done.error().full_message();
  EXPECT_NE(read_whole(root_path() + "/proc/driver/nvidia/gpus/0000:5e:00.0/information")
                .find(machine->gpus[1].uuid),
            std::string::npos);
  EXPECT_NE(read_whole(root_path() + "/proc/driver/nvidia/version").find("  580.95.05  "), std::string::npos);
  EXPECT_NE(
      read_whole(root_path() + "/proc/driver/nvidia/params").find("\nRegistryDwords: \"RmMemacctMode=0\"\n"),
      std::string::npos);
  const fs::path libraries = root_path() + "/" + std::string(kLibraryDirectory);
  EXPECT_EQ(fs::read_symlink(libraries / "libnvidia-ml.so.1"), "libnvidia-ml.so.580.95.05");
  for (const auto& entry : fs::directory_iterator(libraries)) {
    EXPECT_EQ(entry.path().filename().string().find("570.124.06"), std::string::npos) << entry.path();
    EXPECT_TRUE(fs::exists(entry.path())) << entry.path() << " leads nowhere";
  }
  ASSERT_TRUE(remove_driver_root(root_path()));
  EXPECT_EQ(files_in(root_path()), 0u);
}

TEST_F(RootTest, DownRemovesExactlyWhatUpCreated) {
  fs::create_directories(root_path() + "/etc");
  std::ofstream(root_path() + "/etc/hosts") << "kept\n";
  const StateFile state = bring_up("dgx-a100");
  ASSERT_TRUE(remove_driver_root(root_path()));
  EXPECT_EQ(state.lock_for_read()->driver.loaded, 0) << "who has it mapped sees the driver go";
  EXPECT_EQ(files_in(root_path()), 1u);
  EXPECT_EQ(read_whole(root_path() + "/etc/hosts"), "kept\n");
  EXPECT_EQ(remove_driver_root(root_path()).error().code(), Code::kNotFound);
}

TEST_F(RootTest, DownKillsProgramsOfTheRoot) {
  bring_up("t4");
  fs::copy_file("/usr/bin/sleep", root_path() + "/usr/bin/sleep");
  auto inside =
      gpulet::Process::spawn({.program = root_path() + "/usr/bin/sleep", .arguments = {"sleep", "1000"}});
  auto outside = gpulet::Process::spawn({.program = "/usr/bin/sleep", .arguments = {"sleep", "1000"}});
  ASSERT_TRUE(inside && outside);
  ASSERT_TRUE(remove_driver_root(root_path()));
  EXPECT_TRUE((*inside)->wait_for_exit(std::chrono::seconds(30)));
  EXPECT_EQ(::kill((*outside)->pid(), 0), 0);
}

TEST_F(RootTest, RefusesASecondMachineAndForeignFiles) {
  bring_up("t4");
  EXPECT_EQ(create_driver_root(*machine_, root_options()).error().code(), Code::kFailedPrecondition);
  ASSERT_TRUE(remove_driver_root(root_path()));
  fs::create_directories(root_path() + "/proc/driver/nvidia");
  std::ofstream(root_path() + "/proc/driver/nvidia/version") << "a real driver\n";
  const auto refused = create_driver_root(*machine_, root_options());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kFailedPrecondition);
  EXPECT_EQ(read_whole(root_path() + "/proc/driver/nvidia/version"), "a real driver\n");
  EXPECT_FALSE(fs::exists(root_path() + "/dev")) << "nothing half is left";
  EXPECT_FALSE(fs::exists(root_path() + "/run"));
}

TEST_F(RootTest, DownRefusesAListThatEscapesTheRoot) {
  bring_up("t4");
  const fs::path victim = directory_ / "victim";
  std::ofstream(victim) << "kept\n";
  for (const std::string line : {"../victim", "/etc/passwd", "usr/../../victim"}) {
    std::ofstream(root_path() + "/run/gpulet-sim/made") << line << "\n";
    EXPECT_EQ(remove_driver_root(root_path()).error().code(), Code::kInvalidArgument) << line;
  }
  EXPECT_TRUE(fs::exists(victim));
}

TEST_F(RootTest, OmitsDevWithoutDeviceNodes) {
  machine_ = *load_machine("t4");
  RootOptions without = root_options();
  without.device_nodes = false;
  ASSERT_TRUE(create_driver_root(*machine_, without));
  EXPECT_FALSE(fs::exists(root_path() + "/dev"));
}

TEST(Root, OfAStateFile) {
  EXPECT_EQ(driver_root_of_state("/x/root/run/gpulet-sim/state"), "/x/root");
  EXPECT_EQ(driver_root_of_state("/run/gpulet-sim/state"), "/.");
  EXPECT_EQ(driver_root_of_state("/tmp/state"), "");
}

}  // namespace
}  // namespace gpulet::sim

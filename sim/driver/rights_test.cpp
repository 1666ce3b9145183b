#include "sim/driver/rights.h"

#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <functional>
#include <thread>
#include <vector>

#include "base/process.h"
#include "base/test_capabilities.h"
#include "sim/driver/driver_test.h"
#include "sim/state/mig.h"

// The simulated nvidia-smi's reset: NVML has none.
extern "C" nvmlReturn_t nvmlSimulatedReset(const nvmlDevice_t* devices, unsigned int count, char* reason,
                                           unsigned int length);

namespace gpulet::sim {
namespace {

constexpr unsigned kNobody = 65534;
constexpr unsigned kSmallProfile = 19;  // 1g.10gb

void without_sys_admin(const std::function<void()>& run) { run_without_capability(CAP_SYS_ADMIN, run); }

// User ids are those of a thread too, for the system call itself.
void as_nobody(const std::function<void()>& run) {
  std::thread([&] {
    ASSERT_EQ(::syscall(SYS_setresuid, kNobody, kNobody, kNobody), 0);
    run();
  }).join();
}

// A driver root with device nodes; GPU 0 is in MIG mode and has one MIG device.
class RightsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_capability(CAP_MKNOD)) GTEST_SKIP() << "needs CAP_MKNOD";
    char directory[] = "/tmp/gpulet-sim-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    root_ = directory;
    ASSERT_EQ(chmod(directory, 0755), 0);
    const auto machine = small_machine(4);
    machine->driver.has_device_nodes = 1;
    auto made = StateFile::create_state(root_ + "/" + std::string(kStatePathInRoot), *machine);
    ASSERT_TRUE(made) << made.error().full_message();
    state_ = std::move(*made);
    setenv("GPULET_SIM_STATE", state_.file_path().c_str(), 1);
    std::filesystem::create_directories(root_ + "/dev/nvidia-caps");
    add_node("nvidiactl", 195, 255, 0666);
    for (unsigned i = 0; i < 4; ++i) add_node("nvidia" + std::to_string(i), 195, i, 0666);
    add_node("nvidia-caps/nvidia-cap1", kCapsMajor, kConfigMinor, 0400);
    add_node("nvidia-caps/nvidia-cap2", kCapsMajor, kMonitorMinor, 0444);
    GpuInstance* instance = nullptr;
    ComputeInstance* compute = nullptr;
    const auto edit = state_.lock_for_edit();
    Gpu& gpu = edit->gpus[0];
    ASSERT_EQ(set_mig_mode(gpu, true), MigOutcome::kOk);
    ASSERT_EQ(create_gpu_instance(gpu, kSmallProfile, std::nullopt, &instance), MigOutcome::kOk);
    ASSERT_EQ(create_compute_instance(gpu, *instance, 0, std::nullopt, &compute), MigOutcome::kOk);
    instance_ = instance->id;
    compute_ = compute->id;
    for (const std::uint32_t minor : instance_minors())
      add_node("nvidia-caps/nvidia-cap" + std::to_string(minor), kCapsMajor, minor, 0444);
  }

  void TearDown() override {
    while (nvmlShutdown() == NVML_SUCCESS) {
    }
    unsetenv("GPULET_SIM_STATE");
    if (!root_.empty()) std::filesystem::remove_all(root_);
  }

  std::string node(const std::string& name) const { return root_ + "/dev/" + name; }
  void add_node(const std::string& name, unsigned major, unsigned minor, mode_t mode) const {
    ASSERT_EQ(mknod(node(name).c_str(), S_IFCHR | mode, makedev(major, minor)), 0) << name;
    ASSERT_EQ(chmod(node(name).c_str(), mode), 0);
  }
  void remove_node(const std::string& name) const { ASSERT_EQ(unlink(node(name).c_str()), 0) << name; }

  std::vector<std::uint32_t> instance_minors() const {
    return {gpu_instance_minor(0, instance_), compute_instance_minor(0, instance_, compute_)};
  }

  static nvmlDevice_t device(unsigned index) {
    nvmlDevice_t found = nullptr;
    EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(index, &found), NVML_SUCCESS);
    return found;
  }
  static nvmlDevice_t mig_device() {
    nvmlDevice_t found = nullptr;
    EXPECT_EQ(nvmlDeviceGetMigDeviceHandleByIndex(device(0), 0, &found), NVML_SUCCESS);
    return found;
  }

  // Results of the getters that are restricted while a GPU has GPU instances.
  static std::vector<nvmlReturn_t> read_memory_and_processes(nvmlDevice_t gpu) {
    nvmlMemory_t memory{};
    nvmlMemory_v2_t second{};
    second.version = nvmlMemory_v2;
    nvmlBAR1Memory_t bar1{};
    std::vector<nvmlReturn_t> results = {nvmlDeviceGetMemoryInfo(gpu, &memory),
                                         nvmlDeviceGetMemoryInfo_v2(gpu, &second),
                                         nvmlDeviceGetBAR1MemoryInfo(gpu, &bar1)};
    for (const auto list : {nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses_v3,
                            nvmlDeviceGetMPSComputeRunningProcesses_v3}) {
      unsigned count = 0;
      results.push_back(list(gpu, &count, nullptr));
    }
    nvmlProcessDetailList_t details{};
    details.version = nvmlProcessDetailList_v1;
    details.mode = NVML_PROCESS_MODE_ALL;
    results.push_back(nvmlDeviceGetRunningProcessDetailList(gpu, &details));
    return results;
  }
  static void expect_all(const std::vector<nvmlReturn_t>& results, nvmlReturn_t expected) {
    for (std::size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i], expected) << "result " << i;
  }

  std::vector<nvmlReturn_t> configure_instances() const {
    nvmlGpuInstance_t found = nullptr;
    nvmlGpuInstance_t made = nullptr;
    nvmlGpuInstance_t listed[8];
    unsigned count = 0;
    std::vector<nvmlReturn_t> results = {
        nvmlDeviceGetGpuInstances(device(0), kSmallProfile, listed, &count),
        nvmlDeviceGetGpuInstanceRemainingCapacity(device(0), kSmallProfile, &count),
        nvmlDeviceGetGpuInstanceById(device(0), instance_, &found),
        nvmlDeviceCreateGpuInstance(device(0), kSmallProfile, &made)};
    if (made != nullptr) results.push_back(nvmlGpuInstanceDestroy(made));
    return results;
  }

  static std::vector<nvmlReturn_t> change_gpu() {
    nvmlReturn_t activation = NVML_SUCCESS;
    char reason[64];
    const nvmlDevice_t reset = device(2);
    unsigned limit = 0;
    EXPECT_EQ(nvmlDeviceGetPowerManagementLimit(device(1), &limit), NVML_SUCCESS);
    return {nvmlDeviceSetMigMode(device(1), NVML_DEVICE_MIG_ENABLE, &activation),
            nvmlDeviceSetPersistenceMode(device(2), NVML_FEATURE_ENABLED),
            nvmlDeviceSetComputeMode(device(2), NVML_COMPUTEMODE_DEFAULT),
            nvmlDeviceSetEccMode(device(2), NVML_FEATURE_ENABLED),
            nvmlDeviceClearEccErrorCounts(device(2), NVML_VOLATILE_ECC),
            nvmlDeviceSetPowerManagementLimit(device(2), limit),
            nvmlDeviceResetApplicationsClocks(device(2)),
            nvmlSimulatedReset(&reset, 1, reason, sizeof reason)};
  }

  StateFile state_;
  std::string root_;
  unsigned instance_ = 0;
  unsigned compute_ = 0;
};

TEST_F(RightsTest, AnAdministratorMayDoEverythingWithoutNodesOfCapabilities) {
  remove_node("nvidia-caps/nvidia-cap1");
  remove_node("nvidia-caps/nvidia-cap2");
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  expect_all(read_memory_and_processes(device(0)), NVML_SUCCESS);
  expect_all(configure_instances(), NVML_SUCCESS);
  expect_all(change_gpu(), NVML_SUCCESS);
}

TEST_F(RightsTest, WithoutTheMonitorRightAGpuWithInstancesDoesNotReportItsMemory) {
  remove_node("nvidia-caps/nvidia-cap2");
  without_sys_admin([] {
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    expect_all(read_memory_and_processes(device(0)), NVML_ERROR_NO_PERMISSION);
    expect_all(read_memory_and_processes(mig_device()), NVML_SUCCESS);
    expect_all(read_memory_and_processes(device(1)), NVML_SUCCESS);
  });
}

TEST_F(RightsTest, TheModeAloneRestrictsNothing) {
  remove_node("nvidia-caps/nvidia-cap1");
  remove_node("nvidia-caps/nvidia-cap2");
  ASSERT_EQ(set_mig_mode(state_.lock_for_edit()->gpus[1], true), MigOutcome::kOk);
  without_sys_admin([] {
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    expect_all(read_memory_and_processes(device(1)), NVML_SUCCESS);
    nvmlGpuInstance_t listed[8];
    unsigned count = 99;
    EXPECT_EQ(nvmlDeviceGetGpuInstances(device(1), kSmallProfile, listed, &count), NVML_SUCCESS);
    EXPECT_EQ(count, 0u);
  });
}

TEST_F(RightsTest, TheMonitorNodeGivesTheMonitorRightAlone) {
  remove_node("nvidia-caps/nvidia-cap1");
  without_sys_admin([this] {
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    expect_all(read_memory_and_processes(device(0)), NVML_SUCCESS);
    expect_all(configure_instances(), NVML_ERROR_NO_PERMISSION);
    expect_all(change_gpu(), NVML_ERROR_NO_PERMISSION);
    // Open nodes stay open.
    remove_node("nvidia-caps/nvidia-cap2");
    expect_all(read_memory_and_processes(device(0)), NVML_SUCCESS);
  });
}

TEST_F(RightsTest, TheConfigNodeGivesInstancesButNoModes) {
  remove_node("nvidia-caps/nvidia-cap2");
  without_sys_admin([this] {
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    expect_all(read_memory_and_processes(device(0)), NVML_ERROR_NO_PERMISSION);
    expect_all(configure_instances(), NVML_SUCCESS);
    expect_all(change_gpu(), NVML_ERROR_NO_PERMISSION);
  });
}

TEST_F(RightsTest, TheModesOfTheNodesDecideForAUser) {
  as_nobody([this] {
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    expect_all(read_memory_and_processes(device(0)), NVML_SUCCESS);
    expect_all(configure_instances(), NVML_ERROR_NO_PERMISSION);
    expect_all(change_gpu(), NVML_ERROR_NO_PERMISSION);
  });
}

TEST_F(RightsTest, WithoutTheMonitorRightAMigDeviceIsSeenByItsNodes) {
  const auto find_mig_device = [] {
    nvmlDevice_t found = nullptr;
    EXPECT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    const nvmlReturn_t result = nvmlDeviceGetMigDeviceHandleByIndex(device(0), 0, &found);
    EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
    return result;
  };
  remove_node("nvidia-caps/nvidia-cap2");
  without_sys_admin([&] { EXPECT_EQ(find_mig_device(), NVML_SUCCESS); });
  remove_node("nvidia-caps/nvidia-cap" + std::to_string(instance_minors().back()));
  without_sys_admin([&] { EXPECT_EQ(find_mig_device(), NVML_ERROR_NOT_FOUND); });
  EXPECT_EQ(find_mig_device(), NVML_SUCCESS) << "an administrator needs no node";
  add_node("nvidia-caps/nvidia-cap2", kCapsMajor, kMonitorMinor, 0444);
  without_sys_admin([&] { EXPECT_EQ(find_mig_device(), NVML_SUCCESS); });
}

TEST_F(RightsTest, WithoutTheMonitorRightEventsOfInstancesAreWithheld) {
  const auto receive = [this](std::vector<unsigned long long>& xids) {
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    nvmlEventSet_t set = nullptr;
    ASSERT_EQ(nvmlEventSetCreate(&set), NVML_SUCCESS);
    ASSERT_EQ(nvmlDeviceRegisterEvents(device(0), kEventXid | kEventDoubleBitEcc, set), NVML_SUCCESS);
    {
      const auto machine = state_.lock_for_edit();
      post_event(*machine, 0, kEventXid, 31, instance_, 0);
      post_event(*machine, 0, kEventDoubleBitEcc, 0, instance_, 0);
      post_event(*machine, 0, kEventXid, 79);
    }
    nvmlEventData_t data{};
    while (nvmlEventSetWait_v2(set, &data, 0) == NVML_SUCCESS) xids.push_back(data.eventData);
    ASSERT_EQ(nvmlShutdown(), NVML_SUCCESS);
  };
  std::vector<unsigned long long> with_node;
  without_sys_admin([&] { receive(with_node); });
  EXPECT_EQ(with_node, (std::vector<unsigned long long>{31, 0, 79}));
  remove_node("nvidia-caps/nvidia-cap2");
  std::vector<unsigned long long> without_node;
  without_sys_admin([&] { receive(without_node); });
  EXPECT_EQ(without_node, std::vector<unsigned long long>{79});
}

TEST_F(RightsTest, InitialisationNeedsTheControlNode) {
  ASSERT_EQ(chmod(node("nvidiactl").c_str(), 0600), 0);
  as_nobody([] { EXPECT_EQ(nvmlInit_v2(), NVML_ERROR_NO_PERMISSION); });
  remove_node("nvidiactl");
  EXPECT_EQ(nvmlInit_v2(), NVML_ERROR_DRIVER_NOT_LOADED);
  add_node("nvidiactl", 195, 255, 0666);
  EXPECT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  EXPECT_EQ(control_node_result(EPERM), NVML_ERROR_UNKNOWN) << "of a device cgroup";
}

TEST_F(RightsTest, AGpuWithoutAccessIsNotCounted) {
  remove_node("nvidia1");
  ASSERT_EQ(chmod(node("nvidia2").c_str(), 0600), 0);
  as_nobody([] {
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    unsigned count = 0;
    ASSERT_EQ(nvmlDeviceGetCount_v2(&count), NVML_SUCCESS);
    EXPECT_EQ(count, 2u);
    unsigned minor = 0;
    ASSERT_EQ(nvmlDeviceGetMinorNumber(device(1), &minor), NVML_SUCCESS);
    EXPECT_EQ(minor, 3u);
  });
}

TEST_F(RightsTest, AMachineWithoutNodesBelongsToTheUserWhoMadeIt) {
  state_.lock_for_edit()->driver.has_device_nodes = 0;
  std::filesystem::remove_all(root_ + "/dev");
  as_nobody([this] {
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    expect_all(read_memory_and_processes(device(0)), NVML_ERROR_NO_PERMISSION);
    expect_all(configure_instances(), NVML_ERROR_NO_PERMISSION);
    expect_all(change_gpu(), NVML_ERROR_NO_PERMISSION);
    ASSERT_EQ(nvmlShutdown(), NVML_SUCCESS);
  });
  ASSERT_EQ(chown(state_.file_path().c_str(), kNobody, kNobody), 0);
  as_nobody([this] {
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    expect_all(read_memory_and_processes(device(0)), NVML_SUCCESS);
    expect_all(configure_instances(), NVML_SUCCESS);
    expect_all(change_gpu(), NVML_SUCCESS);
  });
}

}  // namespace
}  // namespace gpulet::sim

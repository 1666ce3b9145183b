// What odd answers of the driver do to a node's devices: every optional function with every return code.
#include <gtest/gtest.h>

#include <algorithm>

#include "agent/driver/nvml_driver.h"
#include "agent/health/evidence_reader.h"
#include "base/test_capabilities.h"
#include "health/state/state_machine.h"
#include "nvml/return_codes.h"
#include "nvml/test_loop_thread.h"
#include "nvml/test_sim_root.h"
#include "sim/state/mig.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using nvml::SimRoot;

// Without these no GPU can be found or identified; a MIG device that the driver does not list does not exist.
constexpr std::string_view kRequired[] = {"nvmlInit_v2",
                                          "nvmlShutdown",
                                          "nvmlErrorString",
                                          "nvmlDeviceGetCount_v2",
                                          "nvmlDeviceGetHandleByIndex_v2",
                                          "nvmlDeviceGetUUID",
                                          "nvmlDeviceGetPciInfo_v3",
                                          "nvmlDeviceGetMigDeviceHandleByIndex"};

constexpr int kLost = 15, kResetRequired = 16;

// The codes of nvml.h that say nothing about the whole GPU, and two that nvml.h does not list.
std::vector<int> harmless_codes() {
  std::vector<int> codes{31, 998};
  for (const auto& row : nvml::return_codes()) {
    if (row.nvml_return != kLost && row.nvml_return != kResetRequired) codes.push_back(row.nvml_return);
  }
  return codes;
}

// `mig`: GPU 0 has seven MIG devices.
std::unique_ptr<sim::Machine> machine_with(std::uint32_t gpus, bool mig) {
  auto machine = sim::small_machine(gpus);
  auto& gpu = machine->gpus[0];
  // Counters that are not zero: a value that comes back is not a new error.
  for (auto& one : machine->gpus) {
    one.ecc[1][0].by_location[2] = 3;
    one.pcie_replays = 40;
    for (auto& link : one.links) link.crc_flit_errors = 500;
  }
  if (!mig) return machine;
  EXPECT_EQ(sim::set_mig_mode(gpu, true), sim::MigOutcome::kOk);
  for (int i = 0; i < 7; ++i) {
    sim::GpuInstance* instance = nullptr;
    sim::ComputeInstance* compute = nullptr;
    EXPECT_EQ(sim::create_gpu_instance(gpu, 19, std::nullopt, &instance), sim::MigOutcome::kOk);
    EXPECT_EQ(sim::create_compute_instance(gpu, *instance, 0, std::nullopt, &compute), sim::MigOutcome::kOk);
  }
  return machine;
}

// Reads and polls as the agent does, without its loop.
class PolledNode {
 public:
  explicit PolledNode(const sim::Machine& machine)
      : root_(machine), session_(nvml::Session::open_session(root_.sim_root()).value()) {}

  // The driver's files in /proc, which have the numbers of the device nodes.
  void add_proc_files() {
    for (const auto& gpu : previous_.gpus)
      root_.add_root_file("proc/driver/nvidia/gpus/" + gpu.pci.sysfs_text() + "/information",
                          "Model: \t\t NVIDIA H100\nDevice Minor: \t " + std::to_string(gpu.minor) + "\n");
  }
  sim::EditGuard edit_machine() { return root_.edit_machine(); }
  // As if the agent had just started.
  void forget_snapshot() { previous_ = {}; }

  void set_answer(std::string_view call, int code) {
    const auto machine = root_.edit_machine();
    auto& answer = machine->answers[0];
    std::snprintf(answer.call, sizeof answer.call, "%s", std::string(call).c_str());
    answer.gpu = sim::kMaxGpus;
    answer.nvml_return = static_cast<std::uint32_t>(code);
    machine->answer_count = code == 0 ? 0 : 1;
  }
  // Returns the number of devices that are offered as healthy.
  std::size_t count_healthy_devices() {
    now_ += 1s;
    inventory::Snapshot snapshot;
    const auto driver = inventory::read_driver_summary(*session_);
    if (!driver) return 0;
    for (unsigned i = 0; i < driver->gpu_count; ++i)
      snapshot.gpus.push_back(inventory::read_gpu(*session_, i, {root_.sim_root()}));
    inventory::fill_from_previous(snapshot.gpus, previous_);
    previous_ = snapshot;
    health_.apply_snapshot(snapshot, now_);
    for (const auto& gpu : snapshot.gpus) {
      const auto device = session_->device(gpu.index);
      if (!device) continue;
      for (const auto& one : read_health_evidence(*session_, *device, {gpu.uuid}, now_))
        health_.add_evidence(one);
      for (const auto& one : read_liveness_evidence(*session_, *device, gpu.uuid, now_))
        health_.add_evidence(one);
    }
    health_.advance_to(now_);
    std::size_t healthy = 0;
    for (const auto& gpu : health_.annotate_health(snapshot).gpus) {
      const auto is_healthy = [&](const auto& device) { return !gpu.unreadable && device.health.healthy; };
      healthy += gpu.mig_enabled
                     ? static_cast<std::size_t>(std::ranges::count_if(gpu.mig_devices, is_healthy))
                     : (is_healthy(gpu) ? 1u : 0u);
    }
    return healthy;
  }
  const inventory::Snapshot& snapshot() const { return previous_; }

 private:
  SimRoot root_;
  std::shared_ptr<const nvml::Session> session_;
  health::HealthStateMachine health_{health::Policy{}, health::XidFilter("", "")};
  inventory::Snapshot previous_;
  Time now_{1000s};
};

class OddAnswers : public testing::TestWithParam<bool> {};

TEST_P(OddAnswers, OfOneFunctionKeepEveryDevice) {
  PolledNode node(*machine_with(2, GetParam()));
  const std::size_t devices = GetParam() ? 8 : 2;
  ASSERT_EQ(node.count_healthy_devices(), devices);
  const auto before = node.snapshot();
  for (const auto function : nvml::called_functions()) {
    if (std::ranges::count(kRequired, function) != 0) continue;
    for (const int code : harmless_codes()) {
      node.set_answer(function, code);
      EXPECT_EQ(node.count_healthy_devices(), devices) << function << " returns " << code;
      for (std::size_t i = 0; i < before.gpus.size(); ++i) {
        const auto& gpu = node.snapshot().gpus[i];
        EXPECT_EQ(gpu.memory, before.gpus[i].memory) << function << " returns " << code;
        EXPECT_EQ(gpu.model, before.gpus[i].model) << function << " returns " << code;
        EXPECT_TRUE(gpu.nvlinks == before.gpus[i].nvlinks) << function << " returns " << code;
        EXPECT_TRUE(gpu.mig_devices == before.gpus[i].mig_devices) << function << " returns " << code;
      }
    }
    node.set_answer(function, 0);
    ASSERT_EQ(node.count_healthy_devices(), devices) << "after " << function;
  }
}

TEST_P(OddAnswers, OfAllFunctionsKeepEveryDevice) {
  PolledNode node(*machine_with(8, GetParam()));
  const std::size_t devices = GetParam() ? 14 : 8;
  ASSERT_EQ(node.count_healthy_devices(), devices);
  for (const int code : harmless_codes()) {
    node.set_answer("*", code);
    EXPECT_EQ(node.count_healthy_devices(), devices) << "all return " << code;
    node.set_answer("*", 0);
    EXPECT_EQ(node.count_healthy_devices(), devices) << "all returned " << code;
  }
}

TEST(OddAnswersAtStart, OfAllFunctionsKeepEveryGpu) {
  PolledNode node(*machine_with(8, false));
  ASSERT_EQ(node.count_healthy_devices(), 8u);
  const auto before = node.snapshot();
  node.add_proc_files();
  for (const int code : harmless_codes()) {
    node.set_answer("*", code);
    node.forget_snapshot();
    EXPECT_EQ(node.count_healthy_devices(), 8u) << "all return " << code;
    for (std::size_t i = 0; i < 8; ++i)
      EXPECT_EQ(node.snapshot().gpus[i].minor, before.gpus[i].minor) << code;
    node.set_answer("*", 0);
    EXPECT_EQ(node.count_healthy_devices(), 8u) << "all returned " << code;
  }
}

// A device node of an unknown number could be another GPU's.
TEST(OddAnswersAtStart, WithoutTheNumberOfItsDeviceNodeAGpuIsNotOffered) {
  PolledNode node(*machine_with(2, false));
  node.set_answer("nvmlDeviceGetMinorNumber", 999);
  EXPECT_EQ(node.count_healthy_devices(), 0u);
  EXPECT_NE(node.snapshot().gpus[0].unreadable->message().find("device node"), std::string::npos);
  node.set_answer("nvmlDeviceGetMinorNumber", 0);
  EXPECT_EQ(node.count_healthy_devices(), 0u) << "until it has been healthy for the hold time";
}

INSTANTIATE_TEST_SUITE_P(Mig, OddAnswers, testing::Bool(),
                         [](const auto& one) { return one.param ? "On" : "Off"; });

TEST(OddAnswersOfAWholeGpu, LostAndResetRequiredWithdrawIt) {
  for (const int code : {kLost, kResetRequired}) {
    PolledNode node(*machine_with(2, false));
    ASSERT_EQ(node.count_healthy_devices(), 2u);
    node.set_answer("nvmlDeviceGetTotalEnergyConsumption", code);
    EXPECT_EQ(node.count_healthy_devices(), 0u) << code;
  }
}

// The driver withholds a GPU's memory from a process that may not monitor MIG: sim/driver/rights.h.
TEST(MissingRights, WithoutTheRightToMonitorMigEveryDeviceStays) {
  run_without_capability(CAP_SYS_ADMIN, [] {
    PolledNode node(*machine_with(2, true));
    EXPECT_EQ(node.count_healthy_devices(), 8u);
    const auto counts = nvml::call_counts();
    EXPECT_TRUE(std::ranges::any_of(counts, [](const nvml::CallCount& one) {
      return one.function.starts_with("nvmlDeviceGetMemoryInfo") && one.code == "NO_PERMISSION";
    }));
  });
}

// What driver 615 answers that 570 does not: NVML's change log, "Changes between NVML v610 and v615".
TEST(Driver615, HasEveryDevice) {
  for (const bool mig : {false, true}) {
    const auto machine = machine_with(2, mig);
    sim::set_text(machine->driver.version, "615.78.08");
    sim::set_text(machine->driver.nvml_version, "13.615.78.08");
    machine->driver.cuda_version = 13050;
    constexpr std::uint64_t kBoardLimitAndReliability = 0x600;
    for (auto& gpu : machine->gpus) gpu.clock_event_reasons |= kBoardLimitAndReliability;
    PolledNode node(*machine);
    EXPECT_EQ(node.count_healthy_devices(), mig ? 8u : 2u);
  }
}

TEST(Driver615, ItsRecoveryActionsWithdrawAGpu) {
  constexpr std::uint32_t kBusReset = 6, kSystemReboot = 7;
  for (const auto action : {kBusReset, kSystemReboot}) {
    PolledNode node(*machine_with(2, false));
    ASSERT_EQ(node.count_healthy_devices(), 2u);
    node.edit_machine()->gpus[0].recovery_action = action;
    EXPECT_EQ(node.count_healthy_devices(), 1u) << action;
  }
}

}  // namespace
}  // namespace gpulet::agent

// The checks on the simulated libcuda: each run is a process of its own, as a CUDA client is.
#include "preflight/checks.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "sim/control/answers.h"
#include "sim/control/control.h"
#include "sim/machine/machine.h"

namespace gpulet::preflight {
namespace {

namespace control = sim::control;
using control::CudaFault;

class PreflightChecks : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/gpulet-preflight-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    directory_ = pattern;
    start_machine("hgx-h100");
    setenv("GPULET_SIM_STATE", (directory_ + "/state").c_str(), 1);
  }
  void TearDown() override {
    unsetenv("GPULET_SIM_STATE");
    unsetenv("CUDA_VISIBLE_DEVICES");
    std::filesystem::remove_all(directory_);
  }
  void start_machine(const std::string& name) {
    const auto machine = sim::load_machine(name);
    ASSERT_TRUE(machine) << machine.error().full_message();
    auto made = sim::StateFile::create_state(directory_ + "/state", **machine);
    ASSERT_TRUE(made) << made.error().full_message();
    state_ = std::move(*made);
  }
  std::string uuid(std::uint32_t gpu) const { return state_.lock_for_read()->gpus[gpu].uuid; }
  CheckOptions options() const {
    return {.library = GPULET_SIM_CUDA_LIBRARY,
            .gpu = uuid(0),
            .peers = {uuid(1)},
            .checks = {Check::kMemory, Check::kCompute, Check::kHostCopy, Check::kPeerCopy},
            .memory_mib = 128};
  }
  Report run(const CheckOptions& options) const {
    const auto path = directory_ + "/report";
    const pid_t child = fork();
    if (child == 0) {
      setenv("CUDA_VISIBLE_DEVICES", visible_devices(options).c_str(), 1);
      const auto written = write_file_atomic(path, format_report(run_checks(options)));
      _exit(written ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    const auto report = parse_report(read_file(path).value_or(""));
    EXPECT_TRUE(report) << report.error().full_message();
    return report.value_or(Report{});
  }
  static std::string outcomes(const Report& report) {
    std::string text;
    for (const auto& check : report.checks)
      text += std::string(text.empty() ? "" : " ") + std::string(enum_name(check.outcome));
    return text;
  }
  static std::string texts(const Report& report) {
    std::string text;
    for (const auto& check : report.checks) text += describe_check(check) + "\n";
    return text;
  }

  std::string directory_;
  sim::StateFile state_;
};

TEST_F(PreflightChecks, AHealthyGpuPasses) {
  for (const char* machine : {"hgx-h100", "dgx-a100", "dgx1-v100"}) {
    SCOPED_TRACE(machine);
    start_machine(machine);
    const auto report = run(options());
    EXPECT_EQ(outcomes(report), "passed passed passed passed") << texts(report);
    EXPECT_EQ(report.checks.at(0).message, "128 MiB");
    EXPECT_TRUE(report.checks.at(2).expected_bytes_per_second);
    EXPECT_EQ(report.model, state_.lock_for_read()->gpus[0].name);
  }
  start_machine("t4");
  EXPECT_EQ(outcomes(run(options())), "passed passed passed not-run") << "no NVLink";
  EXPECT_EQ(state_.lock_for_read()->gpus[0].processes[0].pid, 0u) << "nothing is left on the GPU";
}

TEST_F(PreflightChecks, EachFaultIsFoundByItsCheck) {
  struct Row {
    CudaFault fault;
    std::uint32_t number;
    const char* outcomes;
    const char* text;
  };
  const Row rows[] = {
      {CudaFault::kBadMemory, 0, "failed failed passed passed",
       "memory: the word at offset 0x1014 reads 0x55555545, written 0x55555555; 1 wrong in 64 MiB"},
      {CudaFault::kWrongResult, 0, "passed failed passed passed", "compute: thread 7 computes 0x"},
      {CudaFault::kLaunchError, 719, "passed failed passed passed", "launch: CUDA_ERROR_LAUNCH_FAILED"},
      {CudaFault::kLaunchError, 2, "passed not-run passed passed", "launch: CUDA_ERROR_OUT_OF_MEMORY"},
      {CudaFault::kSlowCopies, 20, "passed passed slow slow", "; usual is 45.0 GB/s"},
      {CudaFault::kSlowCopies, 80, "passed passed passed passed", ""},
  };
  for (const auto& row : rows) {
    ASSERT_TRUE(control::heal_faults(state_, std::nullopt));
    ASSERT_TRUE(control::set_cuda_fault(state_, 0, row.fault, row.number));
    const auto report = run(options());
    EXPECT_EQ(outcomes(report), row.outcomes) << texts(report);
    EXPECT_NE(texts(report).find(row.text), std::string::npos) << texts(report);
  }
  ASSERT_TRUE(control::heal_faults(state_, std::nullopt));
  ASSERT_TRUE(control::set_cuda_fault(state_, 0, CudaFault::kBadMemory));
  auto other = options();
  other.gpu = uuid(2);
  EXPECT_EQ(outcomes(run(other)), "passed passed passed passed") << "the others are sound";
  ASSERT_TRUE(control::heal_faults(state_, std::nullopt));
  ASSERT_TRUE(control::set_pcie_width(state_, 0, 4));
  EXPECT_EQ(outcomes(run(options())), "passed passed slow passed");
}

TEST_F(PreflightChecks, WhatCannotRunIsNotBroken) {
  const auto all_not_run = [&](const CheckOptions& wanted, const char* why) {
    const auto report = run(wanted);
    EXPECT_EQ(outcomes(report), "not-run not-run not-run not-run") << texts(report);
    EXPECT_NE(texts(report).find(why), std::string::npos) << texts(report);
  };
  auto changed = options();
  changed.library = directory_ + "/libcuda.so.1";
  all_not_run(changed, "cannot load libcuda");
  changed = options();
  changed.gpu = "GPU-00000000-0000-0000-0000-000000000000";
  all_not_run(changed, "cuInit: CUDA_ERROR_NO_DEVICE");
  state_.lock_for_edit()->gpus[0].compute_mode = 2;
  all_not_run(options(), "context: CUDA_ERROR_DEVICE_UNAVAILABLE");
  state_.lock_for_edit()->gpus[0].compute_mode = 0;
  changed = options();
  changed.limit = std::chrono::milliseconds(0);
  all_not_run(changed, "the time was used up");
  const auto leave_free = [&](std::uint64_t mib) {
    const auto machine = state_.lock_for_edit();
    auto& gpu = machine->gpus[0];
    gpu.memory_used = gpu.memory_total - gpu.memory_reserved - (mib << 20);
  };
  leave_free(700);
  EXPECT_EQ(outcomes(run(options())), "passed passed passed passed") << "what is free suffices";
  leave_free(560);
  const auto report = run(options());
  EXPECT_EQ(report.checks.at(0).message, "no memory is free") << texts(report);
  EXPECT_EQ(outcomes(report), "not-run passed not-run not-run") << texts(report);
}

}  // namespace
}  // namespace gpulet::preflight

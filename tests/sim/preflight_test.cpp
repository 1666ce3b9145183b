// GPUs are checked by CUDA before they are offered after a boot and after a fault; a faulty one is withdrawn
// until it passes, and neither a restart of the agent nor a GPU in use is disturbed.
#include <future>
#include <set>

#include "base/file.h"
#include "preflight/preflight_policy.h"
#include "sim/control/answers.h"
#include "tests/sim/claim_fixture.h"
#include "tests/sim/release_fixture.h"

namespace gpulet::tests {
namespace {

using control::CudaFault;
using PreflightKind = preflight::Verdict::Kind;

class SimPreflight : public SimRelease {
 protected:
  void start_checking_agent(std::vector<std::string> more = {}) {
    // Of two values of a variable the first counts.
    more.insert(more.end(), {"GPULET_PREFLIGHT=true", "GPULET_PREFLIGHT_CHECKS=memory,compute",
                             "GPULET_PREFLIGHT_MEMORY_MIB=64", "GPULET_PREFLIGHT_TIMEOUT=1m",
                             "GPULET_PREFLIGHT_RETRY_INTERVAL=1s", "GPULET_HEALTH_RECOVERY_HOLD=1s",
                             "GPULET_HEALTH_UNHEALTHY_POLL_INTERVAL=200ms"});
    start_agent({.environment = std::move(more)});
  }
  // The agent's children that check a GPU.
  std::set<pid_t> preflights() const {
    auto children = agent_children();
    std::erase_if(children, [](pid_t child) {
      const auto command = read_file("/proc/" + std::to_string(child) + "/cmdline");
      return !command || command->find("preflight") == std::string::npos;
    });
    return children;
  }
  std::string record_path() { return preflight::boot_record_path(sim_node().state_dir()); }
  bool is_recorded(std::size_t gpus) {
    return becomes_true([&] {
      const auto record = preflight::read_boot_record(record_path());
      return record && record->gpus.size() == gpus;
    });
  }
  std::size_t times_logged(const std::string& part) {
    const auto log = agent_log();
    std::size_t count = 0;
    for (auto at = log.find(part); at != std::string::npos; at = log.find(part, at + 1)) ++count;
    return count;
  }
  // "failed: memory: …"
  std::string shown_result(std::uint32_t gpu) {
    const auto report = health::read_report(sim_node().health_file());
    const auto* device = report ? report->find({DeviceUuid(gpu_uuid(gpu))}) : nullptr;
    return device == nullptr ? "" : device->preflight + ": " + device->preflight_detail;
  }
  // The report is written after the kubelet has the devices.
  bool becomes_shown(std::uint32_t gpu, const std::string& text) {
    return becomes_true([&] { return shown_result(gpu).starts_with(text); });
  }
};

TEST_F(SimPreflight, AFaultyGpuIsOfferedOnceItPasses) {
  bring_up_node("t4");
  ASSERT_TRUE(control::set_cuda_fault(machine_state(), 1, CudaFault::kBadMemory));
  ASSERT_TRUE(control::set_cuda_fault(machine_state(), 2, CudaFault::kSlowCopies, 20));
  ASSERT_TRUE(control::set_cuda_fault(machine_state(), 3, CudaFault::kWrongResult));
  start_checking_agent({"GPULET_PREFLIGHT_CHECKS=memory,compute,host-copy,peer-copy"});
  EXPECT_TRUE(becomes_true([&] { return shown_result(0).starts_with("waiting"); })) << agent_log();
  const auto resources = sim_kubelet().kubelet_state().resources;
  EXPECT_TRUE(resources.empty() || resources.at(kGpu).allocatable() == 0);
  EXPECT_NE(run_gpulet(0, {"health", gpu_uuid(0)}).find("preflight  waiting"), std::string::npos);
  EXPECT_NE(read_file(sim_node().health_file()).value_or("").find(R"("offered": false)"), std::string::npos);
  EXPECT_TRUE(becomes_allocatable(1)) << agent_log();
  EXPECT_TRUE(becomes_unhealthy({gpu_uuid(1), gpu_uuid(2), gpu_uuid(3)})) << agent_log();
  EXPECT_NE(wait_for_log("NotOffered", "waits for its preflight: it is not offered"), "");
  EXPECT_NE(wait_for_log("GpuPreflight", "GPUs checked: 2 failed, 1 passed, 1 slow"), "") << agent_log();
  EXPECT_TRUE(becomes_shown(1, "failed: memory: ")) << shown_result(1);
  EXPECT_TRUE(becomes_shown(2, "slow: ")) << shown_result(2);
  EXPECT_TRUE(becomes_shown(3, "failed: compute: ")) << shown_result(3);
  EXPECT_TRUE(becomes_shown(0, "passed: ")) << shown_result(0);
  EXPECT_TRUE(is_recorded(4));
  const auto page = http_get(sim_node().socket(), "/metrics").body;
  EXPECT_NE(page.find(R"(check="memory",peer="",result="failed"} 1)"), std::string::npos) << page;
  const auto node = http_get(sim_node().socket(), "/api/node").body;
  EXPECT_NE(node.find(R"("preflight":{"result":"failed","detail":"compute: )"), std::string::npos) << node;
  EXPECT_NE(node.find(R"("preflight":{"result":"passed","detail":"peer-copy with GPU-)"), std::string::npos)
      << node;
  ASSERT_TRUE(control::heal_faults(machine_state(), std::nullopt));
  EXPECT_TRUE(becomes_allocatable(4)) << agent_log();
}

// Its peers are slow with it, and pass with another one.
TEST_F(SimPreflight, AGpuWithSlowCopiesToItsPeersIsWithdrawnAlone) {
  bring_up_node("gb200");
  ASSERT_TRUE(control::set_cuda_fault(machine_state(), 2, CudaFault::kSlowCopies, 20));
  start_checking_agent({"GPULET_PREFLIGHT_CHECKS=peer-copy"});
  EXPECT_TRUE(becomes_allocatable(3)) << agent_log();
  EXPECT_TRUE(becomes_unhealthy({gpu_uuid(2)})) << agent_log();
  EXPECT_NE(wait_for_log("GpuPreflight", "GPUs checked: 3 passed, 1 slow"), "") << agent_log();
  EXPECT_TRUE(becomes_shown(2, "slow: peer-copy with GPU-")) << shown_result(2);
  const auto node = http_get(sim_node().socket(), "/api/node").body;
  EXPECT_NE(node.find(R"("preflight":{"result":"passed","detail":""})"), std::string::npos) << node;
}

TEST_F(SimPreflight, ARestartOfTheAgentChecksNothingAgain) {
  bring_up_node("t4");
  start_checking_agent();
  EXPECT_TRUE(becomes_allocatable(4)) << agent_log();
  EXPECT_EQ(times_logged("preflight of a GPU"), 4u) << agent_log();
  ASSERT_TRUE(is_recorded(4));
  ASSERT_TRUE(sim_node().stop_agent());
  ASSERT_TRUE(control::set_cuda_fault(machine_state(), 2, CudaFault::kBadMemory));
  start_checking_agent();
  EXPECT_TRUE(becomes_true([&] { return times_logged("registered with the kubelet") > 0; })) << agent_log();
  EXPECT_TRUE(becomes_allocatable(4)) << agent_log();
  EXPECT_EQ(times_logged("preflight of a GPU"), 0u) << agent_log();
  EXPECT_TRUE(becomes_shown(2, "passed")) << shown_result(2);

  ASSERT_TRUE(sim_node().stop_agent());
  auto record = preflight::read_boot_record(record_path());
  ASSERT_TRUE(record);
  record->boot_id = "another-boot";
  ASSERT_TRUE(preflight::write_boot_record(record_path(), *record));
  start_checking_agent();
  EXPECT_TRUE(becomes_allocatable(3)) << agent_log();
  EXPECT_NE(wait_for_log("GPUUnhealthy", "the word at offset 0x1014 reads"), "") << agent_log();
}

TEST_F(SimPreflight, AGpuInUseIsLeftAlone) {
  start_node("t4");
  const auto pod = admit_pod("trainer", 1);
  const auto gpu = gpu_index(granted_ids(pod).at(0));
  ASSERT_TRUE(control::set_cuda_fault(machine_state(), gpu, CudaFault::kBadMemory));
  ASSERT_TRUE(sim_node().stop_agent());
  start_checking_agent();
  EXPECT_TRUE(becomes_allocatable(4)) << agent_log();
  EXPECT_TRUE(becomes_shown(gpu, "unknown: held by Pod default/trainer")) << shown_result(gpu);
  EXPECT_TRUE(becomes_true([&] { return times_logged("preflight of a GPU") == 4; })) << agent_log();
}

TEST_F(SimPreflight, ARepairedGpuIsCheckedBeforeItReturns) {
  bring_up_node("t4");
  start_checking_agent();
  EXPECT_TRUE(becomes_allocatable(4)) << agent_log();
  ASSERT_TRUE(control::set_cuda_fault(machine_state(), 3, CudaFault::kWrongResult));
  // No recovery action is pending: without the preflight it returned after the hold time.
  sim::post_event(*machine_state().lock_for_edit(), 3, sim::kEventXid, 95);
  EXPECT_TRUE(becomes_unhealthy({gpu_uuid(3)}));
  EXPECT_TRUE(becomes_shown(3, "failed: compute: ")) << agent_log();
  EXPECT_TRUE(becomes_unhealthy({gpu_uuid(3)}));
  ASSERT_TRUE(control::heal_faults(machine_state(), 3));
  EXPECT_TRUE(becomes_allocatable(4)) << agent_log();
}

TEST_F(SimPreflight, AHangCountsTheSecondTime) {
  bring_up_node("t4");
  ASSERT_TRUE(control::set_cuda_fault(machine_state(), 1, CudaFault::kHang));
  start_checking_agent({"GPULET_PREFLIGHT_TIMEOUT=10s", "GPULET_PREFLIGHT_CHECKS=memory"});
  EXPECT_NE(wait_for_log("GPUUnhealthy", "hung twice: the checks did not end within 10s"), "") << agent_log();
  EXPECT_TRUE(becomes_allocatable(3)) << agent_log();
  EXPECT_TRUE(becomes_unhealthy({gpu_uuid(1)}));
  ASSERT_TRUE(control::heal_faults(machine_state(), 1));
  EXPECT_TRUE(becomes_allocatable(4)) << agent_log();
}

TEST_F(SimPreflight, WithoutCudaEveryGpuIsOffered) {
  bring_up_node("hgx-h100");
  const auto library = sim_node().driver_root() + "/usr/lib/x86_64-linux-gnu/libcuda.so.1";
  ASSERT_EQ(::unlink(library.c_str()), 0) << library;
  start_checking_agent();
  EXPECT_TRUE(becomes_allocatable(8)) << agent_log();
  EXPECT_TRUE(becomes_shown(0, "unknown: ")) << shown_result(0);
}

// Whether a GPU is idle is then not known.
TEST_F(SimPreflight, WithoutAListOfProcessesNothingIsChecked) {
  bring_up_node("t4");
  constexpr int kNoPermission = 4;
  ASSERT_TRUE(control::set_answer(machine_state(), "nvmlDeviceGetComputeRunningProcesses_v3", std::nullopt,
                                  kNoPermission));
  start_checking_agent();
  EXPECT_TRUE(becomes_allocatable(4)) << agent_log();
  EXPECT_TRUE(becomes_shown(0, "unknown: cannot list the processes that use it: ")) << shown_result(0);
}

TEST_F(SimPreflight, AReleaseOfTheDriverEndsTheRuns) {
  bring_up_node("t4");
  ASSERT_TRUE(control::set_cuda_fault(machine_state(), 0, CudaFault::kHang));
  start_checking_agent({"GPULET_PREFLIGHT_TIMEOUT=10m"});
  ASSERT_TRUE(becomes_true([&] { return !preflights().empty(); }));
  run_gpulet(0, {"driver", "release"});
  EXPECT_TRUE(preflights().empty()) << "none holds the driver when it is said to be closed";
  EXPECT_FALSE(is_driver_held()) << agent_log();
  ASSERT_TRUE(control::heal_faults(machine_state(), 0));
  run_gpulet(0, {"driver", "acquire"});
  EXPECT_TRUE(becomes_allocatable(4)) << agent_log();
  EXPECT_TRUE(becomes_shown(0, "passed: ")) << shown_result(0);
}

// The run may have ended it, by the memory that both have in common.
TEST_F(SimPreflight, AnAgentThatEndsDuringAPreflightDoesNotRepeatIt) {
  bring_up_node("t4");
  ASSERT_TRUE(control::set_cuda_fault(machine_state(), 0, CudaFault::kHang));
  start_checking_agent({"GPULET_PREFLIGHT_TIMEOUT=10m"});
  ASSERT_TRUE(becomes_true([&] { return times_logged("preflight of a GPU") == 3; })) << agent_log();
  sim_node().kill_agent();
  start_checking_agent({"GPULET_PREFLIGHT_TIMEOUT=10m"});
  EXPECT_TRUE(becomes_allocatable(4)) << agent_log();
  EXPECT_TRUE(becomes_shown(0, "unknown: the agent ended during its preflight")) << shown_result(0);
}

TEST_F(SimPreflight, AnAgentThatIsStoppedLeavesItsRunsToTheNext) {
  bring_up_node("t4");
  ASSERT_TRUE(control::set_cuda_fault(machine_state(), 0, CudaFault::kHang));
  start_checking_agent({"GPULET_PREFLIGHT_TIMEOUT=10m"});
  ASSERT_TRUE(becomes_true([&] { return !preflights().empty(); }));
  ASSERT_TRUE(sim_node().stop_agent());
  const auto record = preflight::read_boot_record(record_path());
  ASSERT_TRUE(record);
  EXPECT_TRUE(record->started.empty());
  ASSERT_TRUE(control::heal_faults(machine_state(), 0));
  start_checking_agent();
  EXPECT_TRUE(becomes_allocatable(4)) << agent_log();
  EXPECT_TRUE(becomes_shown(0, "passed: ")) << shown_result(0);
}

using SimPreflightClaims = ClaimNodeTest;

TEST_F(SimPreflightClaims, ClaimsGetAGpuAfterItsPreflight) {
  ASSERT_TRUE(control::set_cuda_fault(machine_state(), 0, CudaFault::kHang));
  auto options = claim_options(kClaimPod);
  for (const char* variable : {"GPULET_PREFLIGHT=true", "GPULET_PREFLIGHT_MEMORY_MIB=64",
                               "GPULET_PREFLIGHT_CHECKS=memory", "GPULET_PREFLIGHT_TIMEOUT=10m"})
    options.environment.emplace_back(variable);
  start_agent(options);
  register_driver(kClaimPod);
  ASSERT_TRUE(becomes_true(
      [&] { return agent_log().find("preflight of a GPU") != std::string::npos; }));  // of the others
  // The agent lets a claim wait for its GPU.
  auto prepared = std::async(std::launch::async, [this] { return prepare(kClaimPod, "gpu-0-a"); });
  EXPECT_TRUE(becomes_true([&] {
    const auto node = http_get(sim_node().socket(), "/api/node").body;
    return node.find("gpu-0-a") != std::string::npos;
  })) << agent_log();
  EXPECT_EQ(slices_.devices().find("gpu-0"), std::string::npos) << slices_.devices();
  ASSERT_TRUE(control::heal_faults(machine_state(), 0));
  EXPECT_TRUE(becomes_true([&] {
    const auto devices = slices_.devices();
    return devices.find("gpu-0") != std::string::npos && devices.find("gpu-7") != std::string::npos;
  })) << agent_log();
  EXPECT_EQ(prepared.get(), "");
}

}  // namespace
}  // namespace gpulet::tests

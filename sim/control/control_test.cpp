#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "sim/control/answers.h"
#include "sim/control/control.h"
#include "sim/machine/machine.h"
#include "sim/state/clients.h"
#include "sim/state/counters.h"
#include "sim/state/mig.h"

namespace gpulet::sim::control {
namespace {

class ControlTest : public testing::Test {
 protected:
  void SetUp() override { start_machine("hgx-h100"); }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void start_machine(const std::string& machine) {
    if (directory_.empty()) {
      char pattern[] = "/tmp/gpulet-control-XXXXXX";
      ASSERT_NE(mkdtemp(pattern), nullptr);
      directory_ = pattern;
    }
    auto made = StateFile::create_state(directory_ + "/state", **load_machine(machine));
    ASSERT_TRUE(made) << made.error().full_message();
    state_ = std::move(*made);
  }
  Gpu read_gpu(std::uint32_t index) { return state_.lock_for_read()->gpus[index]; }
  Event last_event() {
    const ReadGuard machine = state_.lock_for_read();
    return machine->events[machine->last_event % kMaxEvents];
  }
  std::string directory_;
  StateFile state_;
};

TEST_F(ControlTest, FindsAGpuByIndexUuidOrAddress) {
  EXPECT_EQ(find_gpu(state_, "3").value(), 3u);
  EXPECT_EQ(find_gpu(state_, read_gpu(5).uuid).value(), 5u);
  EXPECT_EQ(find_gpu(state_, "0000:1B:00.0").value(), 0u);
  EXPECT_EQ(find_gpu(state_, "00000000:DF:00.0").value(), 7u);
  EXPECT_EQ(find_gpu(state_, "8").error().code(), Code::kNotFound);
  EXPECT_EQ(post_xid(state_, 8, 79).error().code(), Code::kNotFound);
}

TEST_F(ControlTest, AnswersAreSetReplacedAndEnded) {
  const auto count = [this] { return state_.lock_for_read()->answer_count; };
  ASSERT_TRUE(set_answer(state_, "nvmlDeviceGetName", 1, 27));
  ASSERT_TRUE(set_answer(state_, "nvmlDeviceGetName", std::nullopt, 4));
  ASSERT_TRUE(set_answer(state_, "nvmlDeviceGetName", 1, 19));
  ASSERT_EQ(count(), 2u);
  EXPECT_EQ(state_.lock_for_read()->answers[0].nvml_return, 19u);
  ASSERT_TRUE(heal_faults(state_, 1));
  ASSERT_EQ(count(), 1u);
  EXPECT_EQ(state_.lock_for_read()->answers[0].gpu, kMaxGpus);
  ASSERT_TRUE(set_answer(state_, "nvmlDeviceGetName", std::nullopt, 0));
  EXPECT_EQ(count(), 0u);
  EXPECT_EQ(set_answer(state_, "nvmlDeviceGetName", 8, 4).error().code(), Code::kNotFound);
  EXPECT_EQ(set_answer(state_, std::string(64, 'x'), 0, 4).error().code(), Code::kInvalidArgument);
  for (std::size_t i = 0; i < kMaxAnswers; ++i)
    ASSERT_TRUE(set_answer(state_, "call" + std::to_string(i), 0, 4));
  EXPECT_EQ(set_answer(state_, "nvmlDeviceGetName", 0, 4).error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(heal_faults(state_, std::nullopt));
  EXPECT_EQ(count(), 0u);
}

TEST_F(ControlTest, LoadRisesAndEnds) {
  const Gpu idle = read_gpu(1);
  ASSERT_TRUE(set_load(state_, 1, {80, 40'000, 1234}));
  const Gpu busy = read_gpu(1);
  EXPECT_EQ(busy.utilization_gpu, 80u);
  EXPECT_EQ(memory_in_use(busy), std::uint64_t{40'000} << 20);
  EXPECT_EQ(busy.processes[0].pid, 1234u);
  EXPECT_EQ(busy.clocks.current[0], 1980);
  EXPECT_EQ(busy.power_usage_mw, 70'000 + 630'000 * 80 / 100);
  EXPECT_GT(busy.temperature, idle.temperature);
  EXPECT_LT(busy.temperature, busy.temperature_gpu_max);
  EXPECT_EQ(busy.links_load, 80u);
  EXPECT_EQ(busy.pcie_rx_kbps, 4'000'000u);
  ASSERT_TRUE(set_load(state_, 1, {0, 0, 1234}));
  const Gpu after = read_gpu(1);
  EXPECT_EQ(after.power_usage_mw, idle.power_usage_mw);
  EXPECT_EQ(after.temperature, idle.temperature);
  EXPECT_EQ(after.links_load, 0u);
  EXPECT_EQ(after.clocks.current[0], idle.clocks.current[0]);
  EXPECT_EQ(memory_in_use(after), 0u);
  EXPECT_EQ(set_load(state_, 1, {101}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(set_load(state_, 1, {10, 90'000}).error().code(), Code::kInvalidArgument)
      << "more than the GPU has";
}

TEST_F(ControlTest, XidsPostTheEventAndTheCataloguesAction) {
  ASSERT_TRUE(post_xid(state_, 2, 94));
  EXPECT_EQ(last_event().type, kEventXid);
  EXPECT_EQ(last_event().data, 94u);
  EXPECT_EQ(last_event().gpu, 2u);
  EXPECT_EQ(last_event().gpu_instance, kNoInstance);
  EXPECT_EQ(read_gpu(2).recovery_action, 0u);
  ASSERT_TRUE(post_xid(state_, 2, 95));
  EXPECT_EQ(read_gpu(2).recovery_action, 1u);
  EXPECT_EQ(last_event().type, kEventGpuRecoveryAction);
  EXPECT_EQ(last_event().data, 1u);
  ASSERT_TRUE(post_xid(state_, 2, 79));
  EXPECT_EQ(read_gpu(2).recovery_action, 2u);
  ASSERT_TRUE(post_xid(state_, 2, 48));
  EXPECT_EQ(read_gpu(2).recovery_action, 2u) << "a lesser action does not hide a greater one";
  for (const std::uint64_t harmless : {13, 31, 43, 45, 63, 68, 92, 94, 121, 137, 157})
    EXPECT_EQ(recovery_action_of(harmless), 0u) << harmless;
  for (const std::uint64_t resetting : {46, 48, 62, 64, 74, 95, 109, 119, 120, 140, 149, 156})
    EXPECT_EQ(recovery_action_of(resetting), 1u) << resetting;
}

TEST_F(ControlTest, AnXidOfAnInstanceNamesIt) {
  EXPECT_EQ(post_xid(state_, 0, 13, 1).error().code(), Code::kNotFound);
  {
    const EditGuard machine = state_.lock_for_edit();
    Gpu& one = machine->gpus[0];
    GpuInstance* instance = nullptr;
    ComputeInstance* compute = nullptr;
    ASSERT_EQ(set_mig_mode(one, true), MigOutcome::kOk);
    ASSERT_EQ(create_gpu_instance(one, 9, 4, &instance), MigOutcome::kOk);
    ASSERT_EQ(create_compute_instance(one, *instance, 2, std::nullopt, &compute), MigOutcome::kOk);
  }
  ASSERT_TRUE(post_xid(state_, 0, 13, 1, 0));
  EXPECT_EQ(last_event().gpu_instance, 1u);
  EXPECT_EQ(last_event().compute_instance, 0u);
  EXPECT_EQ(post_xid(state_, 0, 13, kNoInstance, 0).error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(set_load(state_, 0, {50, 1000, 77, 1, 0}));
  EXPECT_EQ(memory_in_use(read_gpu(0), 1), std::uint64_t{1000} << 20);
}

TEST_F(ControlTest, EccCountsAndPostsAnEvent) {
  ASSERT_TRUE(count_ecc_errors(state_, 0, Ecc::kCorrected, 5));
  EXPECT_EQ(last_event().type, kEventSingleBitEcc);
  ASSERT_TRUE(count_ecc_errors(state_, 0, Ecc::kUncorrected, 2));
  EXPECT_EQ(last_event().type, kEventDoubleBitEcc);
  EXPECT_EQ(read_gpu(0).ecc[0][0].by_location[2], 5u);
  EXPECT_EQ(read_gpu(0).ecc[1][1].by_location[2], 2u);
  EXPECT_EQ(read_gpu(0).retired_page_count, 0u) << "Hopper remaps rows";
  start_machine("dgx1-v100");
  ASSERT_TRUE(count_ecc_errors(state_, 0, Ecc::kUncorrected, 1));
  EXPECT_EQ(read_gpu(0).retired_page_count, 1u);
  EXPECT_EQ(read_gpu(0).retired_pages_pending, 1);
  EXPECT_EQ(remap_row(state_, 0, Remap::kPending).error().code(), Code::kUnsupported);
}

TEST_F(ControlTest, HeatSlowsDown) {
  ASSERT_TRUE(set_temperature(state_, 0, 88));
  EXPECT_EQ(read_gpu(0).clock_event_reasons & 0x20, 0x20u);
  EXPECT_EQ(read_gpu(0).clock_event_reasons & 0x40, 0u);
  ASSERT_TRUE(set_temperature(state_, 0, 90));
  EXPECT_EQ(read_gpu(0).clock_event_reasons & 0x48, 0x48u);
  ASSERT_TRUE(heal_faults(state_, 0));
  EXPECT_EQ(read_gpu(0).clock_event_reasons & 0x68, 0u);
  EXPECT_EQ(read_gpu(0).temperature, 30);
  EXPECT_FALSE(set_temperature(state_, 0, 999));
}

TEST_F(ControlTest, RowsRemapUntilAReset) {
  ASSERT_TRUE(remap_row(state_, 0, Remap::kPending));
  EXPECT_EQ(read_gpu(0).remapped_rows.pending, 1u);
  EXPECT_EQ(read_gpu(0).recovery_action, 4u);
  ASSERT_TRUE(reset_gpu(state_, 0));
  EXPECT_EQ(read_gpu(0).remapped_rows.pending, 0u);
  EXPECT_EQ(read_gpu(0).recovery_action, 0u);
  EXPECT_EQ(last_event().type, kEventGpuRecoveryAction);
  ASSERT_TRUE(set_load(state_, 0, {50}));
  EXPECT_EQ(reset_gpu(state_, 0).error().code(), Code::kFailedPrecondition) << "in use";
}

TEST_F(ControlTest, LinkIsDownAtBothEnds) {
  start_machine("dgx1-v100");
  const NvLink link = read_gpu(0).links[0];
  ASSERT_EQ(link.remote, kRemoteGpu);
  ASSERT_TRUE(change_nvlink(state_, 0, 0, LinkChange::kDown));
  EXPECT_EQ(read_gpu(0).links[0].active, 0);
  EXPECT_EQ(read_gpu(1).links[link.remote_link].active, 0);
  ASSERT_TRUE(change_nvlink(state_, 0, 0, LinkChange::kErrors, 7));
  EXPECT_EQ(read_gpu(0).links[0].crc_flit_errors, 7u);
  ASSERT_TRUE(heal_faults(state_, 0));
  EXPECT_EQ(read_gpu(0).links[0].active, 1);
  ASSERT_TRUE(change_nvlink(state_, 0, 0, LinkChange::kUp));
  EXPECT_EQ(read_gpu(1).links[link.remote_link].active, 1);
  EXPECT_EQ(change_nvlink(state_, 0, 6, LinkChange::kDown).error().code(), Code::kNotFound);
}

TEST_F(ControlTest, AMigFaultIsSeenAndReplacedByAnother) {
  const auto faults = [&] {
    return nlohmann::json::parse(status_json(*state_.lock_for_read()))["gpus"][0]["faults"];
  };
  ASSERT_TRUE(fail_mig(state_, 0, 19, 2));
  EXPECT_EQ(faults(), nlohmann::json({"MIG error 19"}));
  EXPECT_EQ(read_gpu(0).faults.mig_skip, 2u);
  ASSERT_TRUE(hang_mig(state_, 0));
  EXPECT_EQ(faults(), nlohmann::json({"MIG hangs"}));
  EXPECT_EQ(read_gpu(0).faults.mig_skip, 0u);
  ASSERT_TRUE(fail_mig(state_, 0, 0, 5));
  EXPECT_TRUE(faults().empty());
  EXPECT_EQ(read_gpu(0).faults.mig_skip, 0u);
  EXPECT_EQ(fail_mig(state_, 99, 19).error().code(), Code::kNotFound);
}

TEST_F(ControlTest, HealEndsEveryFaultAndKeepsUuids) {
  std::vector<std::string> before;
  for (std::uint32_t i = 0; i < 8; ++i) before.emplace_back(read_gpu(i).uuid);
  ASSERT_TRUE(lose_gpu(state_, 0, true));
  EXPECT_EQ(last_event().type, kEventGpuRecoveryAction);
  ASSERT_TRUE(hang_calls(state_, 1));
  ASSERT_TRUE(slow_calls(state_, 2, 500));
  ASSERT_TRUE(fail_gpu(state_, 3, 999));
  ASSERT_TRUE(slow_calls(state_, std::nullopt, 5));
  ASSERT_TRUE(hang_calls(state_, std::nullopt));
  ASSERT_TRUE(fail_init(state_, 9));
  ASSERT_TRUE(fail_event_wait(state_, 999));
  EXPECT_EQ(nlohmann::json::parse(status_json(*state_.lock_for_read()))["driver"]["faults"].size(), 4u);
  ASSERT_TRUE(heal_faults(state_, std::nullopt));
  const auto status = nlohmann::json::parse(status_json(*state_.lock_for_read()));
  EXPECT_TRUE(status["driver"]["faults"].empty());
  for (std::uint32_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(status["gpus"][i]["faults"].empty()) << i;
    EXPECT_EQ(status["gpus"][i]["uuid"], before[i]);
  }
}

TEST_F(ControlTest, ReplaceIsAnotherCard) {
  const Gpu before = read_gpu(4);
  ASSERT_TRUE(lose_gpu(state_, 4));
  ASSERT_TRUE(replace_gpu(state_, 4));
  EXPECT_STRNE(read_gpu(4).uuid, before.uuid);
  EXPECT_STRNE(read_gpu(4).serial, before.serial);
  EXPECT_EQ(read_gpu(4).faults.lost, 0);
  EXPECT_EQ(read_gpu(4).minor, before.minor);
  EXPECT_STREQ(read_gpu(5).uuid, (*load_machine("hgx-h100"))->gpus[5].uuid);
}

TEST_F(ControlTest, DriverReloadsInAnotherVersion) {
  const std::uint32_t generation = state_.lock_for_read()->driver.generation;
  const std::string uuid = read_gpu(0).uuid;
  ASSERT_TRUE(unload_driver(state_));
  EXPECT_EQ(state_.lock_for_read()->driver.loaded, 0);
  EXPECT_EQ(load_driver(state_, "new").error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(load_driver(state_, "580.95.05"));
  EXPECT_EQ(state_.lock_for_read()->driver.loaded, 1);
  EXPECT_GT(state_.lock_for_read()->driver.generation, generation);
  EXPECT_STREQ(state_.lock_for_read()->driver.version, "580.95.05");
  EXPECT_EQ(read_gpu(0).uuid, uuid);
}

TEST_F(ControlTest, ResetAndUnloadAreRefusedWhileAClientHoldsTheDriver) {
  auto client = ClientEntry::add_client(state_, *state_.lock_for_edit(), 0b1);
  ASSERT_TRUE(client) << client.error().full_message();
  for (const auto& refused :
       {reset_gpu(state_, 0, Clients::kRefuse), unload_driver(state_, Clients::kRefuse)}) {
    EXPECT_EQ(refused.error().code(), Code::kFailedPrecondition);
    EXPECT_EQ(refused.error().message(), "in use by: " + std::to_string(getpid()) + " sim_control_tes");
  }
  EXPECT_EQ(state_.lock_for_read()->driver.loaded, 1);
  EXPECT_TRUE(reset_gpu(state_, 1, Clients::kRefuse)) << "it holds GPU 0 only";
  EXPECT_TRUE(reset_gpu(state_, 0, Clients::kIgnore));
  client = fail(Code::kInternal, "closed");
  EXPECT_TRUE(reset_gpu(state_, 0, Clients::kRefuse));
  EXPECT_TRUE(unload_driver(state_, Clients::kRefuse));
}

TEST_F(ControlTest, StatusListsFaults) {
  ASSERT_TRUE(lose_gpu(state_, 2));
  const std::string table = status_table(*state_.lock_for_read());
  EXPECT_NE(table.find("hgx-h100 (HGX H100 8-GPU), driver 570.124.06: ok\n"), std::string::npos) << table;
  EXPECT_NE(table.find("lost, recovery action 2\n"), std::string::npos) << table;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 10);
  const std::string rows = status_table(*state_.lock_for_read(), false);
  EXPECT_EQ(rows.substr(0, 3), "0  ") << rows;
  EXPECT_TRUE(table.ends_with("\n" + rows)) << rows;
}

}  // namespace

// What only polls show, set and undone.

namespace {

class ConditionTest : public testing::Test {
 protected:
  void TearDown() override {
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }
  void start_machine(const std::string& machine) {
    if (directory_.empty()) {
      char pattern[] = "/tmp/gpulet-condition-XXXXXX";
      ASSERT_NE(mkdtemp(pattern), nullptr);
      directory_ = pattern;
    }
    auto loaded = load_machine(machine);
    ASSERT_TRUE(loaded) << loaded.error().full_message();
    auto made = StateFile::create_state(directory_ + "/state", **loaded);
    ASSERT_TRUE(made) << made.error().full_message();
    state_ = std::move(*made);
  }
  Gpu read_gpu(std::uint32_t index) { return state_.lock_for_read()->gpus[index]; }
  std::string status_text() { return status_table(*state_.lock_for_read()); }
  void expect_fault(const std::string& fault) {
    EXPECT_NE(status_text().find(fault), std::string::npos) << fault << " is not in\n" << status_text();
  }
  std::string directory_;
  StateFile state_;
};

TEST_F(ConditionTest, EccCountsWhereItIs) {
  start_machine("hgx-h100");
  ASSERT_TRUE(count_ecc_errors(state_, 1, Ecc::kUncorrected, 3, EccLocation::kSram));
  EXPECT_EQ(read_gpu(1).ecc[1][0].by_location[7], 3u);
  EXPECT_EQ(read_gpu(1).ecc[1][1].by_location[7], 3u);
  EXPECT_EQ(read_gpu(1).ecc[1][0].by_location[2], 0u);
  ASSERT_TRUE(exceed_sram_threshold(state_, 1));
  expect_fault("SRAM threshold");
  start_machine("dgx1-v100");
  ASSERT_TRUE(count_ecc_errors(state_, 1, Ecc::kUncorrected, 1, EccLocation::kRegisters));
  EXPECT_EQ(read_gpu(1).ecc[1][0].by_location[3], 1u);
  EXPECT_EQ(read_gpu(1).retired_page_count, 0u) << "a page is DRAM's";
  EXPECT_EQ(exceed_sram_threshold(state_, 1).error().code(), Code::kUnsupported);
}

TEST_F(ConditionTest, PagesRetire) {
  start_machine("dgx1-v100");
  ASSERT_TRUE(retire_pages(state_, 0, Retire::kSingleBit, 2));
  ASSERT_TRUE(retire_pages(state_, 0, Retire::kDoubleBit));
  EXPECT_EQ(read_gpu(0).retired_page_count, 3u);
  EXPECT_EQ(read_gpu(0).retired_pages[0].cause, 0u);
  EXPECT_EQ(read_gpu(0).retired_pages[2].cause, 1u);
  EXPECT_EQ(read_gpu(0).retired_pages_pending, 1);
  ASSERT_TRUE(reset_gpu(state_, 0));
  EXPECT_EQ(read_gpu(0).retired_pages_pending, 0);
  EXPECT_EQ(read_gpu(0).retired_page_count, 3u) << "they stay retired";
  EXPECT_EQ(retire_pages(state_, 0, Retire::kSingleBit, kMaxRetiredPages).error().code(),
            Code::kInvalidArgument);
  start_machine("hgx-h100");
  EXPECT_EQ(retire_pages(state_, 0, Retire::kDoubleBit).error().code(), Code::kUnsupported);
}

TEST_F(ConditionTest, PcieNarrowsAndReplays) {
  start_machine("hgx-h100");
  ASSERT_TRUE(add_pcie_replays(state_, 2, 40));
  ASSERT_TRUE(add_pcie_replays(state_, 2, 2));
  ASSERT_TRUE(set_pcie_width(state_, 2, 8));
  EXPECT_EQ(read_gpu(2).pcie_replays, 42u);
  EXPECT_EQ(read_gpu(2).pcie_width, 8);
  expect_fault("PCIe x8 of x16");
  EXPECT_EQ(set_pcie_width(state_, 2, 17).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(set_pcie_width(state_, 2, 0).error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(heal_faults(state_, 2));
  EXPECT_EQ(read_gpu(2).pcie_width, 16);
  EXPECT_EQ(read_gpu(2).pcie_replays, 42u) << "healing rewrites no history";
}

TEST_F(ConditionTest, AResetClearsItsCounters) {
  start_machine("hgx-h100");
  ASSERT_TRUE(add_pcie_replays(state_, 0, 7));
  ASSERT_TRUE(add_violation(state_, 0, Violation::kThermal, 1500));
  ASSERT_TRUE(add_violation(state_, 0, Violation::kPower, 2));
  ASSERT_TRUE(change_nvlink(state_, 0, 3, LinkChange::kErrors, 9));
  state_.lock_for_edit()->gpus[0].energy_mj = 1'000'000'000;
  EXPECT_EQ(read_gpu(0).violation_thermal_ns, 1'500'000'000u);
  EXPECT_EQ(read_gpu(0).violation_power_ns, 2'000'000u);
  for (const bool by_reset : {true, false}) {
    ASSERT_TRUE(by_reset ? reset_gpu(state_, 0) : unload_driver(state_));
    ASSERT_TRUE(load_driver(state_));
    const Gpu after = read_gpu(0);
    EXPECT_EQ(after.pcie_replays, 0u);
    EXPECT_EQ(after.violation_thermal_ns + after.violation_power_ns, 0u);
    EXPECT_EQ(after.links[3].crc_flit_errors + after.links[3].replay_errors, 0u);
    EXPECT_LT(energy_millijoules(after, monotonic_ns()), 1'000'000'000u);
    ASSERT_TRUE(add_pcie_replays(state_, 0, 7));
    ASSERT_TRUE(add_violation(state_, 0, Violation::kThermal, 1));
    ASSERT_TRUE(change_nvlink(state_, 0, 3, LinkChange::kErrors, 9));
    state_.lock_for_edit()->gpus[0].energy_mj = 1'000'000'000;
  }
}

TEST_F(ConditionTest, GpuLeavesAndRejoinsItsFabric) {
  start_machine("gb200");
  const Fabric before = read_gpu(0).fabric;
  ASSERT_TRUE(change_fabric(state_, 0, FabricChange::kJoining));
  expect_fault("not in its fabric");
  ASSERT_TRUE(change_fabric(state_, 0, FabricChange::kFailed));
  expect_fault("fabric failed");
  EXPECT_EQ(read_gpu(0).fabric.status, 999u);
  ASSERT_TRUE(change_fabric(state_, 0, FabricChange::kDegraded));
  expect_fault("fabric degraded");
  EXPECT_EQ(read_gpu(0).fabric.status, 0u);
  ASSERT_TRUE(heal_faults(state_, 0));
  const Fabric after = read_gpu(0).fabric;
  EXPECT_EQ(after.state, before.state);
  EXPECT_EQ(after.health_mask, before.health_mask);
  EXPECT_EQ(after.health_summary, before.health_summary);
  EXPECT_EQ(after.clique_id, before.clique_id);
  start_machine("l40s");
  EXPECT_EQ(change_fabric(state_, 0, FabricChange::kFailed).error().code(), Code::kUnsupported);
}

TEST_F(ConditionTest, CudaFaultsLastUntilHealed) {
  start_machine("hgx-h100");
  const std::tuple<CudaFault, std::uint32_t, const char*> rows[] = {
      {CudaFault::kBadMemory, 0, "bad memory"},
      {CudaFault::kWrongResult, 0, "wrong results"},
      {CudaFault::kSlowCopies, 20, "copies at 20 %"},
      {CudaFault::kLaunchError, 719, "launch error 719"},
      {CudaFault::kHang, 0, "CUDA hangs"}};
  for (const auto& [fault, number, text] : rows) {
    ASSERT_TRUE(set_cuda_fault(state_, 0, fault, number));
    expect_fault(text);
    ASSERT_TRUE(heal_faults(state_, 0));
    EXPECT_EQ(status_text().find(text), std::string::npos);
  }
  EXPECT_EQ(set_cuda_fault(state_, 0, CudaFault::kSlowCopies, 101).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(set_cuda_fault(state_, 0, CudaFault::kLaunchError, 0).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(set_cuda_fault(state_, 99, CudaFault::kHang).error().code(), Code::kNotFound);
}

TEST_F(ConditionTest, AnInforomIsCorruptedUntilHealed) {
  start_machine("hgx-h100");
  ASSERT_TRUE(corrupt_inforom(state_, 0));
  expect_fault("InfoROM corrupted");
  ASSERT_TRUE(reset_gpu(state_, 0));
  expect_fault("InfoROM corrupted");
  ASSERT_TRUE(heal_faults(state_, 0));
  EXPECT_EQ(status_text().find("InfoROM"), std::string::npos);
  state_.lock_for_edit()->gpus[0].inforom_image[0] = '\0';
  EXPECT_EQ(corrupt_inforom(state_, 0).error().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace gpulet::sim::control

#include "sim/control/control.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "sim/control/status.h"
#include "sim/machine/machine.h"
#include "sim/state/mig.h"

namespace gpulet::sim::control {
namespace {

class ControlTest : public testing::Test {
 protected:
  void SetUp() override { start("hgx-h100"); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void start(const std::string& machine) {
    if (folder_.empty()) {
      char folder[] = "/tmp/gpulet-control-XXXXXX";
      ASSERT_NE(mkdtemp(folder), nullptr);
      folder_ = folder;
    }
    auto made = StateFile::create(folder_ + "/state", **load_machine(machine));
    ASSERT_TRUE(made) << made.error().text();
    state_ = std::move(*made);
  }
  Gpu gpu(std::uint32_t index) { return state_.read()->gpus[index]; }
  Event last_event() {
    const ReadGuard machine = state_.read();
    return machine->events[machine->last_event % kMaxEvents];
  }
  std::string folder_;
  StateFile state_;
};

TEST_F(ControlTest, FindsAGpuByWhatPeopleCallIt) {
  EXPECT_EQ(find_gpu(state_, "3").value(), 3u);
  EXPECT_EQ(find_gpu(state_, gpu(5).uuid).value(), 5u);
  EXPECT_EQ(find_gpu(state_, "0000:1B:00.0").value(), 0u);
  EXPECT_EQ(find_gpu(state_, "00000000:DF:00.0").value(), 7u);
  EXPECT_EQ(find_gpu(state_, "8").error().code(), Code::kNotFound);
  EXPECT_EQ(xid(state_, 8, 79).error().code(), Code::kNotFound);
}

TEST_F(ControlTest, LoadGoesUpAndEnds) {
  const Gpu idle = gpu(1);
  ASSERT_TRUE(load(state_, 1, {80, 40'000, 1234}));
  const Gpu busy = gpu(1);
  EXPECT_EQ(busy.utilization_gpu, 80u);
  EXPECT_EQ(memory_in_use(busy), std::uint64_t{40'000} << 20);
  EXPECT_EQ(busy.processes[0].pid, 1234u);
  EXPECT_EQ(busy.clocks.current[0], 1980);
  EXPECT_EQ(busy.power_usage_mw, 70'000 + 630'000 * 80 / 100);
  EXPECT_GT(busy.temperature, idle.temperature);
  EXPECT_LT(busy.temperature, busy.temperature_gpu_max);
  ASSERT_TRUE(load(state_, 1, {0, 0, 1234}));
  const Gpu after = gpu(1);
  EXPECT_EQ(after.power_usage_mw, idle.power_usage_mw);
  EXPECT_EQ(after.temperature, idle.temperature);
  EXPECT_EQ(after.clocks.current[0], idle.clocks.current[0]);
  EXPECT_EQ(memory_in_use(after), 0u);
  EXPECT_EQ(load(state_, 1, {101}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(load(state_, 1, {10, 90'000}).error().code(), Code::kInvalidArgument) << "more than the GPU has";
}

TEST_F(ControlTest, XidsPostTheEventAndTheCataloguesAction) {
  ASSERT_TRUE(xid(state_, 2, 94));
  EXPECT_EQ(last_event().type, kEventXid);
  EXPECT_EQ(last_event().data, 94u);
  EXPECT_EQ(last_event().gpu, 2u);
  EXPECT_EQ(last_event().gpu_instance, kNoInstance);
  EXPECT_EQ(gpu(2).recovery_action, 0u);
  ASSERT_TRUE(xid(state_, 2, 95));
  EXPECT_EQ(gpu(2).recovery_action, 1u);
  EXPECT_EQ(last_event().type, kEventGpuRecoveryAction);
  EXPECT_EQ(last_event().data, 1u);
  ASSERT_TRUE(xid(state_, 2, 79));
  EXPECT_EQ(gpu(2).recovery_action, 2u);
  ASSERT_TRUE(xid(state_, 2, 48));
  EXPECT_EQ(gpu(2).recovery_action, 2u) << "a lesser action does not hide a greater one";
  for (const std::uint64_t harmless : {13, 31, 43, 45, 63, 68, 92, 94, 121, 137, 157})
    EXPECT_EQ(recovery_action_of(harmless), 0u) << harmless;
  for (const std::uint64_t resetting : {46, 48, 62, 64, 74, 95, 109, 119, 120, 140, 149, 156})
    EXPECT_EQ(recovery_action_of(resetting), 1u) << resetting;
}

TEST_F(ControlTest, AnXidOfAnInstanceNamesIt) {
  EXPECT_EQ(xid(state_, 0, 13, 1).error().code(), Code::kNotFound);
  {
    const EditGuard machine = state_.edit();
    Gpu& one = machine->gpus[0];
    GpuInstance* instance = nullptr;
    ComputeInstance* compute = nullptr;
    ASSERT_EQ(set_mig_mode(one, true), MigOutcome::kOk);
    ASSERT_EQ(create_gpu_instance(one, 9, 4, &instance), MigOutcome::kOk);
    ASSERT_EQ(create_compute_instance(one, *instance, 2, std::nullopt, &compute), MigOutcome::kOk);
  }
  ASSERT_TRUE(xid(state_, 0, 13, 1, 0));
  EXPECT_EQ(last_event().gpu_instance, 1u);
  EXPECT_EQ(last_event().compute_instance, 0u);
  EXPECT_EQ(xid(state_, 0, 13, kNoInstance, 0).error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(load(state_, 0, {50, 1000, 77, 1, 0}));
  EXPECT_EQ(memory_in_use(gpu(0), 1), std::uint64_t{1000} << 20);
}

TEST_F(ControlTest, EccCountsAndTells) {
  ASSERT_TRUE(ecc(state_, 0, Ecc::kCorrected, 5));
  EXPECT_EQ(last_event().type, kEventSingleBitEcc);
  ASSERT_TRUE(ecc(state_, 0, Ecc::kUncorrected, 2));
  EXPECT_EQ(last_event().type, kEventDoubleBitEcc);
  EXPECT_EQ(gpu(0).ecc[0][0].by_location[2], 5u);
  EXPECT_EQ(gpu(0).ecc[1][1].by_location[2], 2u);
  EXPECT_EQ(gpu(0).retired_page_count, 0u) << "Hopper remaps rows";
  start("dgx1-v100");
  ASSERT_TRUE(ecc(state_, 0, Ecc::kUncorrected, 1));
  EXPECT_EQ(gpu(0).retired_page_count, 1u);
  EXPECT_EQ(gpu(0).retired_pages_pending, 1);
  EXPECT_EQ(remap(state_, 0, Remap::kPending).error().code(), Code::kUnsupported);
}

TEST_F(ControlTest, HeatSlowsDown) {
  ASSERT_TRUE(thermal(state_, 0, 88));
  EXPECT_EQ(gpu(0).clock_event_reasons & 0x20, 0x20u);
  EXPECT_EQ(gpu(0).clock_event_reasons & 0x40, 0u);
  ASSERT_TRUE(thermal(state_, 0, 90));
  EXPECT_EQ(gpu(0).clock_event_reasons & 0x48, 0x48u);
  ASSERT_TRUE(heal(state_, 0));
  EXPECT_EQ(gpu(0).clock_event_reasons & 0x68, 0u);
  EXPECT_EQ(gpu(0).temperature, 30);
  EXPECT_FALSE(thermal(state_, 0, 999));
}

TEST_F(ControlTest, RowsRemapUntilAReset) {
  ASSERT_TRUE(remap(state_, 0, Remap::kPending));
  EXPECT_EQ(gpu(0).remapped_rows.pending, 1u);
  EXPECT_EQ(gpu(0).recovery_action, 4u);
  ASSERT_TRUE(reset(state_, 0));
  EXPECT_EQ(gpu(0).remapped_rows.pending, 0u);
  EXPECT_EQ(gpu(0).recovery_action, 0u);
  EXPECT_EQ(last_event().type, kEventGpuRecoveryAction);
  ASSERT_TRUE(load(state_, 0, {50}));
  EXPECT_EQ(reset(state_, 0).error().code(), Code::kFailedPrecondition) << "in use";
}

TEST_F(ControlTest, ALinkGoesDownAtBothEnds) {
  start("dgx1-v100");
  const NvLink link = gpu(0).links[0];
  ASSERT_EQ(link.remote, kRemoteGpu);
  ASSERT_TRUE(nvlink(state_, 0, 0, LinkChange::kDown));
  EXPECT_EQ(gpu(0).links[0].active, 0);
  EXPECT_EQ(gpu(1).links[link.remote_link].active, 0);
  ASSERT_TRUE(nvlink(state_, 0, 0, LinkChange::kErrors, 7));
  EXPECT_EQ(gpu(0).links[0].crc_flit_errors, 7u);
  ASSERT_TRUE(heal(state_, 0));
  EXPECT_EQ(gpu(0).links[0].active, 1);
  ASSERT_TRUE(nvlink(state_, 0, 0, LinkChange::kUp));
  EXPECT_EQ(gpu(1).links[link.remote_link].active, 1);
  EXPECT_EQ(nvlink(state_, 0, 6, LinkChange::kDown).error().code(), Code::kNotFound);
}

TEST_F(ControlTest, AMigFaultIsSeenAndReplacedByAnother) {
  const auto faults = [&] { return nlohmann::json::parse(status_json(*state_.read()))["gpus"][0]["faults"]; };
  ASSERT_TRUE(fail_mig(state_, 0, 19, 2));
  EXPECT_EQ(faults(), nlohmann::json({"MIG error 19"}));
  EXPECT_EQ(gpu(0).faults.mig_skip, 2u);
  ASSERT_TRUE(hang_mig(state_, 0));
  EXPECT_EQ(faults(), nlohmann::json({"MIG hangs"}));
  EXPECT_EQ(gpu(0).faults.mig_skip, 0u);
  ASSERT_TRUE(fail_mig(state_, 0, 0, 5));
  EXPECT_TRUE(faults().empty());
  EXPECT_EQ(gpu(0).faults.mig_skip, 0u);
  EXPECT_EQ(fail_mig(state_, 99, 19).error().code(), Code::kNotFound);
}

TEST_F(ControlTest, HealEndsEveryFaultAndKeepsUuids) {
  std::vector<std::string> before;
  for (std::uint32_t i = 0; i < 8; ++i) before.emplace_back(gpu(i).uuid);
  ASSERT_TRUE(lost(state_, 0, true));
  EXPECT_EQ(last_event().type, kEventGpuRecoveryAction);
  ASSERT_TRUE(hang(state_, 1));
  ASSERT_TRUE(slow(state_, 2, 500));
  ASSERT_TRUE(fail_gpu(state_, 3, 999));
  ASSERT_TRUE(slow(state_, std::nullopt, 5));
  ASSERT_TRUE(hang(state_, std::nullopt));
  ASSERT_TRUE(fail_init(state_, 9));
  ASSERT_TRUE(fail_event_wait(state_, 999));
  EXPECT_EQ(nlohmann::json::parse(status_json(*state_.read()))["driver"]["faults"].size(), 4u);
  ASSERT_TRUE(heal(state_, std::nullopt));
  const auto status = nlohmann::json::parse(status_json(*state_.read()));
  EXPECT_TRUE(status["driver"]["faults"].empty());
  for (std::uint32_t i = 0; i < 8; ++i) {
    EXPECT_TRUE(status["gpus"][i]["faults"].empty()) << i;
    EXPECT_EQ(status["gpus"][i]["uuid"], before[i]);
  }
}

TEST_F(ControlTest, ReplaceIsAnotherCard) {
  const Gpu before = gpu(4);
  ASSERT_TRUE(lost(state_, 4));
  ASSERT_TRUE(replace(state_, 4));
  EXPECT_STRNE(gpu(4).uuid, before.uuid);
  EXPECT_STRNE(gpu(4).serial, before.serial);
  EXPECT_EQ(gpu(4).faults.lost, 0);
  EXPECT_EQ(gpu(4).minor, before.minor);
  EXPECT_STREQ(gpu(5).uuid, (*load_machine("hgx-h100"))->gpus[5].uuid);
}

TEST_F(ControlTest, TheDriverComesBackInAnotherVersion) {
  const std::uint32_t generation = state_.read()->driver.generation;
  const std::string uuid = gpu(0).uuid;
  ASSERT_TRUE(unload_driver(state_));
  EXPECT_EQ(state_.read()->driver.loaded, 0);
  EXPECT_EQ(load_driver(state_, "new").error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(load_driver(state_, "580.95.05"));
  EXPECT_EQ(state_.read()->driver.loaded, 1);
  EXPECT_GT(state_.read()->driver.generation, generation);
  EXPECT_STREQ(state_.read()->driver.version, "580.95.05");
  EXPECT_EQ(gpu(0).uuid, uuid);
}

TEST_F(ControlTest, StatusNamesWhatIsBroken) {
  ASSERT_TRUE(lost(state_, 2));
  const std::string table = status_table(*state_.read());
  EXPECT_NE(table.find("hgx-h100 (HGX H100 8-GPU), driver 570.124.06: ok\n"), std::string::npos) << table;
  EXPECT_NE(table.find("lost, recovery action 2\n"), std::string::npos) << table;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 10);
}

}  // namespace
}  // namespace gpulet::sim::control

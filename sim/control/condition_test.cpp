// What only polls show, set and undone.
#include <gtest/gtest.h>

#include <filesystem>

#include "sim/control/control.h"
#include "sim/control/status.h"
#include "sim/machine/machine.h"

namespace gpulet::sim::control {
namespace {

class ConditionTest : public testing::Test {
 protected:
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  void start(const std::string& machine) {
    if (folder_.empty()) {
      char folder[] = "/tmp/gpulet-condition-XXXXXX";
      ASSERT_NE(mkdtemp(folder), nullptr);
      folder_ = folder;
    }
    auto loaded = load_machine(machine);
    ASSERT_TRUE(loaded) << loaded.error().text();
    auto made = StateFile::create(folder_ + "/state", **loaded);
    ASSERT_TRUE(made) << made.error().text();
    state_ = std::move(*made);
  }
  Gpu gpu(std::uint32_t index) { return state_.read()->gpus[index]; }
  std::string status() { return status_table(*state_.read()); }
  void has(const std::string& fault) {
    EXPECT_NE(status().find(fault), std::string::npos) << fault << " is not in\n" << status();
  }
  std::string folder_;
  StateFile state_;
};

TEST_F(ConditionTest, EccCountsWhereItIs) {
  start("hgx-h100");
  ASSERT_TRUE(ecc(state_, 1, Ecc::kUncorrected, 3, EccPlace::kSram));
  EXPECT_EQ(gpu(1).ecc[1][0].by_location[7], 3u);
  EXPECT_EQ(gpu(1).ecc[1][1].by_location[7], 3u);
  EXPECT_EQ(gpu(1).ecc[1][0].by_location[2], 0u);
  ASSERT_TRUE(sram_threshold(state_, 1));
  has("SRAM threshold");
  start("dgx1-v100");
  ASSERT_TRUE(ecc(state_, 1, Ecc::kUncorrected, 1, EccPlace::kRegisters));
  EXPECT_EQ(gpu(1).ecc[1][0].by_location[3], 1u);
  EXPECT_EQ(gpu(1).retired_page_count, 0u) << "a page is DRAM's";
  EXPECT_EQ(sram_threshold(state_, 1).error().code(), Code::kUnsupported);
}

TEST_F(ConditionTest, PagesRetire) {
  start("dgx1-v100");
  ASSERT_TRUE(retire(state_, 0, Retire::kSingleBit, 2));
  ASSERT_TRUE(retire(state_, 0, Retire::kDoubleBit));
  EXPECT_EQ(gpu(0).retired_page_count, 3u);
  EXPECT_EQ(gpu(0).retired_pages[0].cause, 0u);
  EXPECT_EQ(gpu(0).retired_pages[2].cause, 1u);
  EXPECT_EQ(gpu(0).retired_pages_pending, 1);
  ASSERT_TRUE(reset(state_, 0));
  EXPECT_EQ(gpu(0).retired_pages_pending, 0);
  EXPECT_EQ(gpu(0).retired_page_count, 3u) << "they stay retired";
  EXPECT_EQ(retire(state_, 0, Retire::kSingleBit, kMaxRetiredPages).error().code(), Code::kInvalidArgument);
  start("hgx-h100");
  EXPECT_EQ(retire(state_, 0, Retire::kDoubleBit).error().code(), Code::kUnsupported);
}

TEST_F(ConditionTest, PcieNarrowsAndReplays) {
  start("hgx-h100");
  ASSERT_TRUE(pcie_replays(state_, 2, 40));
  ASSERT_TRUE(pcie_replays(state_, 2, 2));
  ASSERT_TRUE(pcie_width(state_, 2, 8));
  EXPECT_EQ(gpu(2).pcie_replays, 42u);
  EXPECT_EQ(gpu(2).pcie_width, 8);
  has("PCIe x8 of x16");
  EXPECT_EQ(pcie_width(state_, 2, 17).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(pcie_width(state_, 2, 0).error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(heal(state_, 2));
  EXPECT_EQ(gpu(2).pcie_width, 16);
  EXPECT_EQ(gpu(2).pcie_replays, 42u) << "healing rewrites no history";
}

TEST_F(ConditionTest, AResetBeginsItsCountersAnew) {
  start("hgx-h100");
  ASSERT_TRUE(pcie_replays(state_, 0, 7));
  ASSERT_TRUE(violation(state_, 0, Violation::kThermal, 1500));
  ASSERT_TRUE(violation(state_, 0, Violation::kPower, 2));
  ASSERT_TRUE(nvlink(state_, 0, 3, LinkChange::kErrors, 9));
  state_.edit()->gpus[0].energy_mj = 1'000'000'000;
  EXPECT_EQ(gpu(0).violation_thermal_ns, 1'500'000'000u);
  EXPECT_EQ(gpu(0).violation_power_ns, 2'000'000u);
  for (const bool by_reset : {true, false}) {
    ASSERT_TRUE(by_reset ? reset(state_, 0) : unload_driver(state_));
    ASSERT_TRUE(load_driver(state_));
    const Gpu after = gpu(0);
    EXPECT_EQ(after.pcie_replays, 0u);
    EXPECT_EQ(after.violation_thermal_ns + after.violation_power_ns, 0u);
    EXPECT_EQ(after.links[3].crc_flit_errors + after.links[3].replay_errors, 0u);
    EXPECT_LT(energy_millijoules(after, monotonic_ns()), 1'000'000'000u);
    ASSERT_TRUE(pcie_replays(state_, 0, 7));
    ASSERT_TRUE(violation(state_, 0, Violation::kThermal, 1));
    ASSERT_TRUE(nvlink(state_, 0, 3, LinkChange::kErrors, 9));
    state_.edit()->gpus[0].energy_mj = 1'000'000'000;
  }
}

TEST_F(ConditionTest, AGpuLeavesItsFabricAndComesBack) {
  start("gb200");
  const Fabric before = gpu(0).fabric;
  ASSERT_TRUE(fabric(state_, 0, FabricChange::kJoining));
  has("not in its fabric");
  ASSERT_TRUE(fabric(state_, 0, FabricChange::kFailed));
  has("fabric failed");
  EXPECT_EQ(gpu(0).fabric.status, 999u);
  ASSERT_TRUE(fabric(state_, 0, FabricChange::kDegraded));
  has("fabric degraded");
  EXPECT_EQ(gpu(0).fabric.status, 0u);
  ASSERT_TRUE(heal(state_, 0));
  const Fabric after = gpu(0).fabric;
  EXPECT_EQ(after.state, before.state);
  EXPECT_EQ(after.health_mask, before.health_mask);
  EXPECT_EQ(after.health_summary, before.health_summary);
  EXPECT_EQ(after.clique_id, before.clique_id);
  start("l40s");
  EXPECT_EQ(fabric(state_, 0, FabricChange::kFailed).error().code(), Code::kUnsupported);
}

TEST_F(ConditionTest, AnInforomIsCorruptedUntilHealed) {
  start("hgx-h100");
  ASSERT_TRUE(inforom(state_, 0));
  has("InfoROM corrupted");
  ASSERT_TRUE(reset(state_, 0));
  has("InfoROM corrupted");
  ASSERT_TRUE(heal(state_, 0));
  EXPECT_EQ(status().find("InfoROM"), std::string::npos);
  state_.edit()->gpus[0].inforom_image[0] = '\0';
  EXPECT_EQ(inforom(state_, 0).error().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace gpulet::sim::control

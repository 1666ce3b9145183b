#include "nvml/health.h"

#include <gtest/gtest.h>

#include <functional>

#include "nvml/test_on_driver.h"
#include "sim/state/mig.h"

namespace gpulet::nvml {
namespace {

// nvml.h.
constexpr std::uint8_t kNotStarted = 1, kInProgress = 2, kCompleted = 3;

class HealthTest : public OnDriver {
 protected:
  HealthTest() : OnDriver(2u) {}
  Health health() const { return {*session_, gpu_}; }
  // Edits GPU 0.
  void set(const std::function<void(sim::Gpu&)>& change) { change(root_.edit()->gpus[0]); }
  FabricHealth fabric() const {
    const auto read = health().fabric();
    EXPECT_TRUE(read) << read.error().text();
    return read.value_or(FabricHealth{});
  }
};

TEST_F(HealthTest, RowRemapping) {
  set([](sim::Gpu& gpu) {
    gpu.remapped_rows.correctable = 3;
    gpu.remapped_rows.uncorrectable = 2;
    gpu.remapped_rows.pending = 1;
  });
  const auto rows = health().row_remap();
  ASSERT_TRUE(rows) << rows.error().text();
  EXPECT_EQ(rows->correctable, 3u);
  EXPECT_EQ(rows->uncorrectable, 2u);
  EXPECT_TRUE(rows->pending);
  EXPECT_FALSE(rows->failed);
  set([](sim::Gpu& gpu) {
    gpu.remapped_rows.pending = 0;
    gpu.remapped_rows.failed = 1;
  });
  const auto failed = health().row_remap();
  ASSERT_TRUE(failed);
  EXPECT_FALSE(failed->pending);
  EXPECT_TRUE(failed->failed);
}

TEST_F(HealthTest, RowRemappingIsAbsentBeforeAmpereAndWithInstances) {
  set([](sim::Gpu& gpu) {
    sim::GpuInstance* made = nullptr;
    ASSERT_EQ(sim::set_mig_mode(gpu, true), sim::MigOutcome::kOk);
    ASSERT_EQ(sim::create_gpu_instance(gpu, 9, 4, &made), sim::MigOutcome::kOk);
  });
  expect_absent(health().row_remap(), "nvmlDeviceGetRemappedRows");
  set([](sim::Gpu& gpu) {
    for (auto& instance : gpu.mig.instances) instance = {};
  });
  EXPECT_TRUE(health().row_remap());
  set([](sim::Gpu& gpu) { gpu.remapped_rows.supported = 0; });
  expect_absent(health().row_remap(), "nvmlDeviceGetRemappedRows");
}

TEST_F(HealthTest, RetiredPagesByCause) {
  expect_absent(health().retired_pages(), "nvmlDeviceGetRetiredPages");
  set([](sim::Gpu& gpu) {
    gpu.retired_pages_supported = 1;
    gpu.retired_page_count = 3;
    for (std::uint32_t i = 0; i < 3; ++i) gpu.retired_pages[i] = {i * 65536, 1, i == 0 ? 1u : 0u, 0};
  });
  const auto pages = health().retired_pages();
  ASSERT_TRUE(pages) << pages.error().text();
  EXPECT_EQ(pages->single_bit, 2u);
  EXPECT_EQ(pages->double_bit, 1u);
  EXPECT_FALSE(pages->pending);
  set([](sim::Gpu& gpu) {
    gpu.retired_page_count = 0;
    gpu.retired_pages_pending = 1;
  });
  const auto pending = health().retired_pages();
  ASSERT_TRUE(pending);
  EXPECT_EQ(pending->single_bit + pending->double_bit, 0u);
  EXPECT_TRUE(pending->pending);
}

TEST_F(HealthTest, UncorrectedErrorsByLocation) {
  set([](sim::Gpu& gpu) {
    for (std::size_t i = 0; i < kMemoryLocations; ++i) gpu.ecc[1][0].by_location[i] = 10 + i;
    gpu.ecc[0][0].by_location[2] = 99;  // corrected
    gpu.ecc[1][1].by_location[2] = 99;  // of its life
  });
  const auto ecc = health().uncorrected_ecc();
  ASSERT_TRUE(ecc) << ecc.error().text();
  for (std::size_t i = 0; i < kMemoryLocations; ++i) EXPECT_EQ(ecc->at[i], 10 + i);
  EXPECT_EQ(ecc->sram_threshold_exceeded, false);
  set([](sim::Gpu& gpu) { gpu.sram_threshold = 1; });
  EXPECT_EQ(health().uncorrected_ecc()->sram_threshold_exceeded, true);
}

TEST_F(HealthTest, LocationsAndThresholdMayBeAbsent) {
  set([](sim::Gpu& gpu) {
    gpu.architecture = 5;  // Volta: no SRAM as one, and no rows to remap
    gpu.remapped_rows.supported = 0;
    gpu.ecc[1][0].by_location[1] = 6;
  });
  const auto volta = health().uncorrected_ecc();
  ASSERT_TRUE(volta) << volta.error().text();
  EXPECT_EQ(volta->at[static_cast<std::size_t>(MemoryLocation::kL2Cache)], 6u);
  EXPECT_EQ(volta->at[static_cast<std::size_t>(MemoryLocation::kSram)], std::nullopt);
  EXPECT_EQ(volta->sram_threshold_exceeded, std::nullopt);
  set([](sim::Gpu& gpu) { gpu.ecc_current = 0; });
  expect_absent(health().uncorrected_ecc(), "nvmlDeviceGetMemoryErrorCounter");
}

TEST_F(HealthTest, NvLinksByIndex) {
  set([](sim::Gpu& gpu) {
    gpu.links[2].active = 0;
    gpu.links[5].replay_errors = 1;
    gpu.links[5].recovery_errors = 20;
    gpu.links[5].crc_flit_errors = 300;
    gpu.links[5].crc_data_errors = 4000;
  });
  const auto links = health().nvlinks();
  ASSERT_TRUE(links) << links.error().text();
  ASSERT_EQ(links->size(), 18u);
  for (const auto& link : *links) {
    EXPECT_EQ(link.up, link.index != 2) << link.index;
    EXPECT_EQ(link.errors, link.index == 5 ? 4321u : 0u) << link.index;
  }
  set([](sim::Gpu& gpu) { gpu.links[0] = {}; });
  EXPECT_EQ(health().nvlinks()->front().index, 1u) << "a gap is no end";
  set([](sim::Gpu& gpu) {
    for (auto& link : gpu.links) link = {};
  });
  expect_absent(health().nvlinks(), "nvmlDeviceGetNvLinkState");
}

TEST_F(HealthTest, PcieReplaysAndWidth) {
  set([](sim::Gpu& gpu) {
    gpu.pcie_replays = 12;
    gpu.pcie_width = 8;
  });
  const auto pcie = health().pcie();
  ASSERT_TRUE(pcie) << pcie.error().text();
  EXPECT_EQ(pcie->replays, 12u);
  EXPECT_EQ(pcie->width, 8u);
  EXPECT_EQ(pcie->full_width, 16u);
  set([](sim::Gpu& gpu) { gpu.pcie_width = gpu.pcie_width_max = sim::kNotReported; });
  const auto counter_only = health().pcie();
  ASSERT_TRUE(counter_only);
  EXPECT_EQ(counter_only->replays, 12u);
  EXPECT_EQ(counter_only->width, std::nullopt);
  EXPECT_EQ(counter_only->full_width, std::nullopt);
}

TEST_F(HealthTest, ViolationsEnergyAndInforom) {
  set([](sim::Gpu& gpu) {
    gpu.violation_thermal_ns = 1'500'000'000;
    gpu.violation_power_ns = 7;
    gpu.energy_mj = 5'000'000;
    gpu.energy_since_ns = ~std::uint64_t{0};
  });
  const auto held = health().violations();
  ASSERT_TRUE(held) << held.error().text();
  EXPECT_EQ(held->thermal, std::chrono::milliseconds(1500));
  EXPECT_EQ(held->power, std::chrono::nanoseconds(7));
  EXPECT_EQ(health().energy().value(), 5'000'000u);
  EXPECT_TRUE(health().inforom_valid().value());
  set([](sim::Gpu& gpu) {
    gpu.faults.inforom = 1;
    gpu.power_usage_mw = sim::kNotReported;
  });
  EXPECT_FALSE(health().inforom_valid().value());
  expect_absent(health().energy(), "nvmlDeviceGetTotalEnergyConsumption");
  set([](sim::Gpu& gpu) { gpu.inforom_image[0] = '\0'; });
  expect_absent(health().inforom_valid(), "nvmlDeviceValidateInforom");
}

TEST_F(HealthTest, TheFabric) {
  EXPECT_EQ(fabric().registration, FabricRegistration::kNone);
  const auto state = [&](std::uint8_t value, unsigned status) {
    set([=](sim::Gpu& gpu) {
      gpu.fabric.state = value;
      gpu.fabric.status = status;
    });
    return fabric().registration;
  };
  EXPECT_EQ(state(kNotStarted, 0), FabricRegistration::kNotStarted);
  EXPECT_EQ(state(kInProgress, 999), FabricRegistration::kInProgress) << "a status counts once it is done";
  EXPECT_EQ(state(kCompleted, 999), FabricRegistration::kFailed);
  EXPECT_EQ(state(kCompleted, 0), FabricRegistration::kDone);
  EXPECT_EQ(fabric().summary, std::nullopt);
  const auto masked = [&](unsigned mask) {
    set([=](sim::Gpu& gpu) { gpu.fabric.health_mask = mask; });
    return fabric();
  };
  // Each field of two bits: 1 for so, 2 for not so.
  EXPECT_TRUE(masked(1u).degraded_bandwidth);
  EXPECT_TRUE(masked(1u << 2).route_recovery);
  EXPECT_TRUE(masked(1u << 4).route_unhealthy);
  EXPECT_TRUE(masked(1u << 6).access_timeout_recovery);
  EXPECT_EQ(masked(5u << 8).wrong_configuration, 5u);
  const auto well = masked(2u | 2u << 2 | 2u << 4 | 2u << 6 | 1u << 8);
  EXPECT_FALSE(well.degraded_bandwidth || well.route_recovery || well.route_unhealthy ||
               well.access_timeout_recovery);
  EXPECT_EQ(well.wrong_configuration, 1u);
  set([](sim::Gpu& gpu) { gpu.fabric.health_summary = 3; });
  EXPECT_EQ(fabric().summary, FabricSummary::kLimited);
  set([](sim::Gpu& gpu) { gpu.fabric.health_summary = 2; });
  EXPECT_EQ(fabric().summary, FabricSummary::kUnhealthy);
  set([](sim::Gpu& gpu) { gpu.fabric.health_summary = 1; });
  EXPECT_EQ(fabric().summary, FabricSummary::kHealthy);
}

// The codes of every reading, in the order of the header.
std::vector<Code> codes(const Health& health) {
  const auto of = [](const auto& reading) { return reading ? Code::kInternal : reading.error().code(); };
  return {of(health.row_remap()), of(health.retired_pages()), of(health.uncorrected_ecc()),
          of(health.nvlinks()),   of(health.pcie()),          of(health.violations()),
          of(health.fabric()),    of(health.inforom_valid()), of(health.energy())};
}

TEST_F(HealthTest, WhatIsNoAbsenceIsToldApart) {
  const std::vector<Code> lost(9, Code::kDeviceLost);
  set([](sim::Gpu& gpu) { gpu.faults.lost = 1; });
  EXPECT_EQ(codes(health()), lost);
  set([](sim::Gpu& gpu) {
    gpu.faults.lost = 0;
    gpu.faults.error = 999;
  });
  EXPECT_EQ(codes(health()), std::vector<Code>(9, Code::kIo));
  set([](sim::Gpu& gpu) { gpu.faults.error = 0; });
  auto stale = gpu_;
  stale.generation = 0;
  EXPECT_EQ(codes({*session_, stale}), std::vector<Code>(9, Code::kUnavailable));
}

TEST(HealthOfBareDriver, HasNothingAndSaysSo) {
  const SimRoot root(*sim::small_machine(1), GPULET_BARE_DRIVER);
  const auto session = Session::open(root.path());
  ASSERT_TRUE(session) << session.error().text();
  const Health health(**session, *(*session)->device(0));
  EXPECT_EQ(codes(health), std::vector<Code>(9, Code::kUnsupported));
  expect_absent(health.row_remap(), "nvmlDeviceGetRemappedRows");
  expect_absent(health.retired_pages(), "nvmlDeviceGetRetiredPages");
  expect_absent(health.uncorrected_ecc(), "nvmlDeviceGetMemoryErrorCounter");
  expect_absent(health.nvlinks(), "nvmlDeviceGetNvLinkState");
  expect_absent(health.pcie(), "nvmlDeviceGetPcieReplayCounter");
  expect_absent(health.violations(), "nvmlDeviceGetViolationStatus");
  expect_absent(health.fabric(), "nvmlDeviceGetGpuFabricInfo");
  expect_absent(health.inforom_valid(), "nvmlDeviceValidateInforom");
  expect_absent(health.energy(), "nvmlDeviceGetTotalEnergyConsumption");
}

// fake/odd_driver.cpp.
class HealthOfOddDriver : public OnDriver {
 protected:
  HealthOfOddDriver() : OnDriver(*sim::small_machine(1), GPULET_ODD_DRIVER) {}
  Health gpu(unsigned index) const { return {*session_, *session_->device(index)}; }
};

TEST_F(HealthOfOddDriver, TheNewestTellsByFieldsWhatCallsTold) {
  const auto held = gpu(0).violations();
  ASSERT_TRUE(held) << held.error().text();
  EXPECT_EQ(held->thermal, std::chrono::seconds(8));
  EXPECT_EQ(held->power, std::chrono::seconds(9));
  const auto links = gpu(0).nvlinks();
  ASSERT_TRUE(links) << links.error().text();
  ASSERT_EQ(links->size(), 2u);
  EXPECT_EQ(links->at(0).errors, 1100u);
  EXPECT_EQ(links->at(1).errors, 1101u);
  const auto ecc = gpu(0).uncorrected_ecc();
  ASSERT_TRUE(ecc) << ecc.error().text();
  EXPECT_EQ(ecc->at[static_cast<std::size_t>(MemoryLocation::kSram)], 23u) << "parity and SEC-DED";
  EXPECT_EQ(ecc->at[static_cast<std::size_t>(MemoryLocation::kCbu)], 6u);
  EXPECT_EQ(ecc->sram_threshold_exceeded, true);
}

TEST_F(HealthOfOddDriver, AnOldOneIsAskedInItsOwnWay) {
  expect_absent(gpu(1).violations(), "nvmlDeviceGetViolationStatus");
  const auto links = gpu(1).nvlinks();
  ASSERT_TRUE(links) << links.error().text();
  ASSERT_EQ(links->size(), 2u);
  EXPECT_EQ(links->at(0).errors, 10u);
  EXPECT_FALSE(links->at(1).up);
  EXPECT_EQ(links->at(1).errors, std::nullopt) << "a link that is down need not count";
  const auto ecc = gpu(1).uncorrected_ecc();
  ASSERT_TRUE(ecc) << ecc.error().text();
  EXPECT_EQ(ecc->at[static_cast<std::size_t>(MemoryLocation::kSram)], std::nullopt);
  EXPECT_EQ(ecc->sram_threshold_exceeded, std::nullopt);
  expect_absent(gpu(1).retired_pages(), "nvmlDeviceGetRetiredPagesPendingStatus");
}

TEST_F(HealthOfOddDriver, TheFabricByTheNewestStructThatItKnows) {
  const auto second = gpu(0).fabric();
  ASSERT_TRUE(second) << second.error().text();
  EXPECT_EQ(second->registration, FabricRegistration::kDone);
  EXPECT_TRUE(second->degraded_bandwidth);
  EXPECT_EQ(second->summary, std::nullopt);
  const auto first = gpu(1).fabric();
  ASSERT_TRUE(first) << first.error().text();
  EXPECT_EQ(first->registration, FabricRegistration::kFailed);
  EXPECT_FALSE(first->degraded_bandwidth);
}

}  // namespace
}  // namespace gpulet::nvml

#include "nvml/health.h"

#include <gtest/gtest.h>

#include <functional>

#include "nvml/test_on_driver.h"
#include "sim/state/mig.h"

namespace gpulet::nvml {
namespace {

// Source: nvml.h.
constexpr std::uint8_t kNotStarted = 1, kInProgress = 2, kCompleted = 3;

class HealthTest : public DriverTest {
 protected:
  HealthTest() : DriverTest(2u) {}
  Health health_reader() const { return {*session_, gpu_}; }
  // Edits GPU 0.
  void set_state(const std::function<void(sim::Gpu&)>& change) { change(root_.edit_machine()->gpus[0]); }
  FabricHealth set_fabric() const {
    const auto read = health_reader().fabric_health();
    EXPECT_TRUE(read) << read.error().full_message();
    return read.value_or(FabricHealth{});
  }
};

TEST_F(HealthTest, RowRemapping) {
  set_state([](sim::Gpu& gpu) {
    gpu.remapped_rows.correctable = 3;
    gpu.remapped_rows.uncorrectable = 2;
    gpu.remapped_rows.pending = 1;
  });
  const auto rows = health_reader().row_remap();
  ASSERT_TRUE(rows) << rows.error().full_message();
  EXPECT_EQ(rows->correctable, 3u);
  EXPECT_EQ(rows->uncorrectable, 2u);
  EXPECT_TRUE(rows->pending);
  EXPECT_FALSE(rows->failed);
  set_state([](sim::Gpu& gpu) {
    gpu.remapped_rows.pending = 0;
    gpu.remapped_rows.failed = 1;
  });
  const auto failed = health_reader().row_remap();
  ASSERT_TRUE(failed);
  EXPECT_FALSE(failed->pending);
  EXPECT_TRUE(failed->failed);
}

TEST_F(HealthTest, RowRemappingIsAbsentBeforeAmpereAndWithInstances) {
  set_state([](sim::Gpu& gpu) {
    sim::GpuInstance* made = nullptr;
    ASSERT_EQ(sim::set_mig_mode(gpu, true), sim::MigOutcome::kOk);
    ASSERT_EQ(sim::create_gpu_instance(gpu, 9, 4, &made), sim::MigOutcome::kOk);
  });
  expect_unsupported(health_reader().row_remap(), "nvmlDeviceGetRemappedRows");
  set_state([](sim::Gpu& gpu) {
    for (auto& instance : gpu.mig.instances) instance = {};
  });
  EXPECT_TRUE(health_reader().row_remap());
  set_state([](sim::Gpu& gpu) { gpu.remapped_rows.supported = 0; });
  expect_unsupported(health_reader().row_remap(), "nvmlDeviceGetRemappedRows");
}

TEST_F(HealthTest, RetiredPagesByCause) {
  expect_unsupported(health_reader().retired_pages(), "nvmlDeviceGetRetiredPages");
  set_state([](sim::Gpu& gpu) {
    gpu.retired_pages_supported = 1;
    gpu.retired_page_count = 3;
    for (std::uint32_t i = 0; i < 3; ++i) gpu.retired_pages[i] = {i * 65536, 1, i == 0 ? 1u : 0u, 0};
  });
  const auto pages = health_reader().retired_pages();
  ASSERT_TRUE(pages) << pages.error().full_message();
  EXPECT_EQ(pages->single_bit, 2u);
  EXPECT_EQ(pages->double_bit, 1u);
  EXPECT_FALSE(pages->pending);
  set_state([](sim::Gpu& gpu) {
    gpu.retired_page_count = 0;
    gpu.retired_pages_pending = 1;
  });
  const auto pending = health_reader().retired_pages();
  ASSERT_TRUE(pending);
  EXPECT_EQ(pending->single_bit + pending->double_bit, 0u);
  EXPECT_TRUE(pending->pending);
}

TEST_F(HealthTest, UncorrectedErrorsByLocation) {
  set_state([](sim::Gpu& gpu) {
    for (std::size_t i = 0; i < kMemoryLocations; ++i) gpu.ecc[1][0].by_location[i] = 10 + i;
    gpu.ecc[0][0].by_location[2] = 99;  // corrected
    gpu.ecc[1][1].by_location[2] = 99;  // since manufacture
  });
  const auto ecc = health_reader().uncorrected_ecc();
  ASSERT_TRUE(ecc) << ecc.error().full_message();
  for (std::size_t i = 0; i < kMemoryLocations; ++i) EXPECT_EQ(ecc->at[i], 10 + i);
  EXPECT_EQ(ecc->sram_threshold_exceeded, false);
  set_state([](sim::Gpu& gpu) { gpu.sram_threshold = 1; });
  EXPECT_EQ(health_reader().uncorrected_ecc()->sram_threshold_exceeded, true);
}

TEST_F(HealthTest, LocationsAndThresholdMayBeAbsent) {
  set_state([](sim::Gpu& gpu) {
    gpu.architecture = 5;  // Volta: no SRAM location and no row remapping
    gpu.remapped_rows.supported = 0;
    gpu.ecc[1][0].by_location[1] = 6;
  });
  const auto volta = health_reader().uncorrected_ecc();
  ASSERT_TRUE(volta) << volta.error().full_message();
  EXPECT_EQ(volta->at[static_cast<std::size_t>(MemoryLocation::kL2Cache)], 6u);
  EXPECT_EQ(volta->at[static_cast<std::size_t>(MemoryLocation::kSram)], std::nullopt);
  EXPECT_EQ(volta->sram_threshold_exceeded, std::nullopt);
  set_state([](sim::Gpu& gpu) { gpu.ecc_current = 0; });
  expect_unsupported(health_reader().uncorrected_ecc(), "nvmlDeviceGetMemoryErrorCounter");
}

TEST_F(HealthTest, NvLinksByIndex) {
  set_state([](sim::Gpu& gpu) {
    gpu.links[2].active = 0;
    gpu.links[5].replay_errors = 1;
    gpu.links[5].recovery_errors = 20;
    gpu.links[5].crc_flit_errors = 300;
    gpu.links[5].crc_data_errors = 4000;
  });
  const auto links = health_reader().nvlinks();
  ASSERT_TRUE(links) << links.error().full_message();
  ASSERT_EQ(links->size(), 18u);
  for (const auto& link : *links) {
    EXPECT_EQ(link.up, link.index != 2) << link.index;
    EXPECT_EQ(link.errors, link.index == 5 ? 4321u : 0u) << link.index;
  }
  set_state([](sim::Gpu& gpu) { gpu.links[0] = {}; });
  EXPECT_EQ(health_reader().nvlinks()->front().index, 1u) << "a gap does not end the list";
  set_state([](sim::Gpu& gpu) {
    for (auto& link : gpu.links) link = {};
  });
  expect_unsupported(health_reader().nvlinks(), "nvmlDeviceGetNvLinkState");
}

TEST_F(HealthTest, PcieReplaysAndWidth) {
  set_state([](sim::Gpu& gpu) {
    gpu.pcie_replays = 12;
    gpu.pcie_width = 8;
  });
  const auto pcie = health_reader().pcie();
  ASSERT_TRUE(pcie) << pcie.error().full_message();
  EXPECT_EQ(pcie->replays, 12u);
  EXPECT_EQ(pcie->width, 8u);
  EXPECT_EQ(pcie->full_width, 16u);
  set_state([](sim::Gpu& gpu) { gpu.pcie_width = gpu.pcie_width_max = sim::kNotReported; });
  const auto counter_only = health_reader().pcie();
  ASSERT_TRUE(counter_only);
  EXPECT_EQ(counter_only->replays, 12u);
  EXPECT_EQ(counter_only->width, std::nullopt);
  EXPECT_EQ(counter_only->full_width, std::nullopt);
}

TEST_F(HealthTest, ViolationsEnergyAndInforom) {
  set_state([](sim::Gpu& gpu) {
    gpu.violation_thermal_ns = 1'500'000'000;
    gpu.violation_power_ns = 7;
    gpu.energy_mj = 5'000'000;
    gpu.energy_since_ns = ~std::uint64_t{0};
  });
  const auto held = health_reader().violations();
  ASSERT_TRUE(held) << held.error().full_message();
  EXPECT_EQ(held->thermal, std::chrono::milliseconds(1500));
  EXPECT_EQ(held->power, std::chrono::nanoseconds(7));
  EXPECT_EQ(health_reader().energy_consumption().value(), 5'000'000u);
  EXPECT_TRUE(health_reader().inforom_valid().value());
  set_state([](sim::Gpu& gpu) {
    gpu.faults.inforom = 1;
    gpu.power_usage_mw = sim::kNotReported;
  });
  EXPECT_FALSE(health_reader().inforom_valid().value());
  expect_unsupported(health_reader().energy_consumption(), "nvmlDeviceGetTotalEnergyConsumption");
  set_state([](sim::Gpu& gpu) { gpu.inforom_image[0] = '\0'; });
  expect_unsupported(health_reader().inforom_valid(), "nvmlDeviceValidateInforom");
}

TEST_F(HealthTest, TheFabric) {
  EXPECT_EQ(set_fabric().registration, FabricRegistration::kNone);
  const auto state = [&](std::uint8_t value, unsigned status) {
    set_state([=](sim::Gpu& gpu) {
      gpu.fabric.state = value;
      gpu.fabric.status = status;
    });
    return set_fabric().registration;
  };
  EXPECT_EQ(state(kNotStarted, 0), FabricRegistration::kNotStarted);
  EXPECT_EQ(state(kInProgress, 999), FabricRegistration::kInProgress) << "a status counts once it is done";
  EXPECT_EQ(state(kCompleted, 999), FabricRegistration::kFailed);
  EXPECT_EQ(state(kCompleted, 0), FabricRegistration::kDone);
  EXPECT_EQ(set_fabric().summary, std::nullopt);
  const auto masked = [&](unsigned mask) {
    set_state([=](sim::Gpu& gpu) { gpu.fabric.health_mask = mask; });
    return set_fabric();
  };
  // Each field has two bits: 1 means true, 2 means false.
  EXPECT_TRUE(masked(1u).degraded_bandwidth);
  EXPECT_TRUE(masked(1u << 2).route_recovery);
  EXPECT_TRUE(masked(1u << 4).route_unhealthy);
  EXPECT_TRUE(masked(1u << 6).access_timeout_recovery);
  EXPECT_EQ(masked(5u << 8).wrong_configuration, 5u);
  const auto well = masked(2u | 2u << 2 | 2u << 4 | 2u << 6 | 1u << 8);
  EXPECT_FALSE(well.degraded_bandwidth || well.route_recovery || well.route_unhealthy ||
               well.access_timeout_recovery);
  EXPECT_EQ(well.wrong_configuration, 1u);
  set_state([](sim::Gpu& gpu) { gpu.fabric.health_summary = 3; });
  EXPECT_EQ(set_fabric().summary, FabricSummary::kLimited);
  set_state([](sim::Gpu& gpu) { gpu.fabric.health_summary = 2; });
  EXPECT_EQ(set_fabric().summary, FabricSummary::kUnhealthy);
  set_state([](sim::Gpu& gpu) { gpu.fabric.health_summary = 1; });
  EXPECT_EQ(set_fabric().summary, FabricSummary::kHealthy);
}

// The error codes of every reading, in the order of the header.
std::vector<Code> codes(const Health& health) {
  const auto of = [](const auto& reading) { return reading ? Code::kInternal : reading.error().code(); };
  return {of(health.row_remap()),     of(health.retired_pages()), of(health.uncorrected_ecc()),
          of(health.nvlinks()),       of(health.pcie()),          of(health.violations()),
          of(health.fabric_health()), of(health.inforom_valid()), of(health.energy_consumption())};
}

TEST_F(HealthTest, DistinguishesErrorsFromUnsupported) {
  const std::vector<Code> lost(9, Code::kDeviceLost);
  set_state([](sim::Gpu& gpu) { gpu.faults.lost = 1; });
  EXPECT_EQ(codes(health_reader()), lost);
  set_state([](sim::Gpu& gpu) {
    gpu.faults.lost = 0;
    gpu.faults.error = 999;
  });
  EXPECT_EQ(codes(health_reader()), std::vector<Code>(9, Code::kIo));
  set_state([](sim::Gpu& gpu) { gpu.faults.error = 0; });
  auto stale = gpu_;
  stale.generation = 0;
  EXPECT_EQ(codes({*session_, stale}), std::vector<Code>(9, Code::kUnavailable));
}

TEST(HealthOfBareDriver, ReturnsUnsupportedForEverything) {
  const SimRoot root(*sim::small_machine(1), GPULET_BARE_DRIVER);
  const auto session = Session::open_session(root.sim_root());
  ASSERT_TRUE(session) << session.error().full_message();
  const Health health(**session, *(*session)->device(0));
  EXPECT_EQ(codes(health), std::vector<Code>(9, Code::kUnsupported));
  expect_unsupported(health.row_remap(), "nvmlDeviceGetRemappedRows");
  expect_unsupported(health.retired_pages(), "nvmlDeviceGetRetiredPages");
  expect_unsupported(health.uncorrected_ecc(), "nvmlDeviceGetMemoryErrorCounter");
  expect_unsupported(health.nvlinks(), "nvmlDeviceGetNvLinkState");
  expect_unsupported(health.pcie(), "nvmlDeviceGetPcieReplayCounter");
  expect_unsupported(health.violations(), "nvmlDeviceGetViolationStatus");
  expect_unsupported(health.fabric_health(), "nvmlDeviceGetGpuFabricInfo");
  expect_unsupported(health.inforom_valid(), "nvmlDeviceValidateInforom");
  expect_unsupported(health.energy_consumption(), "nvmlDeviceGetTotalEnergyConsumption");
}

// See fake/odd_driver.cpp.
class HealthOfOddDriver : public DriverTest {
 protected:
  HealthOfOddDriver() : DriverTest(*sim::small_machine(1), GPULET_ODD_DRIVER) {}
  Health odd_gpu(unsigned index) const { return {*session_, *session_->device(index)}; }
};

TEST_F(HealthOfOddDriver, UsesFieldValuesOfTheNewestDriver) {
  const auto held = odd_gpu(0).violations();
  ASSERT_TRUE(held) << held.error().full_message();
  EXPECT_EQ(held->thermal, std::chrono::seconds(8));
  EXPECT_EQ(held->power, std::chrono::seconds(9));
  const auto links = odd_gpu(0).nvlinks();
  ASSERT_TRUE(links) << links.error().full_message();
  ASSERT_EQ(links->size(), 2u);
  EXPECT_EQ(links->at(0).errors, 1100u);
  EXPECT_EQ(links->at(1).errors, 1101u);
  const auto ecc = odd_gpu(0).uncorrected_ecc();
  ASSERT_TRUE(ecc) << ecc.error().full_message();
  EXPECT_EQ(ecc->at[static_cast<std::size_t>(MemoryLocation::kSram)], 23u) << "parity and SEC-DED";
  EXPECT_EQ(ecc->at[static_cast<std::size_t>(MemoryLocation::kCbu)], 6u);
  EXPECT_EQ(ecc->sram_threshold_exceeded, true);
}

TEST_F(HealthOfOddDriver, UsesTheCallsOfAnOldDriver) {
  expect_unsupported(odd_gpu(1).violations(), "nvmlDeviceGetViolationStatus");
  const auto links = odd_gpu(1).nvlinks();
  ASSERT_TRUE(links) << links.error().full_message();
  ASSERT_EQ(links->size(), 2u);
  EXPECT_EQ(links->at(0).errors, 10u);
  EXPECT_FALSE(links->at(1).up);
  EXPECT_EQ(links->at(1).errors, std::nullopt) << "a link that is down need not count";
  const auto ecc = odd_gpu(1).uncorrected_ecc();
  ASSERT_TRUE(ecc) << ecc.error().full_message();
  EXPECT_EQ(ecc->at[static_cast<std::size_t>(MemoryLocation::kSram)], std::nullopt);
  EXPECT_EQ(ecc->sram_threshold_exceeded, std::nullopt);
  expect_unsupported(odd_gpu(1).retired_pages(), "nvmlDeviceGetRetiredPagesPendingStatus");
}

TEST_F(HealthOfOddDriver, ReadsTheFabricWithTheNewestKnownStruct) {
  const auto second = odd_gpu(0).fabric_health();
  ASSERT_TRUE(second) << second.error().full_message();
  EXPECT_EQ(second->registration, FabricRegistration::kDone);
  EXPECT_TRUE(second->degraded_bandwidth);
  EXPECT_EQ(second->summary, std::nullopt);
  const auto first = odd_gpu(1).fabric_health();
  ASSERT_TRUE(first) << first.error().full_message();
  EXPECT_EQ(first->registration, FabricRegistration::kFailed);
  EXPECT_FALSE(first->degraded_bandwidth);
}

}  // namespace
}  // namespace gpulet::nvml

#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "inventory/snapshot_reader.h"
#include "metrics/gpu_reader.h"
#include "nvml/test_sim_root.h"
#include "sim/machine/machine.h"
#include "sim/state/mig.h"

namespace gpulet::metrics {
namespace {

constexpr std::uint64_t kSecondUs = 1'000'000, kStartUs = 1'700'000'000 * kSecondUs;
using Times = std::map<unsigned, double>;

nvml::ProcessUtilization sample(unsigned pid, std::uint64_t after_us, unsigned sm) {
  return {pid, kStartUs + after_us, sm, 0, 0, 0};
}

TEST(ProcessTimes, AveragesThePeriods) {
  // Each process has its own time within the same period.
  EXPECT_EQ(mean_utilization(std::vector{sample(1, kSecondUs, 60), sample(1, 2 * kSecondUs, 80),
                                         sample(2, kSecondUs + 7, 10), sample(2, 2 * kSecondUs + 9, 20)},
                             kStartUs),
            (Times{{1, 70}, {2, 15}}));
  EXPECT_EQ(mean_utilization(std::vector{sample(1, kSecondUs, 60), sample(2, kSecondUs + 7, 10)}, kStartUs),
            (Times{{1, 60}, {2, 10}}));
  EXPECT_EQ(mean_utilization({}, kStartUs), Times{});
}

TEST(ProcessTimes, IdlePeriodsCount) {
  // Ten periods: one process in all of them, one in two.
  std::vector<nvml::ProcessUtilization> samples;
  for (unsigned i = 1; i <= 10; ++i) samples.push_back(sample(1, i * kSecondUs, 50));
  samples.push_back(sample(2, 4 * kSecondUs, 100));
  samples.push_back(sample(2, 5 * kSecondUs, 100));
  EXPECT_EQ(mean_utilization(samples, kStartUs), (Times{{1, 50}, {2, 20}}));
  // The GPU was idle until two periods before the last.
  EXPECT_EQ(
      mean_utilization(std::vector{sample(1, 9 * kSecondUs, 100), sample(1, 10 * kSecondUs, 100)}, kStartUs),
      (Times{{1, 20}}));
}

TEST(ProcessTimes, FirstReadUsesOnlyRecentSamples) {
  EXPECT_EQ(mean_utilization(std::vector{sample(1, 0, 90), sample(1, 10 * kSecondUs, 40),
                                         sample(2, 3 * kSecondUs, 70), sample(3, 10 * kSecondUs - 9, 30)},
                             0),
            (Times{{1, 40}, {3, 30}}));
}

TEST(ProcessTimes, CloseSamplesAreOnePeriod) {
  EXPECT_EQ(mean_utilization(std::vector{sample(1, kSecondUs, 60), sample(1, kSecondUs + 1, 40)}, kStartUs),
            (Times{{1, 50}}));
}

}  // namespace

namespace {

using namespace std::chrono_literals;

std::set<Field> all_fields() {
  std::set<Field> all;
  for (const auto& field : fields()) all.insert(field.field);
  return all;
}

class ReadTest : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = nvml::Session::open_session(root_.sim_root());
    ASSERT_TRUE(opened) << opened.error().full_message();
    session_ = *opened;
    look();
  }
  // Takes a snapshot of the current state.
  void look() {
    snapshot_.gpus.clear();
    snapshot_.driver = inventory::read_driver_summary(*session_)->driver;
    for (unsigned i = 0; i < 2; ++i)
      snapshot_.gpus.push_back(inventory::read_gpu(*session_, i, {root_.sim_root()}));
  }
  // Edits GPU 0.
  void set(const std::function<void(sim::Gpu&)>& change) { change(root_.edit_machine()->gpus[0]); }
  // One second later each time.
  GpuSample read(std::size_t index = 0) {
    return reader_.sample_gpu(*session_, snapshot_, index, now_ += 1s);
  }

  nvml::SimRoot root_{*sim::small_machine(2)};
  std::shared_ptr<const nvml::Session> session_;
  inventory::Snapshot snapshot_;
  GpuReader reader_{all_fields()};
  std::chrono::nanoseconds now_{1h};
};

Value number(std::uint64_t value) { return value; }

TEST_F(ReadTest, ReadsEverySupportedField) {
  set([](sim::Gpu& gpu) {
    gpu.utilization_gpu = 80;
    gpu.utilization_memory = 30;
    gpu.utilization_encoder = 5;
    gpu.utilization_decoder = 6;
    gpu.power_usage_mw = 412'500;
    gpu.energy_mj = 77;
    gpu.energy_since_ns = ~std::uint64_t{0};
    gpu.clock_event_reasons = 4;
    gpu.pcie_tx_kbps = 1000;
    gpu.pcie_rx_kbps = 2000;
    gpu.pcie_replays = 3;
    gpu.memory_used = std::uint64_t{1000} << 20;
    gpu.violation_thermal_ns = 9;
    gpu.remapped_rows.uncorrectable = 2;
    gpu.links[0].crc_flit_errors = 4;
  });
  read();
  set([](sim::Gpu& gpu) {
    gpu.links[1].transmitted_kib = 5'000'000;
    gpu.links[2].received_kib = 1'000'000;
  });
  const auto sample = read();
  ASSERT_FALSE(sample.error) << sample.error->full_message();
  EXPECT_EQ(sample.index, 0u);
  EXPECT_EQ(sample.uuid, snapshot_.gpus[0].uuid);
  EXPECT_EQ(sample.pci_bus_id, "00000000:18:00.0");
  EXPECT_EQ(sample.model, "NVIDIA H100 80GB HBM3");
  const Values wanted = {
      {Field::kDriverVersion, "570.124.06"},
      {Field::kNvmlVersion, "12.570.124.06"},
      {Field::kCudaVersion, number(12080)},
      {Field::kMinorNumber, "0"},
      {Field::kInforomEcc, "7.16"},
      {Field::kVbios, "96.00.89.00.01"},
      {Field::kMigMode, number(0)},
      {Field::kSmClock, number(345)},
      {Field::kMemoryClock, number(2619)},
      {Field::kMaxSmClock, number(1980)},
      {Field::kClockEvents, number(4)},
      {Field::kMemoryTemp, number(42)},
      {Field::kGpuTemp, number(30)},
      {Field::kSlowdownTemp, number(89)},
      {Field::kPower, 412.5},
      {Field::kPowerInstant, 412.5},
      {Field::kEnergy, number(77)},
      {Field::kPowerLimit, 700.0},
      {Field::kPowerLimitLeast, 200.0},
      {Field::kPowerLimitMost, 700.0},
      {Field::kPerformanceState, number(0)},
      {Field::kPcieTx, number(1000)},
      {Field::kPcieRx, number(2000)},
      {Field::kPcieReplays, number(3)},
      {Field::kGpuUtil, number(80)},
      {Field::kMemCopyUtil, number(30)},
      {Field::kEncoderUtil, number(5)},
      {Field::kDecoderUtil, number(6)},
      {Field::kPcieGeneration, number(5)},
      {Field::kPcieWidth, number(16)},
      {Field::kViolationThermal, number(9)},
      {Field::kViolationPower, number(0)},
      {Field::kFbTotal, number(81559)},
      {Field::kFbUsed, number(1000)},
      {Field::kFbFree, number(80008)},
      {Field::kFbReserved, number(551)},
      {Field::kEccMode, number(1)},
      {Field::kEccDbeVolatile, number(0)},
      {Field::kRemappedUncorrectable, number(2)},
      {Field::kRemapFailure, number(0)},
      {Field::kNvLinkCrcFlit, number(4)},
      {Field::kNvLinkBandwidth, number(6000)},
      {Field::kNvLinkCrcErrors, number(4)},
      {Field::kNvLinkEccErrors, number(0)},
      {Field::kVgpuLicense, number(0)},
      {Field::kGraphicsActive, 0.8},
      {Field::kDramActive, 0.3},
      {Field::kPcieRxBytes, 2'000'000.0},
  };
  for (const auto& [field, value] : wanted) {
    ASSERT_TRUE(sample.values.contains(field)) << field_info(field).name;
    EXPECT_EQ(sample.values.at(field), value) << field_info(field).name;
  }
  for (const Field field : {Field::kFan, Field::kRetiredSbe, Field::kInforomPower, Field::kXid})
    EXPECT_FALSE(sample.values.contains(field)) << field_info(field).name << ": this GPU does not have it";
  EXPECT_EQ(sample.peers, (std::map<unsigned, std::string>{{1, "OK"}}));
  // Every field of the table that this machine supports is present: the missing ones are known.
  std::set<std::string_view> missing;
  for (const auto& field : fields()) {
    // From NVLink 5 on: link_reader_test.cpp.
    const bool other_links = field.name.starts_with("DCGM_FI_DEV_NVLINK_COUNT_");
    if (!other_links && !sample.values.contains(field.field)) missing.insert(field.name);
  }
  EXPECT_EQ(missing, (std::set<std::string_view>{
                         "DCGM_FI_DEV_POWER_INFOROM_VER", "DCGM_FI_DEV_FAN_SPEED", "DCGM_FI_DEV_XID_ERRORS",
                         "DCGM_FI_DEV_RETIRED_SBE", "DCGM_FI_DEV_RETIRED_DBE", "DCGM_FI_DEV_RETIRED_PENDING",
                         "DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_CLOCK_EVENTS_COUNT", "DCGM_EXP_P2P_STATUS"}));
}

TEST_F(ReadTest, ReadsOnlyWantedFields) {
  reader_ = GpuReader({Field::kGpuTemp});
  read();
  std::set<Field> found;
  for (const auto& [field, value] : read().values) found.insert(field);
  EXPECT_EQ(found, (std::set<Field>{Field::kGpuTemp, Field::kGpuUtil, Field::kMemCopyUtil, Field::kEnergy,
                                    Field::kFbTotal, Field::kFbFree, Field::kFbUsed, Field::kFbReserved,
                                    Field::kFbUsedPercent}));
}

TEST_F(ReadTest, RatesRestartWithAnotherSession) {
  const auto has_rates = [](const GpuSample& sample) {
    return sample.values.contains(Field::kNvLinkBandwidth) || sample.values.contains(Field::kGraphicsActive);
  };
  EXPECT_FALSE(has_rates(read()));
  EXPECT_TRUE(has_rates(read()));
  now_ -= 950ms;
  EXPECT_FALSE(read().values.contains(Field::kGraphicsActive)) << "the monitors want 100 ms";
  ASSERT_TRUE(nvml::Session::shut_down(std::move(session_), 30s));
  session_ = *nvml::Session::open_session(root_.sim_root());
  EXPECT_FALSE(has_rates(read()));
  EXPECT_TRUE(has_rates(read()));
  // The driver was reloaded: counters are lower than before.
  set([](sim::Gpu& gpu) { gpu.links[0].transmitted_kib = 1000; });
  read();
  set([](sim::Gpu& gpu) { gpu.links[0].transmitted_kib = 0; });
  EXPECT_FALSE(read().values.contains(Field::kNvLinkBandwidth));
}

TEST_F(ReadTest, ReadsProcessTimes) {
  set([](sim::Gpu& gpu) {
    for (const auto& [pid, sm] : {std::pair{20u, 60}, std::pair{10u, 20}}) {
      sim::Process process{};
      process.pid = pid;
      process.gpu_instance = process.compute_instance = sim::kNoInstance;
      process.memory_bytes = pid << 20;
      process.sm_utilization = static_cast<std::uint8_t>(sm);
      ASSERT_TRUE(sim::add_process(gpu, process));
    }
  });
  const auto sample = read();
  EXPECT_TRUE(sample.has_process_times);
  EXPECT_EQ(sample.processes, (std::vector<ProcessSample>{{10, mebibytes(10), 20}, {20, mebibytes(20), 60}}));
  set([](sim::Gpu& gpu) {
    for (auto& process : gpu.processes) process = {};
  });
  EXPECT_TRUE(read().processes.empty());
}

TEST_F(ReadTest, GpuInstances) {
  set([](sim::Gpu& gpu) {
    ASSERT_EQ(sim::set_mig_mode(gpu, true), sim::MigOutcome::kOk);
    sim::GpuInstance* three = nullptr;
    sim::GpuInstance* one = nullptr;
    sim::ComputeInstance* made = nullptr;
    ASSERT_EQ(sim::create_gpu_instance(gpu, 9, 4, &three), sim::MigOutcome::kOk);
    ASSERT_EQ(sim::create_gpu_instance(gpu, 19, 0, &one), sim::MigOutcome::kOk);
    // Two compute instances in the larger, one in the smaller.
    ASSERT_EQ(sim::create_compute_instance(gpu, *three, 0, std::nullopt, &made), sim::MigOutcome::kOk);
    ASSERT_EQ(sim::create_compute_instance(gpu, *three, 0, std::nullopt, &made), sim::MigOutcome::kOk);
    ASSERT_EQ(sim::create_compute_instance(gpu, *one, 0, std::nullopt, &made), sim::MigOutcome::kOk);
    sim::Process process{};
    process.pid = 5;
    process.gpu_instance = three->id;
    process.compute_instance = 1;
    process.memory_bytes = 700 << 20;
    process.sm_utilization = 90;
    ASSERT_TRUE(sim::add_process(gpu, process));
  });
  look();
  read();
  const auto sample = read();
  ASSERT_FALSE(sample.error) << sample.error->full_message();
  EXPECT_TRUE(sample.mig);
  EXPECT_FALSE(sample.values.contains(Field::kGpuUtil));
  EXPECT_TRUE(sample.values.contains(Field::kGpuTemp));
  ASSERT_EQ(sample.instances.size(), 2u);
  const bool three_first = sample.instances[0].profile == "3g.40gb";
  const auto& three = sample.instances[three_first ? 0 : 1];
  const auto& one = sample.instances[three_first ? 1 : 0];
  EXPECT_LT(sample.instances[0].id, sample.instances[1].id);
  EXPECT_EQ(three.profile, "3g.40gb") << "the instance's, not its parts'";
  EXPECT_EQ(one.profile, "1g.10gb");
  EXPECT_EQ(three.values.at(Field::kFbUsed), number(700));
  EXPECT_EQ(three.values.at(Field::kFbTotal), number(40320));
  EXPECT_EQ(three.values.at(Field::kGraphicsActive), Value(0.9));
  EXPECT_FALSE(three.values.contains(Field::kPcieTxBytes)) << "the bus is the GPU's";
  EXPECT_EQ(one.values.at(Field::kFbUsed), number(0));
  EXPECT_EQ(one.values.at(Field::kGraphicsActive), Value(0.0));
  ASSERT_EQ(three.devices.size(), 2u);
  EXPECT_TRUE(three.devices[0].processes.empty());
  EXPECT_EQ(three.devices[1].processes, (std::vector<ProcessSample>{{5, mebibytes(700), 0}}));
  EXPECT_EQ(three.devices[1].compute_instance, 1u);
  // One is destroyed: a later snapshot reflects it.
  set([](sim::Gpu& gpu) {
    for (auto& instance : gpu.mig.instances) {
      if (instance.used != 0 && instance.length == 1) instance = {};
    }
  });
  EXPECT_EQ(read().instances.size(), 1u);
}

TEST_F(ReadTest, UnresponsiveGpuHasAReason) {
  set([](sim::Gpu& gpu) { gpu.faults.lost = 1; });
  const auto lost = read();
  ASSERT_TRUE(lost.error);
  EXPECT_EQ(lost.error->code(), Code::kDeviceLost);
  EXPECT_TRUE(lost.values.empty());
  EXPECT_EQ(lost.uuid, snapshot_.gpus[0].uuid);
  EXPECT_FALSE(read(1).error) << "the other is whole";
  set([](sim::Gpu& gpu) {
    gpu.faults.lost = 0;
    gpu.faults.error = 999;
  });
  const auto odd = read();
  ASSERT_TRUE(odd.error);
  EXPECT_EQ(odd.error->code(), Code::kIo);
  set([](sim::Gpu& gpu) { gpu.faults.error = 0; });
  EXPECT_FALSE(read().error);
  sim::replace_gpu(*root_.edit_machine(), 0);
  const auto other = read();
  ASSERT_TRUE(other.error);
  EXPECT_EQ(other.error->message().find("another GPU is in its place: "), 0u);
  sim::unload_driver(*root_.edit_machine());
  EXPECT_EQ(read().error->code(), Code::kUnavailable);
}

TEST_F(ReadTest, GpmIsAbsentBeforeHopper) {
  set([](sim::Gpu& gpu) { gpu.architecture = 8; });
  read();
  const auto sample = read();
  EXPECT_FALSE(sample.values.contains(Field::kGraphicsActive));
  EXPECT_TRUE(sample.values.contains(Field::kGpuUtil));
}

}  // namespace
}  // namespace gpulet::metrics

#include "nvml/usage.h"

#include <gtest/gtest.h>

#include <functional>

#include "nvml/test_on_driver.h"
#include "sim/state/mig.h"

namespace gpulet::nvml {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

class UsageTest : public DriverTest {
 protected:
  UsageTest() : DriverTest(2u) {}
  Usage usage_reader() const { return {*session_, gpu_}; }
  // Edits GPU 0.
  void set_gpu(const std::function<void(sim::Gpu&)>& change) { change(root_.edit_machine()->gpus[0]); }
  // Creates a GPU instance with one compute instance on GPU 0 and returns its MIG device.
  Device make_mig() {
    set_gpu([](sim::Gpu& gpu) {
      sim::GpuInstance* instance = nullptr;
      sim::ComputeInstance* compute = nullptr;
      ASSERT_EQ(sim::set_mig_mode(gpu, true), sim::MigOutcome::kOk);
      ASSERT_EQ(sim::create_gpu_instance(gpu, 9, 4, &instance), sim::MigOutcome::kOk);
      ASSERT_EQ(sim::create_compute_instance(gpu, *instance, 2, std::nullopt, &compute),
                sim::MigOutcome::kOk);
    });
    return *session_->mig_device(gpu_, 0);
  }
};

sim::Process process_memory_of(std::uint32_t pid, std::uint8_t kind, std::uint64_t mib, std::uint8_t sm = 0) {
  sim::Process one{};
  one.pid = pid;
  one.kind = kind;
  one.gpu_instance = one.compute_instance = sim::kNoInstance;
  one.memory_bytes = mib * kMiB;
  one.sm_utilization = sm;
  one.memory_utilization = sm / 2;
  return one;
}

TEST_F(UsageTest, ClocksTemperaturesAndPower) {
  set_gpu([](sim::Gpu& gpu) {
    gpu.clocks.current[1] = 1410;
    gpu.clocks.current[2] = 2619;
    gpu.clocks.application[1] = 1500;
    gpu.clock_event_reasons = kClocksPowerCap | kClocksSwThermal;
    gpu.performance_state = 2;
    gpu.temperature = 61;
    gpu.power_usage_mw = 412'345;
    gpu.power_limit_mw = 500'000;
  });
  EXPECT_EQ(usage_reader().clock(Clock::kSm).value(), 1410u);
  EXPECT_EQ(usage_reader().clock(Clock::kMemory).value(), 2619u);
  EXPECT_EQ(usage_reader().max_clock(Clock::kSm).value(), 1980u);
  EXPECT_EQ(usage_reader().application_clock(Clock::kSm).value(), 1500u);
  EXPECT_EQ(usage_reader().clock_events().value(), kClocksPowerCap | kClocksSwThermal);
  EXPECT_EQ(usage_reader().performance_state().value(), 2u);
  EXPECT_EQ(usage_reader().temperature().value(), 61u);
  EXPECT_EQ(usage_reader().temperature_limit(TemperatureLimit::kSlowdown).value(), 89u);
  EXPECT_EQ(usage_reader().power().value(), MilliWatts{412'345});
  EXPECT_EQ(usage_reader().power_limit().value(), MilliWatts{500'000});
  EXPECT_EQ(usage_reader().enforced_power_limit().value(), MilliWatts{500'000});
  EXPECT_EQ(usage_reader().default_power_limit().value(), MilliWatts{700'000});
  EXPECT_EQ(usage_reader().power_limits().value().minimum, MilliWatts{200'000});
  EXPECT_EQ(usage_reader().power_limits().value().maximum, MilliWatts{700'000});
  expect_unsupported(usage_reader().fan(), "nvmlDeviceGetFanSpeed");
  set_gpu([](sim::Gpu& gpu) {
    gpu.fan_percent = 40;
    gpu.fan_count = 1;
    gpu.temperature = 255;
  });
  EXPECT_EQ(usage_reader().fan().value(), 40u);
  expect_unsupported(usage_reader().temperature(), "nvmlDeviceGetTemperature");
}

TEST_F(UsageTest, EnginesAndBus) {
  set_gpu([](sim::Gpu& gpu) {
    gpu.utilization_gpu = 87;
    gpu.utilization_memory = 43;
    gpu.utilization_encoder = 12;
    gpu.utilization_decoder = 34;
    gpu.pcie_tx_kbps = 1'000'000;
    gpu.pcie_rx_kbps = 2'000'000;
    gpu.pcie_generation = 4;
  });
  EXPECT_EQ(usage_reader().utilization().value().gpu, 87u);
  EXPECT_EQ(usage_reader().utilization().value().memory, 43u);
  EXPECT_EQ(usage_reader().encoder().value(), 12u);
  EXPECT_EQ(usage_reader().decoder().value(), 34u);
  EXPECT_EQ(usage_reader().pcie_throughput().value().transmitted, 1'000'000u);
  EXPECT_EQ(usage_reader().pcie_throughput().value().received, 2'000'000u);
  EXPECT_EQ(usage_reader().pcie_generation().value(), 4u);
  EXPECT_EQ(usage_reader().max_pcie_generation().value(), 5u);
  EXPECT_FALSE(usage_reader().licensed().value()) << "nothing to license";
  EXPECT_EQ(usage_reader().peer_to_peer(*session_->device(1)).value(), PeerToPeer::kOk);
  EXPECT_EQ(usage_reader().peer_to_peer(gpu_).value(), PeerToPeer::kOk) << "with itself";
  EXPECT_EQ(usage_reader().vbios().value(), "96.00.89.00.01");
  EXPECT_EQ(usage_reader().inforom(Usage::Inforom::kImage).value(), "G520.0200.00.05");
  EXPECT_EQ(usage_reader().inforom(Usage::Inforom::kEcc).value(), "7.16");
  expect_unsupported(usage_reader().inforom(Usage::Inforom::kPower), "nvmlDeviceGetInforomVersion");
  EXPECT_EQ(session_->nvml_version().value(), "12.570.124.06");
  make_mig();
  expect_unsupported(usage_reader().utilization(), "nvmlDeviceGetUtilizationRates");
  expect_unsupported(usage_reader().encoder(), "nvmlDeviceGetEncoderUtilization");
}

TEST_F(UsageTest, ReadsMemoryOfGpuAndMigDevice) {
  set_gpu([](sim::Gpu& gpu) {
    gpu.memory_used = 1000 * kMiB;
    gpu.bar1_used = 3 * kMiB;
  });
  const auto whole = usage_reader().memory();
  ASSERT_TRUE(whole) << whole.error().full_message();
  EXPECT_EQ(whole->total, mebibytes(81559));
  EXPECT_EQ(whole->reserved, mebibytes(551));
  EXPECT_EQ(whole->used, mebibytes(1000));
  EXPECT_EQ(whole->free, mebibytes(81559 - 551 - 1000));
  EXPECT_EQ(usage_reader().bar1().value().used, mebibytes(3));
  const Device mig = make_mig();
  set_gpu([](sim::Gpu& gpu) {
    auto one = process_memory_of(70, 0, 500);
    one.gpu_instance = gpu.mig.instances[4].id;
    one.compute_instance = 0;
    ASSERT_TRUE(sim::add_process(gpu, one));
  });
  const Usage part(*session_, mig);
  EXPECT_EQ(part.memory().value().total, mebibytes(40320));
  EXPECT_EQ(part.memory().value().used, mebibytes(500));
  ASSERT_EQ(part.process_memory().value().size(), 1u);
  EXPECT_EQ(part.process_memory().value()[0].process.pid, 70u);
  EXPECT_EQ(part.process_memory().value()[0].process.compute_instance, 0u);
  EXPECT_EQ(part.process_memory().value()[0].memory, mebibytes(500));
}

TEST_F(UsageTest, ProcessesWithTheirMemory) {
  set_gpu([](sim::Gpu& gpu) {
    ASSERT_TRUE(sim::add_process(gpu, process_memory_of(30, 1, 5)));
    ASSERT_TRUE(sim::add_process(gpu, process_memory_of(10, 0, 7)));
    // The same process has two kinds of context.
    ASSERT_TRUE(sim::add_process(gpu, process_memory_of(30, 0, 9)));
    ASSERT_TRUE(sim::add_process(gpu, process_memory_of(20, 2, 1)));
    gpu.processes[3].memory_bytes = ~std::uint64_t{0};  // NVML_VALUE_NOT_AVAILABLE
  });
  const auto all = usage_reader().process_memory();
  ASSERT_TRUE(all) << all.error().full_message();
  const std::vector<ProcessMemory> expected = {
      {{10, {}, {}}, mebibytes(7)}, {{20, {}, {}}, std::nullopt}, {{30, {}, {}}, mebibytes(9)}};
  EXPECT_EQ(*all, expected);
}

TEST_F(UsageTest, WithoutAListOfComputeProcessesTheProcessesAreUnknown) {
  const auto refuse = [this](const sim::Answer& answer) {
    auto machine = root_.edit_machine();
    machine->answers[machine->answer_count++] = answer;
  };
  set_gpu([](sim::Gpu& gpu) { ASSERT_TRUE(sim::add_process(gpu, process_memory_of(10, 0, 7))); });
  refuse({"nvmlDeviceGetMPSComputeRunningProcesses_v3", sim::kMaxGpus, NVML_ERROR_NOT_SUPPORTED});
  refuse({"nvmlDeviceGetGraphicsRunningProcesses_v3", sim::kMaxGpus, NVML_ERROR_NOT_SUPPORTED});
  const auto all = usage_reader().process_memory();
  ASSERT_TRUE(all) << all.error().full_message();
  EXPECT_EQ(all->size(), 1u);
  refuse({"nvmlDeviceGetComputeRunningProcesses_v3", sim::kMaxGpus, NVML_ERROR_NOT_SUPPORTED});
  EXPECT_EQ(usage_reader().process_memory().error().code(), Code::kUnsupported);
  EXPECT_EQ(session_->running_processes(gpu_).error().code(), Code::kUnsupported);
}

TEST_F(UsageTest, ReadsProcessUtilization) {
  EXPECT_TRUE(usage_reader().process_utilization(0).value().empty());
  set_gpu([](sim::Gpu& gpu) {
    ASSERT_TRUE(sim::add_process(gpu, process_memory_of(30, 0, 5, 60)));
    ASSERT_TRUE(sim::add_process(gpu, process_memory_of(10, 0, 7, 20)));
  });
  const auto samples = usage_reader().process_utilization(0);
  ASSERT_TRUE(samples) << samples.error().full_message();
  ASSERT_EQ(samples->size(), 2u);
  EXPECT_EQ(samples->at(0).pid, 10u);
  EXPECT_EQ(samples->at(0).sm, 20u);
  EXPECT_EQ(samples->at(0).memory, 10u);
  EXPECT_EQ(samples->at(1).pid, 30u);
  EXPECT_GT(samples->at(1).when_us, 0u);
  EXPECT_TRUE(usage_reader().process_utilization(~std::uint64_t{0} - 1).value().empty())
      << "nothing since then";
  set_gpu([](sim::Gpu& gpu) {
    for (auto& one : gpu.processes) one = {};
  });
  make_mig();
  expect_unsupported(usage_reader().process_utilization(0), "nvmlDeviceGetProcessUtilization");
}

TEST_F(UsageTest, ManyProcessesFit) {
  set_gpu([](sim::Gpu& gpu) {
    for (std::uint32_t pid = 1; pid <= sim::kMaxProcesses; ++pid)
      ASSERT_TRUE(sim::add_process(gpu, process_memory_of(pid, 0, 1, 1)));
  });
  EXPECT_EQ(usage_reader().process_memory().value().size(), sim::kMaxProcesses);
  EXPECT_EQ(usage_reader().process_utilization(0).value().size(), sim::kMaxProcesses);
}

TEST_F(UsageTest, ReadsManyFieldsInOneCall) {
  set_gpu([](sim::Gpu& gpu) {
    gpu.memory_temperature = 55;
    gpu.energy_mj = 5'000'000;
    gpu.energy_since_ns = ~std::uint64_t{0};
    gpu.violation_power_ns = 7;
    gpu.violation_thermal_ns = 8;
    gpu.ecc[0][0].by_location[2] = 11;
    gpu.ecc[1][0].by_location[2] = 12;
    gpu.ecc[0][1].by_location[2] = 13;
    gpu.ecc[1][1].by_location[2] = 14;
    gpu.remapped_rows.uncorrectable = 3;
    gpu.links[3].crc_flit_errors = 21;
    gpu.links[4].crc_data_errors = 22;
    gpu.links[5].replay_errors = 23;
    gpu.links[6].recovery_errors = 24;
    gpu.links[0].transmitted_kib = 100;
    gpu.links[17].transmitted_kib = 1;
    gpu.links[1].received_kib = 50;
    gpu.power_usage_mw = 90'000;
  });
  const std::set<FieldId> ids = {FieldId::kMemoryTemperature,     FieldId::kEnergy,
                                 FieldId::kViolationPower,        FieldId::kViolationThermal,
                                 FieldId::kEccSingleVolatile,     FieldId::kEccDoubleVolatile,
                                 FieldId::kEccSingleAggregate,    FieldId::kEccDoubleAggregate,
                                 FieldId::kRemappedUncorrectable, FieldId::kRemappedFailure,
                                 FieldId::kNvLinkCrcFlit,         FieldId::kNvLinkCrcData,
                                 FieldId::kNvLinkReplay,          FieldId::kNvLinkRecovery,
                                 FieldId::kNvLinkTransmitted,     FieldId::kNvLinkReceived,
                                 FieldId::kRetiredSingle,         FieldId::kPowerInstant};
  const auto all = usage_reader().fields(ids);
  ASSERT_TRUE(all) << all.error().full_message();
  const std::map<FieldId, std::uint64_t> expected = {
      {FieldId::kMemoryTemperature, 55},    {FieldId::kEnergy, 5'000'000},
      {FieldId::kViolationPower, 7},        {FieldId::kViolationThermal, 8},
      {FieldId::kEccSingleVolatile, 11},    {FieldId::kEccDoubleVolatile, 12},
      {FieldId::kEccSingleAggregate, 13},   {FieldId::kEccDoubleAggregate, 14},
      {FieldId::kRemappedUncorrectable, 3}, {FieldId::kRemappedFailure, 0},
      {FieldId::kNvLinkCrcFlit, 21},        {FieldId::kNvLinkCrcData, 22},
      {FieldId::kNvLinkReplay, 23},         {FieldId::kNvLinkRecovery, 24},
      {FieldId::kNvLinkTransmitted, 101},   {FieldId::kNvLinkReceived, 50},
      {FieldId::kPowerInstant, 90'000}};
  EXPECT_EQ(*all, expected) << "without retired pages, which this GPU does not have";
  set_gpu([](sim::Gpu& gpu) { gpu.memory_temperature = 201; });
  EXPECT_TRUE(usage_reader().fields({FieldId::kMemoryTemperature}).value().empty()) << "no temperature";
  EXPECT_TRUE(usage_reader().fields({}).value().empty());
}

// The error codes of every reading, in the order of the header.
std::vector<Code> codes(const Usage& usage, Device other) {
  const auto of = [](const auto& reading) { return reading ? Code::kInternal : reading.error().code(); };
  return {of(usage.clock(Clock::kSm)),
          of(usage.max_clock(Clock::kSm)),
          of(usage.application_clock(Clock::kSm)),
          of(usage.clock_events()),
          of(usage.performance_state()),
          of(usage.temperature()),
          of(usage.temperature_limit(TemperatureLimit::kSlowdown)),
          of(usage.fan()),
          of(usage.power()),
          of(usage.power_limit()),
          of(usage.enforced_power_limit()),
          of(usage.default_power_limit()),
          of(usage.power_limits()),
          of(usage.utilization()),
          of(usage.encoder()),
          of(usage.decoder()),
          of(usage.memory()),
          of(usage.bar1()),
          of(usage.pcie_generation()),
          of(usage.max_pcie_generation()),
          of(usage.pcie_throughput()),
          of(usage.peer_to_peer(other)),
          of(usage.vbios()),
          of(usage.inforom(Usage::Inforom::kOem)),
          of(usage.fields({FieldId::kEnergy})),
          of(usage.process_memory()),
          of(usage.process_utilization(0))};
}

TEST_F(UsageTest, DistinguishesErrorsFromUnsupported) {
  const auto other = *session_->device(1);
  set_gpu([](sim::Gpu& gpu) { gpu.faults.lost = 1; });
  EXPECT_EQ(codes(usage_reader(), other), std::vector<Code>(27, Code::kDeviceLost));
  EXPECT_EQ(usage_reader().licensed().error().code(), Code::kDeviceLost);
  set_gpu([](sim::Gpu& gpu) {
    gpu.faults.lost = 0;
    gpu.faults.error = 999;
  });
  EXPECT_EQ(codes(usage_reader(), other), std::vector<Code>(27, Code::kIo));
  set_gpu([](sim::Gpu& gpu) { gpu.faults.error = 0; });
  auto stale = gpu_;
  stale.generation = 0;
  EXPECT_EQ(codes({*session_, stale}, other), std::vector<Code>(27, Code::kUnavailable));
  EXPECT_EQ(usage_reader().peer_to_peer(stale).error().code(), Code::kUnavailable);
}

// Driver 535.54.03 writes entries of 32 bytes through the function whose entries have 24.
TEST_F(UsageTest, LargeProcessEntriesOfOneDriverAreRead) {
  const auto processes_with = [&](unsigned count, const std::string& version) {
    {
      const auto machine = root_.edit_machine();
      std::snprintf(machine->driver.version, sizeof machine->driver.version, "%s", version.c_str());
      std::ranges::fill(machine->gpus[0].processes, sim::Process{});
      for (unsigned i = 0; i < count; ++i)
        machine->gpus[0].processes[i] = process_memory_of(1000 + i, 0, i + 1);
    }
    std::vector<std::pair<unsigned, std::uint64_t>> found;
    const auto all = usage_reader().process_memory().value();
    for (const auto& one : all) found.emplace_back(one.process.pid, one.memory.value_or(Bytes{0}).value);
    return found;
  };
  for (const unsigned count : {0u, 1u, 2u, 60u}) {
    std::vector<std::pair<unsigned, std::uint64_t>> expected;
    for (unsigned i = 0; i < count; ++i) expected.emplace_back(1000 + i, std::uint64_t{i + 1} << 20);
    EXPECT_EQ(processes_with(count, "535.54.03"), expected) << count;
    EXPECT_EQ(processes_with(count, "535.86.05"), expected) << count;
  }
}

TEST(UsageOfBareDriver, ReturnsUnsupportedForEverything) {
  const SimRoot root(*sim::small_machine(1), GPULET_BARE_DRIVER);
  const auto session = Session::open_session(root.sim_root());
  ASSERT_TRUE(session) << session.error().full_message();
  const auto gpu = *(*session)->device(0);
  const Usage usage(**session, gpu);
  EXPECT_EQ(codes(usage, gpu), std::vector<Code>(27, Code::kUnsupported));
  EXPECT_FALSE(usage.licensed().value());
  expect_unsupported(usage.power(), "nvmlDeviceGetPowerUsage");
  expect_unsupported(usage.fields({FieldId::kEnergy}), "nvmlDeviceGetFieldValues");
  expect_unsupported((*session)->nvml_version(), "nvmlSystemGetNVMLVersion");
}

}  // namespace
}  // namespace gpulet::nvml

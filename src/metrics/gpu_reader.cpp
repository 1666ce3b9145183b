#include "metrics/gpu_reader.h"

#include <algorithm>

#include "nvml/health.h"
#include "nvml/return_codes.h"
#include "nvml/usage.h"

namespace gpulet::metrics {
namespace {

// Period of the driver's utilisation samples: from a sixth of a second to a second.
constexpr std::uint64_t kShortestPeriodUs = 10'000;
constexpr std::uint64_t kLongestPeriodUs = 1'000'000;

}  // namespace

std::map<unsigned, double> mean_utilization(std::span<const nvml::ProcessUtilization> samples,
                                            std::uint64_t since_us) {
  std::map<unsigned, double> times;
  std::map<unsigned, std::uint64_t> counts;
  std::uint64_t newest = 0, period = 0, most = 1;
  const nvml::ProcessUtilization* before = nullptr;
  for (const auto& sample : samples) {  // by process and time
    newest = std::max(newest, sample.when_us);
    most = std::max(most, ++counts[sample.pid]);
    const auto gap = before != nullptr && before->pid == sample.pid ? sample.when_us - before->when_us : 0;
    if (gap >= kShortestPeriodUs && (period == 0 || gap < period)) period = gap;
    before = &sample;
  }
  if (since_us == 0) {
    // At the first read, older samples of the driver's buffer are ignored.
    for (const auto& sample : samples) {
      if (newest - sample.when_us < kLongestPeriodUs) times[sample.pid] = sample.sm;
    }
    return times;
  }
  const std::uint64_t periods = std::max(most, period == 0 ? 1 : (newest - since_us) / period);
  for (const auto& sample : samples) times[sample.pid] += sample.sm / static_cast<double>(periods);
  return times;
}

namespace {

using nvml::Clock;
using nvml::FieldId;
using nvml::GpmMetric;
using nvml::TemperatureLimit;
using nvml::Usage;

constexpr double kMiB = 1 << 20;
constexpr double kMilli = 1000;
constexpr double kPercent = 100;

// Fields that one call of nvmlDeviceGetFieldValues returns.
struct ByField {
  Field field;
  FieldId id;
};
constexpr ByField kByField[] = {
    {Field::kMemoryTemp, FieldId::kMemoryTemperature},
    {Field::kEnergy, FieldId::kEnergy},
    {Field::kViolationPower, FieldId::kViolationPower},
    {Field::kViolationThermal, FieldId::kViolationThermal},
    {Field::kViolationSyncBoost, FieldId::kViolationSyncBoost},
    {Field::kViolationBoardLimit, FieldId::kViolationBoardLimit},
    {Field::kViolationLowUtil, FieldId::kViolationLowUtilization},
    {Field::kViolationReliability, FieldId::kViolationReliability},
    {Field::kViolationAppClocks, FieldId::kViolationAppClocks},
    {Field::kViolationBaseClocks, FieldId::kViolationBaseClocks},
    {Field::kEccMode, FieldId::kEccCurrent},
    {Field::kEccPending, FieldId::kEccPending},
    {Field::kEccSbeVolatile, FieldId::kEccSingleVolatile},
    {Field::kEccDbeVolatile, FieldId::kEccDoubleVolatile},
    {Field::kEccSbeAggregate, FieldId::kEccSingleAggregate},
    {Field::kEccDbeAggregate, FieldId::kEccDoubleAggregate},
    {Field::kRetiredSbe, FieldId::kRetiredSingle},
    {Field::kRetiredDbe, FieldId::kRetiredDouble},
    {Field::kRetiredPending, FieldId::kRetiredPending},
    {Field::kRemappedUncorrectable, FieldId::kRemappedUncorrectable},
    {Field::kRemappedCorrectable, FieldId::kRemappedCorrectable},
    {Field::kRemapFailure, FieldId::kRemappedFailure},
    {Field::kRemapPending, FieldId::kRemappedPending},
    {Field::kNvLinkCrcFlit, FieldId::kNvLinkCrcFlit},
    {Field::kNvLinkCrcData, FieldId::kNvLinkCrcData},
    {Field::kNvLinkReplay, FieldId::kNvLinkReplay},
    {Field::kNvLinkRecovery, FieldId::kNvLinkRecovery},
    {Field::kNvLinkEccErrors, FieldId::kNvLinkEcc},
};

// Fields from GPM: its value times `scale`.
struct ByGpm {
  Field field;
  GpmMetric metric;
  double scale;
};
constexpr ByGpm kByGpm[] = {
    {Field::kGraphicsActive, GpmMetric::kGraphics, 1 / kPercent},
    {Field::kSmActive, GpmMetric::kSm, 1 / kPercent},
    {Field::kSmOccupancy, GpmMetric::kSmOccupancy, 1 / kPercent},
    {Field::kTensorActive, GpmMetric::kAnyTensor, 1 / kPercent},
    {Field::kDramActive, GpmMetric::kDram, 1 / kPercent},
    {Field::kFp64Active, GpmMetric::kFp64, 1 / kPercent},
    {Field::kFp32Active, GpmMetric::kFp32, 1 / kPercent},
    {Field::kFp16Active, GpmMetric::kFp16, 1 / kPercent},
    {Field::kPcieTxBytes, GpmMetric::kPcieTransmitted, kMiB},
    {Field::kPcieRxBytes, GpmMetric::kPcieReceived, kMiB},
    {Field::kNvLinkTxBytes, GpmMetric::kNvLinkTransmitted, kMiB},
    {Field::kNvLinkRxBytes, GpmMetric::kNvLinkReceived, kMiB},
    {Field::kTensorImmaActive, GpmMetric::kImmaTensor, 1 / kPercent},
    {Field::kTensorHmmaActive, GpmMetric::kHmmaTensor, 1 / kPercent},
    {Field::kTensorDfmaActive, GpmMetric::kDfmaTensor, 1 / kPercent},
    {Field::kIntegerActive, GpmMetric::kInteger, 1 / kPercent},
};

// dcgm-exporter's names for nvmlGpuP2PStatus_t.
const char* peer_status_text(nvml::PeerToPeer status) {
  switch (status) {
    case nvml::PeerToPeer::kOk:
      return "OK";
    case nvml::PeerToPeer::kChipsetNotSupported:
      return "ChipsetNotSupported";
    case nvml::PeerToPeer::kGpuNotSupported:
      return "GPUNotSupported";
    case nvml::PeerToPeer::kTopologyNotSupported:
      return "TopologyNotSupported";
    case nvml::PeerToPeer::kDisabledByRegkey:
      return "DisabledByRegKey";
    case nvml::PeerToPeer::kNotSupported:
      return "NotSupported";
    case nvml::PeerToPeer::kUnknown:
      break;
  }
  return "Unknown";
}

void fill_link_rates(const std::map<GpmMetric, double>& found, std::vector<LinkSample>& links) {
  for (auto& link : links) {
    const auto [received, transmitted] = nvml::link_metrics(link.index);
    if (const auto rate = found.find(received); rate != found.end())
      link.values[Field::kLinkRxBytes] = rate->second * kMiB;
    if (const auto rate = found.find(transmitted); rate != found.end())
      link.values[Field::kLinkTxBytes] = rate->second * kMiB;
  }
}

double watts(MilliWatts power) { return power.value / kMilli; }

std::vector<ProcessSample> to_samples(const std::vector<nvml::ProcessMemory>& processes,
                                      const std::map<unsigned, double>& times) {
  std::vector<ProcessSample> samples;
  for (const auto& one : processes) {
    const auto time = times.find(one.process.pid);
    samples.push_back({one.process.pid, one.memory, time == times.end() ? 0 : time->second});
  }
  return samples;
}

}  // namespace

struct GpuReader::Round {
  const nvml::Session& session;
  const inventory::Snapshot& snapshot;
  const inventory::Gpu& gpu;
  std::chrono::nanoseconds now;
  nvml::Device device{};
  GpuSample sample{};

  // Passes a successful result to `use`. Every later call on a lost GPU would fail alike.
  template <class T, class Use>
  void store_result(const Result<T>& reading, Use use) {
    if (sample.error) return;
    if (reading) {
      use(*reading);
    } else if (nvml::is_device_fault(reading.error())) {
      sample.error = reading.error();
    }
  }
  void set_field(Field field, Value value) { sample.values[field] = std::move(value); }
  // `ask` is called only for wanted fields and while the GPU responds.
  template <class Ask>
  void read_number(const GpuReader& reader, Field field, Ask ask) {
    if (sample.error || !reader.is_wanted(field)) return;
    store_result(ask(), [&](const auto& value) { set_field(field, static_cast<std::uint64_t>(value)); });
  }
};

GpuSample GpuReader::sample_gpu(const nvml::Session& session, const inventory::Snapshot& snapshot,
                                std::size_t index, std::chrono::nanoseconds now) {
  const auto& gpu = snapshot.gpus[index];
  Round round{session, snapshot, gpu, now};
  auto& sample = round.sample;
  sample.index = gpu.index;
  sample.uuid = gpu.uuid;
  sample.pci_bus_id = gpu.pci.nvml_text();
  sample.model = gpu.model;
  sample.mig = gpu.mig_enabled;
  const auto identified = [&]() -> Status {
    GPULET_TRY_ASSIGN(round.device, session.device(gpu.index));
    GPULET_TRY_ASSIGN(const DeviceUuid uuid, session.device_uuid(round.device));
    if (uuid != gpu.uuid) return fail(Code::kDeviceLost, "another GPU is in its place: " + uuid.str());
    return {};
  }();
  if (!identified) {
    sample.error = identified.error();
    return std::move(sample);
  }
  if (generation_ != session.generation() || uuid_ != gpu.uuid) {
    *this = GpuReader(std::move(wanted_));
    generation_ = session.generation();
    uuid_ = gpu.uuid;
  }
  for (const auto part :
       {&GpuReader::read_texts, &GpuReader::read_numbers, &GpuReader::read_power, &GpuReader::read_limits,
        &GpuReader::read_bus, &GpuReader::read_fields, &GpuReader::read_nvlinks, &GpuReader::read_peers,
        &GpuReader::read_processes, &GpuReader::read_instances}) {
    if (!sample.error) (this->*part)(round);
  }
  if (!sample.error) {
    read_memory(round, round.device, sample.values);
    read_gpm(round, std::nullopt, sample.values);
  }
  if (sample.error) {
    sample.values.clear();
    sample.links.clear();
    sample.processes.clear();
    sample.instances.clear();
  }
  return std::move(sample);
}

void GpuReader::read_texts(Round& round) {
  const auto& gpu = round.gpu;
  const auto& session = round.session;
  if (texts_.empty()) {
    const Usage usage(session, round.device);
    const auto ask = [&](Field field, auto call) {
      if (!is_wanted(field)) return;
      round.store_result(call(), [&](const std::string& text) { texts_[field] = text; });
    };
    ask(Field::kNvmlVersion, [&] { return session.nvml_version(); });
    ask(Field::kVbios, [&] { return usage.vbios(); });
    ask(Field::kInforomOem, [&] { return usage.inforom(Usage::Inforom::kOem); });
    ask(Field::kInforomEcc, [&] { return usage.inforom(Usage::Inforom::kEcc); });
    ask(Field::kInforomPower, [&] { return usage.inforom(Usage::Inforom::kPower); });
    ask(Field::kInforomImage, [&] { return usage.inforom(Usage::Inforom::kImage); });
    texts_[Field::kDriverVersion] = session.driver_version();
    texts_[Field::kCudaVersion] = std::uint64_t{round.snapshot.driver.cuda_version};
    texts_[Field::kName] = gpu.model;
    texts_[Field::kBrand] = gpu.brand;
    texts_[Field::kNvmlIndex] = std::to_string(gpu.index);
    texts_[Field::kSerial] = gpu.serial;
    texts_[Field::kUuid] = gpu.uuid.str();
    texts_[Field::kMinorNumber] = std::to_string(gpu.minor);
    texts_[Field::kPciBusId] = gpu.pci.nvml_text();
  }
  for (const auto& [field, value] : texts_) {
    if (is_wanted(field)) round.set_field(field, value);
  }
  if (round.sample.error) texts_.clear();  // all are read again
  if (is_wanted(Field::kMigMode)) round.set_field(Field::kMigMode, std::uint64_t{gpu.mig_enabled ? 1u : 0u});
}

void GpuReader::read_numbers(Round& round) {
  const Usage usage(round.session, round.device);
  const auto number = [&](Field field, auto ask) { round.read_number(*this, field, ask); };
  number(Field::kSmClock, [&] { return usage.clock(Clock::kSm); });
  number(Field::kMemoryClock, [&] { return usage.clock(Clock::kMemory); });
  number(Field::kVideoClock, [&] { return usage.clock(Clock::kVideo); });
  number(Field::kAppSmClock, [&] { return usage.application_clock(Clock::kSm); });
  number(Field::kAppMemoryClock, [&] { return usage.application_clock(Clock::kMemory); });
  number(Field::kMaxSmClock, [&] { return usage.max_clock(Clock::kSm); });
  number(Field::kMaxMemoryClock, [&] { return usage.max_clock(Clock::kMemory); });
  number(Field::kMaxVideoClock, [&] { return usage.max_clock(Clock::kVideo); });
  number(Field::kGpuTemp, [&] { return usage.temperature(); });
  number(Field::kMaxMemoryTemp, [&] { return usage.temperature_limit(TemperatureLimit::kMemoryMax); });
  number(Field::kMaxGpuTemp, [&] { return usage.temperature_limit(TemperatureLimit::kGpuMax); });
  number(Field::kSlowdownTemp, [&] { return usage.temperature_limit(TemperatureLimit::kSlowdown); });
  number(Field::kShutdownTemp, [&] { return usage.temperature_limit(TemperatureLimit::kShutdown); });
  number(Field::kPerformanceState, [&] { return usage.performance_state(); });
  number(Field::kFan, [&] { return usage.fan(); });
  number(Field::kEncoderUtil, [&] { return usage.encoder(); });
  number(Field::kDecoderUtil, [&] { return usage.decoder(); });
  number(Field::kVgpuLicense, [&] { return usage.licensed(); });
  if (is_any_wanted(Field::kClockEvents, Field::kClockEventCount))
    round.store_result(usage.clock_events(),
                       [&](std::uint64_t bits) { round.set_field(Field::kClockEvents, bits); });
  round.store_result(usage.utilization(), [&](nvml::Utilization percent) {
    round.set_field(Field::kGpuUtil, std::uint64_t{percent.gpu});
    round.set_field(Field::kMemCopyUtil, std::uint64_t{percent.memory});
  });
  if (is_any_wanted(Field::kBar1Total, Field::kBar1Used, Field::kBar1Free)) {
    round.store_result(usage.bar1(), [&](const nvml::MemoryUse& bar) {
      round.set_field(Field::kBar1Total, bar.total.mebibytes());
      round.set_field(Field::kBar1Used, bar.used.mebibytes());
      round.set_field(Field::kBar1Free, bar.free.mebibytes());
    });
  }
}

void GpuReader::read_power(Round& round) {
  const Usage usage(round.session, round.device);
  if (is_wanted(Field::kPower))
    round.store_result(usage.power(),
                       [&](MilliWatts power) { round.set_field(Field::kPower, watts(power)); });
  if (!is_wanted(Field::kPowerInstant)) return;
  round.store_result(usage.fields({FieldId::kPowerInstant}), [&](const auto& found) {
    for (const auto& [id, value] : found)
      round.set_field(Field::kPowerInstant, static_cast<double>(value) / kMilli);
  });
}

void GpuReader::read_limits(Round& round) {
  const Usage usage(round.session, round.device);
  const auto limit = [&](Field field, auto ask) {
    if (!round.sample.error && is_wanted(field))
      round.store_result(ask(), [&](MilliWatts power) { round.set_field(field, watts(power)); });
  };
  limit(Field::kPowerLimit, [&] { return usage.power_limit(); });
  limit(Field::kPowerLimitDefault, [&] { return usage.default_power_limit(); });
  limit(Field::kPowerLimitEnforced, [&] { return usage.enforced_power_limit(); });
  if (!is_any_wanted(Field::kPowerLimitLeast, Field::kPowerLimitMost)) return;
  round.store_result(usage.power_limits(), [&](const nvml::PowerLimits& limits) {
    round.set_field(Field::kPowerLimitLeast, watts(limits.minimum));
    round.set_field(Field::kPowerLimitMost, watts(limits.maximum));
  });
}

void GpuReader::read_bus(Round& round) {
  const Usage usage(round.session, round.device);
  round.read_number(*this, Field::kPcieGeneration, [&] { return usage.pcie_generation(); });
  round.read_number(*this, Field::kMaxPcieGeneration, [&] { return usage.max_pcie_generation(); });
  if (is_any_wanted(Field::kPcieReplays, Field::kPcieWidth, Field::kMaxPcieWidth)) {
    round.store_result(nvml::Health(round.session, round.device).pcie(), [&](const nvml::PcieHealth& pcie) {
      if (pcie.replays) round.set_field(Field::kPcieReplays, *pcie.replays);
      if (pcie.width) round.set_field(Field::kPcieWidth, std::uint64_t{*pcie.width});
      if (pcie.full_width) round.set_field(Field::kMaxPcieWidth, std::uint64_t{*pcie.full_width});
    });
  }
  if (!is_any_wanted(Field::kPcieTx, Field::kPcieRx) || round.sample.error) return;
  round.store_result(usage.pcie_throughput(), [&](const nvml::PcieThroughput& throughput) {
    round.set_field(Field::kPcieTx, throughput.transmitted);
    round.set_field(Field::kPcieRx, throughput.received);
  });
}

void GpuReader::read_fields(Round& round) {
  std::set<FieldId> ids;
  for (const auto& one : kByField) {
    if (is_wanted(one.field)) ids.insert(one.id);
  }
  ids.insert(FieldId::kEnergy);
  if (is_wanted(Field::kNvLinkBandwidth)) ids.insert({FieldId::kNvLinkTransmitted, FieldId::kNvLinkReceived});
  round.store_result(Usage(round.session, round.device).fields(ids), [&](const auto& found) {
    for (const auto& one : kByField) {
      const auto value = found.find(one.id);
      if (value != found.end()) round.set_field(one.field, value->second);
    }
    const auto out = found.find(FieldId::kNvLinkTransmitted), in = found.find(FieldId::kNvLinkReceived);
    if (out == found.end() || in == found.end()) return;
    const Traffic traffic{out->second + in->second, round.now};
    const auto before = std::exchange(nvlink_, traffic);
    if (!before || traffic.when <= before->when || traffic.kib < before->kib) return;
    round.set_field(Field::kNvLinkBandwidth,
                    dcgm_bandwidth(traffic.kib - before->kib, traffic.when - before->when));
  });
}

void GpuReader::read_nvlinks(Round& round) {
  round.store_result(links_.sample_links(round.session, round.device, round.snapshot, round.gpu, round.now),
                     [&](LinkReader::Reading reading) {
                       round.sample.links = std::move(reading.links);
                       for (auto& [field, value] : reading.sums) round.set_field(field, std::move(value));
                     });
}

void GpuReader::read_peers(Round& round) {
  if (!is_wanted(Field::kPeerToPeer)) return;
  const Usage usage(round.session, round.device);
  for (const auto& other : round.snapshot.gpus) {
    if (other.index == round.gpu.index || other.unreadable || round.sample.error) continue;
    const auto device = round.session.device(other.index);
    if (!device) continue;
    // An error of the other GPU does not concern this one.
    const auto status = usage.peer_to_peer(*device);
    if (status) round.sample.peers[other.index] = peer_status_text(*status);
  }
}

void GpuReader::read_memory(Round& round, nvml::Device device, Values& values) {
  round.store_result(Usage(round.session, device).memory(), [&](const nvml::MemoryUse& memory) {
    values[Field::kFbTotal] = memory.total.mebibytes();
    values[Field::kFbFree] = memory.free.mebibytes();
    values[Field::kFbUsed] = memory.used.mebibytes();
    if (memory.reserved) values[Field::kFbReserved] = memory.reserved->mebibytes();
    const auto room =
        memory.total.value - std::min(memory.total.value, memory.reserved.value_or(Bytes{}).value);
    if (room > 0)
      values[Field::kFbUsedPercent] = static_cast<double>(memory.used.value) / static_cast<double>(room);
  });
}

void GpuReader::read_gpm(Round& round, std::optional<unsigned> gpu_instance, Values& values) {
  std::set<GpmMetric> metrics;
  for (const auto& one : kByGpm) {
    if (is_wanted(one.field)) metrics.insert(one.metric);
  }
  const bool link_rates = !gpu_instance && is_any_wanted(Field::kLinkTxBytes, Field::kLinkRxBytes);
  for (const auto& link : round.sample.links) {
    if (!link_rates) break;
    metrics.insert({nvml::link_metrics(link.index).received, nvml::link_metrics(link.index).transmitted});
  }
  // The only source of an instance's utilisation.
  if (gpu_instance) metrics.insert(GpmMetric::kGraphics);
  if (metrics.empty() || round.sample.error) return;
  const nvml::Gpm gpm(round.session, round.device);
  if (!has_gpm_) {
    round.store_result(gpm.is_supported(), [&](bool supported) { has_gpm_ = supported; });
    if (!has_gpm_ || round.sample.error) return;
  }
  if (!*has_gpm_) return;
  const auto before = gpm_.find(gpu_instance);
  if (before != gpm_.end() && round.now - before->second.when < nvml::kGpmMinInterval) return;
  round.store_result(gpm.take_sample(gpu_instance), [&](const nvml::GpmSample& taken) {
    if (before != gpm_.end()) {
      round.store_result(gpm.compute_metrics(before->second.sample, taken, metrics), [&](const auto& found) {
        for (const auto& one : kByGpm) {
          const auto value = found.find(one.metric);
          if (value != found.end()) values[one.field] = value->second * one.scale;
        }
        if (link_rates) fill_link_rates(found, round.sample.links);
      });
    }
    gpm_[gpu_instance] = {taken, round.now};
  });
}

void GpuReader::read_processes(Round& round) {
  if (round.gpu.mig_enabled) return;
  const Usage usage(round.session, round.device);
  std::map<unsigned, double> times;
  round.sample.has_process_times = false;
  round.store_result(usage.process_utilization(utilization_seen_us_), [&](const auto& samples) {
    round.sample.has_process_times = true;
    times = mean_utilization(samples, utilization_seen_us_);
    for (const auto& one : samples) utilization_seen_us_ = std::max(utilization_seen_us_, one.when_us);
  });
  round.store_result(usage.process_memory(),
                     [&](const auto& processes) { round.sample.processes = to_samples(processes, times); });
}

void GpuReader::read_instances(Round& round) {
  if (!round.gpu.mig_enabled) return;
  std::map<unsigned, InstanceSample> instances;
  for (const auto& mig : round.gpu.mig_devices) {
    const auto device = round.session.mig_device(round.device, mig.index);
    const auto uuid = device ? round.session.device_uuid(*device) : Result<DeviceUuid>(fail(device.error()));
    // Created or destroyed since the snapshot: the next snapshot has it.
    if (!uuid || *uuid != mig.uuid) continue;
    auto& instance = instances[mig.gpu_instance];
    if (instance.devices.empty()) {
      instance.id = mig.gpu_instance;
      instance.profile = instance_profile(mig.profile);
      read_memory(round, *device, instance.values);
      read_gpm(round, mig.gpu_instance, instance.values);
    }
    MigDeviceSample one{mig.uuid, mig.compute_instance, {}};
    round.store_result(Usage(round.session, *device).process_memory(),
                       [&](const auto& processes) { one.processes = to_samples(processes, {}); });
    instance.devices.push_back(std::move(one));
  }
  std::erase_if(gpm_, [&](const auto& taken) { return taken.first && !instances.contains(*taken.first); });
  for (auto& [id, instance] : instances) {
    std::sort(instance.devices.begin(), instance.devices.end(),
              [](const auto& a, const auto& b) { return a.compute_instance < b.compute_instance; });
    round.sample.instances.push_back(std::move(instance));
  }
}

}  // namespace gpulet::metrics

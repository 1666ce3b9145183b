#include "nvml/usage.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <span>
#include <tuple>

#include "nvml/library.h"
#include "nvml/session.h"

// Functions of old drivers that the newest still have.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

// Calls a function of the Session's library, which may not have it.
#define GPULET_NVML(function, ...) \
  invoke(session_.library_->api().function, #function __VA_OPT__(, ) __VA_ARGS__)

namespace gpulet::nvml {
namespace {

static_assert(static_cast<int>(FieldId::kEccDoubleAggregate) == NVML_FI_DEV_ECC_DBE_AGG_TOTAL);
static_assert(static_cast<int>(FieldId::kRetiredPending) == NVML_FI_DEV_RETIRED_PENDING);
static_assert(static_cast<int>(FieldId::kNvLinkCrcFlit) == NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL);
static_assert(static_cast<int>(FieldId::kNvLinkCrcData) == NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL);
static_assert(static_cast<int>(FieldId::kNvLinkReplay) == NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL);
static_assert(static_cast<int>(FieldId::kNvLinkRecovery) == NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL);
static_assert(static_cast<int>(FieldId::kViolationBaseClocks) == NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS);
static_assert(static_cast<int>(FieldId::kEnergy) == NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION);
static_assert(static_cast<int>(FieldId::kNvLinkReceived) == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX);
static_assert(static_cast<int>(FieldId::kRemappedFailure) == NVML_FI_DEV_REMAPPED_FAILURE);
static_assert(static_cast<int>(FieldId::kNvLinkEcc) == NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL);
static_assert(static_cast<int>(FieldId::kPowerInstant) == NVML_FI_DEV_POWER_INSTANT);
static_assert(kClocksDisplay == nvmlClocksEventReasonDisplayClockSetting);
static_assert(static_cast<int>(PeerToPeer::kUnknown) == NVML_P2P_STATUS_UNKNOWN);
static_assert(static_cast<int>(Clock::kVideo) == NVML_CLOCK_VIDEO);
static_assert(static_cast<int>(TemperatureLimit::kGpuMax) == NVML_TEMPERATURE_THRESHOLD_GPU_MAX);

constexpr unsigned kAllLinks = 0xFFFFFFFF;      // scope of per-link fields that means all links
constexpr unsigned kUsualProcessSamples = 128;  // driver 580 asks for 72 even if no process has run
constexpr unsigned kMaxProcessSamples = 16384;  // process utilisation samples; the driver keeps far fewer
constexpr unsigned kHottest = 200;              // Celsius; a higher value is not a temperature

bool of_all_links(FieldId id) { return id == FieldId::kNvLinkTransmitted || id == FieldId::kNvLinkReceived; }

Result<unsigned> as_temperature(unsigned celsius, const char* what) {
  if (celsius > kHottest)
    return fail(Code::kUnsupported, std::string(what) + ": " + std::to_string(celsius) + " C");
  return celsius;
}

// Far more processes than fit on a GPU. Beyond the limit it is enough to know that the GPU is in
// use.
constexpr unsigned kMaxProcesses = 4096;
constexpr unsigned kUsualProcesses = 64;
constexpr unsigned kNoInstance = 0xFFFFFFFF;

std::optional<unsigned> instance_of(unsigned id) {
  return id == kNoInstance ? std::nullopt : std::optional<unsigned>(id);
}

constexpr unsigned long long kMemoryUnknown = ~0ULL;  // NVML_VALUE_NOT_AVAILABLE

// A process may have contexts of several kinds. Each list then has it with its total memory.
using ProcessesFound = std::map<Process, std::optional<std::uint64_t>>;

// An entry as drivers 535.43 to 535.54.03 write it through nvmlDeviceGet*RunningProcesses_v3, whose struct is
// smaller. Source: docs/real-hardware.md.
struct LargeProcessInfo {
  nvmlProcessInfo_t info;
  unsigned long long protected_memory;
};

// Room for entries of either size. What the driver does not write keeps the fill byte, which tells the size.
class ProcessBuffer {
 public:
  explicit ProcessBuffer(std::size_t entries)
      : entries_(entries), bytes_(entries * sizeof(LargeProcessInfo)) {
    std::ranges::fill(bytes_, kFill);
  }
  nvmlProcessInfo_t* entries() { return reinterpret_cast<nvmlProcessInfo_t*>(bytes_.data()); }
  std::size_t size() const { return entries_; }
  std::vector<nvmlProcessInfo_t> read_entries(std::size_t count) const {
    count = std::min(count, entries_);
    const auto rest = std::span(bytes_).subspan(
        count * sizeof(nvmlProcessInfo_t), count * (sizeof(LargeProcessInfo) - sizeof(nvmlProcessInfo_t)));
    const bool large = std::ranges::any_of(rest, [](unsigned char byte) { return byte != kFill; });
    const std::size_t stride = large ? sizeof(LargeProcessInfo) : sizeof(nvmlProcessInfo_t);
    std::vector<nvmlProcessInfo_t> all(count);
    for (std::size_t i = 0; i < count; ++i)
      std::memcpy(&all[i], bytes_.data() + i * stride, sizeof(nvmlProcessInfo_t));
    return all;
  }

 private:
  static constexpr unsigned char kFill = 0xA5;
  std::size_t entries_;
  std::vector<unsigned char> bytes_;
};

// Adds the processes of one kind. A driver without the function has none of that kind.
template <class Function>
Status collect(const Api& api, Function function, const char* name, nvmlDevice_t device,
               ProcessesFound& all) {
  std::size_t entries = kUsualProcesses;
  while (true) {
    ProcessBuffer buffer(entries);
    auto count = static_cast<unsigned>(entries);
    if (function == nullptr) return {};
    const nvmlReturn_t result = call_counted(function, name, device, &count, buffer.entries());
    if (result == NVML_ERROR_INSUFFICIENT_SIZE && entries < kMaxProcesses) {
      // Between two calls the number may grow.
      entries = std::min(std::max<std::size_t>(count, entries) * 2, std::size_t{kMaxProcesses});
      continue;
    }
    GPULET_TRY(to_status(api, result, name));
    for (const auto& info : buffer.read_entries(count)) {
      auto& memory = all[{info.pid, instance_of(info.gpuInstanceId), instance_of(info.computeInstanceId)}];
      if (info.usedGpuMemory != kMemoryUnknown)
        memory = std::max<std::uint64_t>(memory.value_or(0), info.usedGpuMemory);
    }
    return {};
  }
}

Result<ProcessesFound> processes_of(const Api& api, nvmlDevice_t device) {
  if (api.nvmlDeviceGetComputeRunningProcesses_v3 == nullptr) {
    return fail(Code::kUnsupported,
                "nvmlDeviceGetComputeRunningProcesses_v3: this driver has no such function");
  }
  ProcessesFound all;
  GPULET_TRY(collect(api, api.nvmlDeviceGetComputeRunningProcesses_v3,
                     "nvmlDeviceGetComputeRunningProcesses_v3", device, all));
  // A GPU without MPS or graphics has no such processes.
  const std::pair<decltype(api.nvmlDeviceGetComputeRunningProcesses_v3), const char*> others[] = {
      {api.nvmlDeviceGetMPSComputeRunningProcesses_v3, "nvmlDeviceGetMPSComputeRunningProcesses_v3"},
      {api.nvmlDeviceGetGraphicsRunningProcesses_v3, "nvmlDeviceGetGraphicsRunningProcesses_v3"}};
  for (const auto& [function, name] : others) {
    const auto listed = collect(api, function, name, device, all);
    if (!listed && listed.error().code() != Code::kUnsupported) return fail(listed.error());
  }
  return all;
}

}  // namespace

template <class Function, class... Arguments>
Status Usage::invoke(Function function, const char* name, Arguments... arguments) const {
  GPULET_TRY(session_.stale(device_));
  return call_nvml(session_.library_->api(), function, name, raw(device_), arguments...);
}

template <class Function>
Result<unsigned> Usage::query_unsigned(Function function, const char* name) const {
  unsigned value = 0;
  GPULET_TRY(invoke(function, name, &value));
  return value;
}
#define GPULET_NUMBER(function) query_unsigned(session_.library_->api().function, #function)

template <class Function>
Result<MilliWatts> Usage::query_milliwatts(Function function, const char* name) const {
  unsigned value = 0;
  GPULET_TRY(invoke(function, name, &value));
  return MilliWatts{value};
}
#define GPULET_MILLIWATTS(function) query_milliwatts(session_.library_->api().function, #function)

template <class Function>
Result<unsigned> Usage::query_engine(Function function, const char* name) const {
  unsigned percent = 0, period_us = 0;
  GPULET_TRY(invoke(function, name, &percent, &period_us));
  return percent;
}
#define GPULET_ENGINE(function) query_engine(session_.library_->api().function, #function)

Result<unsigned> Usage::clock(Clock clock) const {
  unsigned mhz = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetClockInfo, static_cast<nvmlClockType_t>(clock), &mhz));
  return mhz;
}
Result<unsigned> Usage::max_clock(Clock clock) const {
  unsigned mhz = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetMaxClockInfo, static_cast<nvmlClockType_t>(clock), &mhz));
  return mhz;
}
Result<unsigned> Usage::application_clock(Clock clock) const {
  unsigned mhz = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetApplicationsClock, static_cast<nvmlClockType_t>(clock), &mhz));
  return mhz;
}

Result<unsigned> Usage::memory_bus_width() const {
  unsigned bits = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetMemoryBusWidth, &bits));
  return bits;
}

Result<std::uint64_t> Usage::clock_events() const {
  unsigned long long bits = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetCurrentClocksEventReasons, &bits));
  return bits;
}

Result<unsigned> Usage::performance_state() const {
  nvmlPstates_t state = NVML_PSTATE_UNKNOWN;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetPerformanceState, &state));
  if (state == NVML_PSTATE_UNKNOWN) return fail(Code::kUnsupported, "nvmlDeviceGetPerformanceState: unknown");
  return static_cast<unsigned>(state);
}

Result<unsigned> Usage::temperature() const {
  unsigned celsius = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetTemperature, NVML_TEMPERATURE_GPU, &celsius));
  return as_temperature(celsius, "nvmlDeviceGetTemperature");
}
Result<unsigned> Usage::temperature_limit(TemperatureLimit limit) const {
  unsigned celsius = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetTemperatureThreshold, static_cast<nvmlTemperatureThresholds_t>(limit),
                         &celsius));
  return as_temperature(celsius, "nvmlDeviceGetTemperatureThreshold");
}
Result<unsigned> Usage::fan() const { return GPULET_NUMBER(nvmlDeviceGetFanSpeed); }

Result<MilliWatts> Usage::power() const { return GPULET_MILLIWATTS(nvmlDeviceGetPowerUsage); }
Result<MilliWatts> Usage::power_limit() const { return GPULET_MILLIWATTS(nvmlDeviceGetPowerManagementLimit); }
Result<MilliWatts> Usage::enforced_power_limit() const {
  return GPULET_MILLIWATTS(nvmlDeviceGetEnforcedPowerLimit);
}
Result<MilliWatts> Usage::default_power_limit() const {
  return GPULET_MILLIWATTS(nvmlDeviceGetPowerManagementDefaultLimit);
}
Result<PowerLimits> Usage::power_limits() const {
  unsigned least = 0, most = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetPowerManagementLimitConstraints, &least, &most));
  return PowerLimits{MilliWatts{least}, MilliWatts{most}};
}

Result<Utilization> Usage::utilization() const {
  nvmlUtilization_t percent{};
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetUtilizationRates, &percent));
  return Utilization{percent.gpu, percent.memory};
}
Result<unsigned> Usage::encoder() const { return GPULET_ENGINE(nvmlDeviceGetEncoderUtilization); }
Result<unsigned> Usage::decoder() const { return GPULET_ENGINE(nvmlDeviceGetDecoderUtilization); }

Result<MemoryUse> Usage::memory() const {
  nvmlMemory_v2_t second{};
  second.version = nvmlMemory_v2;
  const auto status = GPULET_NVML(nvmlDeviceGetMemoryInfo_v2, &second);
  if (status) return MemoryUse{{second.total}, {second.free}, {second.used}, Bytes{second.reserved}};
  if (status.error().code() != Code::kUnsupported) return fail(status.error());
  nvmlMemory_t first{};
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetMemoryInfo, &first));
  return MemoryUse{{first.total}, {first.free}, {first.used}, std::nullopt};
}
Result<MemoryUse> Usage::bar1() const {
  nvmlBAR1Memory_t bar{};
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetBAR1MemoryInfo, &bar));
  return MemoryUse{{bar.bar1Total}, {bar.bar1Free}, {bar.bar1Used}, std::nullopt};
}

Result<unsigned> Usage::pcie_generation() const { return GPULET_NUMBER(nvmlDeviceGetCurrPcieLinkGeneration); }
Result<unsigned> Usage::max_pcie_generation() const {
  return GPULET_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration);
}
Result<PcieThroughput> Usage::pcie_throughput() const {
  unsigned transmitted = 0, received = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetPcieThroughput, NVML_PCIE_UTIL_TX_BYTES, &transmitted));
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetPcieThroughput, NVML_PCIE_UTIL_RX_BYTES, &received));
  return PcieThroughput{transmitted, received};
}

Result<bool> Usage::licensed() const {
  nvmlGridLicensableFeatures_t features{};
  const auto status = GPULET_NVML(nvmlDeviceGetGridLicensableFeatures_v4, &features);
  if (!status && status.error().code() == Code::kUnsupported) return false;
  if (!status) return fail(status.error());
  const auto count =
      std::min<std::size_t>(features.licensableFeaturesCount, NVML_GRID_LICENSE_FEATURE_MAX_COUNT);
  return features.isGridLicenseSupported != 0 &&
         std::any_of(features.gridLicensableFeatures, features.gridLicensableFeatures + count,
                     [](const auto& feature) { return feature.featureState != 0; });
}

Result<PeerToPeer> Usage::peer_to_peer(Device other) const {
  GPULET_TRY(session_.stale(other));
  nvmlGpuP2PStatus_t status = NVML_P2P_STATUS_UNKNOWN;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetP2PStatus, raw(other), NVML_P2P_CAPS_INDEX_READ, &status));
  const bool known = status >= NVML_P2P_STATUS_OK && status < NVML_P2P_STATUS_UNKNOWN;
  return known ? static_cast<PeerToPeer>(status) : PeerToPeer::kUnknown;
}

Result<std::string> Usage::vbios() const {
  std::array<char, NVML_DEVICE_VBIOS_VERSION_BUFFER_SIZE> text{};
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetVbiosVersion, text.data(), static_cast<unsigned>(text.size())));
  return std::string(text.data());
}

Result<std::string> Usage::inforom(Inforom part) const {
  std::array<char, NVML_DEVICE_INFOROM_VERSION_BUFFER_SIZE> text{};
  const auto size = static_cast<unsigned>(text.size());
  if (part == Inforom::kImage) {
    GPULET_TRY(GPULET_NVML(nvmlDeviceGetInforomImageVersion, text.data(), size));
    return std::string(text.data());
  }
  const auto object = part == Inforom::kOem   ? NVML_INFOROM_OEM
                      : part == Inforom::kEcc ? NVML_INFOROM_ECC
                                              : NVML_INFOROM_POWER;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetInforomVersion, object, text.data(), size));
  return std::string(text.data());
}

Result<std::map<FieldId, std::uint64_t>> Usage::fields(const std::set<FieldId>& ids) const {
  std::map<FieldId, std::uint64_t> found;
  if (ids.empty()) return found;
  std::vector<nvmlFieldValue_t> values;
  for (const FieldId id : ids) {
    nvmlFieldValue_t value{};
    value.fieldId = static_cast<unsigned>(id);
    value.scopeId = of_all_links(id) ? kAllLinks : 0;
    values.push_back(value);
  }
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetFieldValues, static_cast<int>(values.size()), values.data()));
  for (const auto& value : values) {
    if (value.nvmlReturn != NVML_SUCCESS) continue;
    const auto number = field_number(value);
    if (value.fieldId == NVML_FI_DEV_MEMORY_TEMP && number > kHottest) continue;
    found[static_cast<FieldId>(value.fieldId)] = number;
  }
  return found;
}

Result<std::vector<ProcessUtilization>> Usage::process_utilization(std::uint64_t since_us) const {
  GPULET_TRY(session_.stale(device_));
  const Api& api = session_.library_->api();
  constexpr const char* kName = "nvmlDeviceGetProcessUtilization";
  if (api.nvmlDeviceGetProcessUtilization == nullptr)
    return fail(Code::kUnsupported, std::string(kName) + ": this driver has no such function");
  std::vector<nvmlProcessUtilizationSample_t> samples(kUsualProcessSamples);
  while (true) {
    auto count = static_cast<unsigned>(samples.size());
    const auto result = call_counted(api.nvmlDeviceGetProcessUtilization, kName, raw(device_), samples.data(),
                                     &count, static_cast<unsigned long long>(since_us));
    // No process has run since.
    if (result == NVML_ERROR_NOT_FOUND) return std::vector<ProcessUtilization>();
    if (result == NVML_ERROR_INSUFFICIENT_SIZE && samples.size() < kMaxProcessSamples) {
      samples.resize(
          std::min<std::size_t>(std::max<std::size_t>(count, samples.size()) * 2, kMaxProcessSamples));
      continue;
    }
    GPULET_TRY(to_status(api, result, kName));
    samples.resize(std::min<std::size_t>(count, samples.size()));
    break;
  }
  std::vector<ProcessUtilization> all;
  for (const auto& sample : samples) {
    // The driver pads its buffer with zeros and repeats older samples.
    if (sample.pid == 0 || sample.timeStamp <= since_us) continue;
    all.push_back(
        {sample.pid, sample.timeStamp, sample.smUtil, sample.memUtil, sample.encUtil, sample.decUtil});
  }
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::tie(a.pid, a.when_us) < std::tie(b.pid, b.when_us);
  });
  return all;
}

Result<std::vector<ProcessMemory>> Usage::process_memory() const {
  GPULET_TRY(session_.stale(device_));
  GPULET_TRY_ASSIGN(const auto found, processes_of(session_.library_->api(), raw(device_)));
  std::vector<ProcessMemory> all;
  for (const auto& [process, memory] : found) {
    all.push_back({process, memory ? std::optional<Bytes>(Bytes{*memory}) : std::nullopt});
  }
  return all;
}

}  // namespace gpulet::nvml

#undef GPULET_NVML
#undef GPULET_NUMBER
#undef GPULET_MILLIWATTS
#undef GPULET_ENGINE

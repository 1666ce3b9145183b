#include "nvml/health.h"

#include <span>

#include "nvml/library.h"
#include "nvml/nvlinks.h"

// Calls a function of the Session's library, which may not have it.
#define GPULET_NVML(function, ...) invoke(session_.library_->api().function, #function, __VA_ARGS__)

namespace gpulet::nvml {
namespace {

// This GPU or driver never has the value. With any other error the whole reading has no value now.
bool absent(const Error& error) { return error.code() == Code::kUnsupported; }

// Turns kUnsupported into nullopt; other errors stay errors.
template <class T>
Result<std::optional<T>> if_any(Status status, T value) {
  if (status) return std::optional<T>(std::move(value));
  if (absent(status.error())) return std::optional<T>();
  return fail(status.error());
}

bool has_fabric_flag(unsigned mask, unsigned shift, unsigned width, unsigned value) {
  return (mask >> shift & width) == value;
}

FabricRegistration registration_of(unsigned state, nvmlReturn_t status) {
  switch (state) {
    case NVML_GPU_FABRIC_STATE_NOT_STARTED:
      return FabricRegistration::kNotStarted;
    case NVML_GPU_FABRIC_STATE_IN_PROGRESS:
      return FabricRegistration::kInProgress;
    case NVML_GPU_FABRIC_STATE_COMPLETED:
      return status == NVML_SUCCESS ? FabricRegistration::kDone : FabricRegistration::kFailed;
    default:
      return FabricRegistration::kNone;
  }
}

std::optional<FabricSummary> summary_of(unsigned summary) {
  switch (summary) {
    case NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY:
      return FabricSummary::kHealthy;
    case NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY:
      return FabricSummary::kUnhealthy;
    case NVML_GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY:
      return FabricSummary::kLimited;
    default:
      return std::nullopt;
  }
}

#define GPULET_FABRIC(mask, what)                                                                           \
  has_fabric_flag(mask, NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_##what, NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_##what, \
                  NVML_GPU_FABRIC_HEALTH_MASK_##what##_TRUE)

FabricHealth to_fabric_health(const nvmlGpuFabricInfoV_t& info) {
  FabricHealth fabric{registration_of(info.state, info.status)};
  const unsigned mask = info.healthMask;
  fabric.degraded_bandwidth = GPULET_FABRIC(mask, DEGRADED_BW);
  fabric.route_recovery = GPULET_FABRIC(mask, ROUTE_RECOVERY);
  fabric.route_unhealthy = GPULET_FABRIC(mask, ROUTE_UNHEALTHY);
  fabric.access_timeout_recovery = GPULET_FABRIC(mask, ACCESS_TIMEOUT_RECOVERY);
  fabric.wrong_configuration = mask >> NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION &
                               NVML_GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION;
  return fabric;
}

// Error counters of one link. GPUs up to Hopper have the first three, Blackwell the others.
constexpr unsigned kLinkErrors[] = {NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
                                    NVML_FI_DEV_NVLINK_ERROR_DL_CRC, NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,
                                    NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS};
// The same counters from drivers without those fields.
constexpr nvmlNvLinkErrorCounter_t kLinkCounters[] = {
    NVML_NVLINK_ERROR_DL_REPLAY, NVML_NVLINK_ERROR_DL_RECOVERY, NVML_NVLINK_ERROR_DL_CRC_FLIT,
    NVML_NVLINK_ERROR_DL_CRC_DATA};

void add_count(std::optional<std::uint64_t>& sum, std::uint64_t count) { sum = sum.value_or(0) + count; }

}  // namespace

template <class Function, class... Arguments>
Status Health::invoke(Function function, const char* name, Arguments... arguments) const {
  GPULET_TRY(session_.stale(gpu_));
  return call_nvml(session_.library_->api(), function, name, raw(gpu_), arguments...);
}

Result<RowRemap> Health::row_remap() const {
  unsigned correctable = 0, uncorrectable = 0, pending = 0, failed = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetRemappedRows, &correctable, &uncorrectable, &pending, &failed));
  return RowRemap{correctable, uncorrectable, pending != 0, failed != 0};
}

// Number of pages retired for that cause.
Result<std::uint64_t> Health::count_retired_pages(unsigned cause) const {
  GPULET_TRY(session_.stale(gpu_));
  const Api& api = session_.library_->api();
  if (api.nvmlDeviceGetRetiredPages == nullptr)
    return fail(Code::kUnsupported, "nvmlDeviceGetRetiredPages: this driver has no such function");
  unsigned count = 0;
  const auto result = call_counted(api.nvmlDeviceGetRetiredPages, "nvmlDeviceGetRetiredPages", raw(gpu_),
                                   static_cast<nvmlPageRetirementCause_t>(cause), &count,
                                   static_cast<unsigned long long*>(nullptr));
  // Without a buffer for the addresses, any page gives "insufficient size".
  if (result != NVML_ERROR_INSUFFICIENT_SIZE) GPULET_TRY(to_status(api, result, "nvmlDeviceGetRetiredPages"));
  return count;
}

Result<RetiredPages> Health::retired_pages() const {
  RetiredPages pages;
  GPULET_TRY_ASSIGN(pages.single_bit,
                    count_retired_pages(NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS));
  GPULET_TRY_ASSIGN(pages.double_bit, count_retired_pages(NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR));
  nvmlEnableState_t pending = NVML_FEATURE_DISABLED;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetRetiredPagesPendingStatus, &pending));
  pages.pending = pending == NVML_FEATURE_ENABLED;
  return pages;
}

Result<UncorrectedEcc> Health::uncorrected_ecc() const {
  UncorrectedEcc ecc;
  std::optional<Error> missing;
  bool any = false;
  for (unsigned location = 0; location < kMemoryLocations; ++location) {
    unsigned long long count = 0;
    const auto status = GPULET_NVML(nvmlDeviceGetMemoryErrorCounter, NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                                    NVML_VOLATILE_ECC, static_cast<nvmlMemoryLocation_t>(location), &count);
    // A driver older than a location reports an invalid argument.
    if (!status && status.error().code() == Code::kInvalidArgument) continue;
    GPULET_TRY_ASSIGN(ecc.at[location], if_any<std::uint64_t>(status, count));
    any = any || status;
    if (!status && !missing) missing = status.error();
  }
  nvmlEccSramErrorStatus_t sram{};
  sram.version = nvmlEccSramErrorStatus_v1;
  const auto status = GPULET_NVML(nvmlDeviceGetSramEccErrorStatus, &sram);
  GPULET_TRY_ASSIGN(ecc.sram_threshold_exceeded, if_any<bool>(status, sram.bThresholdExceeded != 0));
  if (status && !ecc.at[static_cast<std::size_t>(MemoryLocation::kSram)]) {
    ecc.at[static_cast<std::size_t>(MemoryLocation::kSram)] = sram.volatileUncParity + sram.volatileUncSecDed;
  }
  if (any || status) return ecc;
  return missing ? fail(*missing) : fail(status.error());
}

// Sums the driver's counters. One call reads all fields of a link.
Status Health::count_link_errors(std::vector<NvLinkHealth>& links) const {
  for (auto& link : links) {
    nvmlFieldValue_t fields[std::size(kLinkErrors)] = {};
    for (std::size_t i = 0; i < std::size(kLinkErrors); ++i) {
      fields[i].fieldId = kLinkErrors[i];
      fields[i].scopeId = link.index;
    }
    const auto status = GPULET_NVML(nvmlDeviceGetFieldValues, static_cast<int>(std::size(fields)),
                                    static_cast<nvmlFieldValue_t*>(fields));
    if (!status && !absent(status.error())) return status;
    for (const auto& field : std::span(fields)) {
      if (status && field.nvmlReturn == NVML_SUCCESS) add_count(link.errors, field_number(field));
    }
    if (link.errors) continue;
    for (const auto counter : kLinkCounters) {
      unsigned long long count = 0;
      const auto old = GPULET_NVML(nvmlDeviceGetNvLinkErrorCounter, link.index, counter, &count);
      if (old) add_count(link.errors, count);
      // Drivers disagree about a link that is down.
      const bool none = old || absent(old.error()) || old.error().code() == Code::kInvalidArgument;
      if (!none && link.up) return old;
    }
  }
  return {};
}

Result<std::vector<NvLinkHealth>> Health::nvlinks() const {
  GPULET_TRY_ASSIGN(const auto states, NvLinks(session_, gpu_).read_states());
  std::vector<NvLinkHealth> links;
  for (const auto& state : states) links.push_back({state.index, state.up, std::nullopt});
  GPULET_TRY(count_link_errors(links));
  return links;
}

Result<PcieHealth> Health::pcie() const {
  PcieHealth pcie;
  unsigned replays = 0, width = 0, full_width = 0;
  const auto counted = GPULET_NVML(nvmlDeviceGetPcieReplayCounter, &replays);
  GPULET_TRY_ASSIGN(pcie.replays, if_any<std::uint64_t>(counted, replays));
  const auto current = GPULET_NVML(nvmlDeviceGetCurrPcieLinkWidth, &width);
  GPULET_TRY_ASSIGN(pcie.width, if_any<unsigned>(current, width));
  const auto most = GPULET_NVML(nvmlDeviceGetMaxPcieLinkWidth, &full_width);
  GPULET_TRY_ASSIGN(pcie.full_width, if_any<unsigned>(most, full_width));
  if (!counted && !current) return fail(counted.error());
  return pcie;
}

// In nanoseconds. CUDA 14 removes the function; drivers then have the field.
Result<std::uint64_t> Health::violation_time(unsigned policy, unsigned field_id) const {
  nvmlViolationTime_t time{};
  const auto status =
      GPULET_NVML(nvmlDeviceGetViolationStatus, static_cast<nvmlPerfPolicyType_t>(policy), &time);
  if (status) return time.violationTime;
  if (!absent(status.error())) return fail(status.error());
  nvmlFieldValue_t field{};
  field.fieldId = field_id;
  const auto as_field = GPULET_NVML(nvmlDeviceGetFieldValues, 1, &field);
  if (as_field && field.nvmlReturn == NVML_SUCCESS) return field_number(field);
  if (!as_field && !absent(as_field.error())) return fail(as_field.error());
  return fail(status.error());
}

Result<Violations> Health::violations() const {
  GPULET_TRY_ASSIGN(const auto thermal,
                    violation_time(NVML_PERF_POLICY_THERMAL, NVML_FI_DEV_PERF_POLICY_THERMAL));
  GPULET_TRY_ASSIGN(const auto power, violation_time(NVML_PERF_POLICY_POWER, NVML_FI_DEV_PERF_POLICY_POWER));
  return Violations{std::chrono::nanoseconds(thermal), std::chrono::nanoseconds(power)};
}

Result<FabricHealth> Health::fabric_health() const {
  nvmlGpuFabricInfoV_t info{};
  info.version = nvmlGpuFabricInfo_v3;
  const auto third = GPULET_NVML(nvmlDeviceGetGpuFabricInfoV, &info);
  if (third) {
    auto fabric = to_fabric_health(info);
    fabric.summary = summary_of(info.healthSummary);
    return fabric;
  }
  if (!absent(third.error())) return fail(third.error());
  info = {};
  info.version = nvmlGpuFabricInfo_v2;
  const auto second = GPULET_NVML(nvmlDeviceGetGpuFabricInfoV, &info);
  if (second) return to_fabric_health(info);
  if (!absent(second.error())) return fail(second.error());
  nvmlGpuFabricInfo_t first{};
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetGpuFabricInfo, &first));
  return FabricHealth{registration_of(first.state, first.status)};
}

Result<bool> Health::inforom_valid() const {
  GPULET_TRY(session_.stale(gpu_));
  const Api& api = session_.library_->api();
  if (api.nvmlDeviceValidateInforom == nullptr)
    return fail(Code::kUnsupported, "nvmlDeviceValidateInforom: this driver has no such function");
  const auto result = call_counted(api.nvmlDeviceValidateInforom, "nvmlDeviceValidateInforom", raw(gpu_));
  if (result == NVML_ERROR_CORRUPTED_INFOROM) return false;
  GPULET_TRY(to_status(api, result, "nvmlDeviceValidateInforom"));
  return true;
}

Result<std::uint64_t> Health::energy_consumption() const {
  unsigned long long millijoules = 0;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetTotalEnergyConsumption, &millijoules));
  return millijoules;
}

}  // namespace gpulet::nvml

#undef GPULET_NVML
#undef GPULET_FABRIC

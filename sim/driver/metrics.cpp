// Field values: many values of one GPU in one call, each with its own result code. Ranges of ids are computed
// as nvml.h numbers them: counters of links 0 to 5 with their total, later of links 6 to 11, ECC counters in
// pairs.
#include <algorithm>
#include <chrono>

#include "sim/driver/call.h"
#include "sim/state/counters.h"

using namespace gpulet::sim;

namespace {

// The result of one field.
struct FieldResult {
  nvmlReturn_t result = NVML_ERROR_NOT_SUPPORTED;
  nvmlValueType_t type = NVML_VALUE_TYPE_UNSIGNED_INT;
  std::uint64_t value = 0;
};

FieldResult unsigned_result(std::uint64_t value, nvmlValueType_t type = NVML_VALUE_TYPE_UNSIGNED_INT) {
  return {NVML_SUCCESS, type, value};
}
FieldResult counter_result(std::uint64_t value) {
  return unsigned_result(value, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG);
}
FieldResult reported_result(std::int32_t value) {
  return value == kNotReported ? FieldResult{} : unsigned_result(static_cast<std::uint64_t>(value));
}
FieldResult error_result(nvmlReturn_t result) { return {result, NVML_VALUE_TYPE_UNSIGNED_INT, 0}; }

using LinkCounter = std::uint64_t (*)(const NvLink&);

// Link counters: ids of links 0-5, the total and links 6-11.
struct LinkRange {
  unsigned int first;
  unsigned int total;
  unsigned int second;
  LinkCounter read;
};
constexpr LinkRange kLinkRanges[] = {
    {NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
     NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6, [](const NvLink& link) { return link.crc_flit_errors; }},
    {NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
     NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L6, [](const NvLink& link) { return link.crc_data_errors; }},
    {NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
     NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L6, [](const NvLink& link) { return link.replay_errors; }},
    {NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
     NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L6, [](const NvLink& link) { return link.recovery_errors; }},
    {NVML_FI_DEV_NVLINK_SPEED_MBPS_L0, 0, NVML_FI_DEV_NVLINK_SPEED_MBPS_L6,
     [](const NvLink& link) { return std::uint64_t{link.active != 0 ? link.speed_mbps : 0}; }},
    {NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL,
     NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L6, [](const NvLink& link) { return link.ecc_errors; }},
};
constexpr unsigned int kLinksInRange = 6;
constexpr unsigned int kAllLinks = 0xffffffff;

// NVLink 5 counts packets; the error counters before it are not supported any more, and the other way round.
constexpr unsigned int kNvLink5 = 7;
bool counts_packets(const Gpu& gpu) {
  return std::any_of(std::begin(gpu.links), std::end(gpu.links),
                     [](const NvLink& link) { return link.present != 0 && link.version >= kNvLink5; });
}

template <class Read>
FieldResult link_counter(const Gpu& gpu, unsigned int link, Read read) {
  const NvLink* found = nullptr;
  const nvmlReturn_t missing = find_link(gpu, link, &found);
  return missing != NVML_SUCCESS ? error_result(NVML_ERROR_NOT_SUPPORTED) : counter_result(read(*found));
}

template <class Read>
FieldResult sum_link_counters(const Gpu& gpu, Read read) {
  if (link_count(gpu) == 0) return {};
  std::uint64_t sum = 0;
  for (const NvLink& link : gpu.links) sum += link.present != 0 ? read(link) : 0;
  return counter_result(sum);
}

// Data over one link, or over all links without a scope.
bool traffic_field(const Gpu& gpu, unsigned int field, unsigned int scope, FieldResult* answer) {
  const bool transmitted = field == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX;
  if (!transmitted && field != NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX) return false;
  const auto read = [&gpu, transmitted, now = monotonic_ns()](const NvLink& link) {
    const LinkTraffic traffic = link_traffic(gpu, link, now);
    return transmitted ? traffic.transmitted_kib : traffic.received_kib;
  };
  *answer = scope == kAllLinks ? sum_link_counters(gpu, read) : link_counter(gpu, scope, read);
  return true;
}

// Reads a field of kLinkRanges. Returns false for other fields.
bool link_field(const Gpu& gpu, unsigned int field, FieldResult* answer) {
  for (const LinkRange& range : kLinkRanges) {
    const bool is_speed = range.first == NVML_FI_DEV_NVLINK_SPEED_MBPS_L0;
    if (field >= range.first && field < range.first + kLinksInRange) {
      *answer = link_counter(gpu, field - range.first, range.read);
    } else if (field >= range.second && field < range.second + kLinksInRange) {
      *answer = link_counter(gpu, field - range.second + kLinksInRange, range.read);
    } else if (range.total != 0 && field == range.total) {
      *answer = sum_link_counters(gpu, range.read);
    } else {
      continue;
    }
    if (!is_speed && counts_packets(gpu)) *answer = {};
    return true;
  }
  return false;
}

// Counters of NVLink 5. Packets have 256 bytes; every recovery succeeds.
bool packet_field(const Gpu& gpu, unsigned int field, unsigned int scope, FieldResult* answer) {
  constexpr std::uint64_t kKib = 1024, kPacketsOfKib = 4;
  const auto traffic = [&gpu](const NvLink& link) { return link_traffic(gpu, link, monotonic_ns()); };
  const auto count = [&](auto read) {
    const NvLink* found = nullptr;
    if (const auto missing = find_link(gpu, scope, &found)) {
      *answer = error_result(missing);
    } else {
      *answer = counts_packets(gpu) ? counter_result(read(*found)) : FieldResult{};
    }
    return true;
  };
  switch (field) {
    case NVML_FI_DEV_NVLINK_COUNT_XMIT_PACKETS:
      return count([&](const NvLink& link) { return traffic(link).transmitted_kib * kPacketsOfKib; });
    case NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES:
      return count([&](const NvLink& link) { return traffic(link).transmitted_kib * kKib; });
    case NVML_FI_DEV_NVLINK_COUNT_RCV_PACKETS:
      return count([&](const NvLink& link) { return traffic(link).received_kib * kPacketsOfKib; });
    case NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES:
      return count([&](const NvLink& link) { return traffic(link).received_kib * kKib; });
    case NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS:
    case NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS:
      return count([](const NvLink& link) { return link.crc_flit_errors + link.crc_data_errors; });
    case NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS:
    case NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS:
      return count([](const NvLink& link) { return link.recovery_errors; });
    case NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS:
    case NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS:
    case NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS:
    case NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS:
    case NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS:
    case NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS:
    case NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS:
    case NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS:
      return count([](const NvLink&) { return std::uint64_t{0}; });
    default:
      return false;
  }
}

// Fields whose scope is a link.
bool scoped_link_field(const Gpu& gpu, unsigned int field, unsigned int scope, FieldResult* answer) {
  LinkCounter read = nullptr;
  switch (field) {
    case NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID:
      read = [](const NvLink& l) { return std::uint64_t{l.remote_link}; };
      break;
    case NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY:
      read = [](const NvLink& l) { return l.replay_errors; };
      break;
    case NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY:
      read = [](const NvLink& l) { return l.recovery_errors; };
      break;
    case NVML_FI_DEV_NVLINK_ERROR_DL_CRC:
      read = [](const NvLink& l) { return l.crc_flit_errors + l.crc_data_errors; };
      break;
    case NVML_FI_DEV_NVLINK_GET_SPEED:
      read = [](const NvLink& l) { return std::uint64_t{l.active != 0 ? l.speed_mbps : 0}; };
      break;
    case NVML_FI_DEV_NVLINK_GET_STATE:
      read = [](const NvLink& l) { return std::uint64_t{l.active}; };
      break;
    case NVML_FI_DEV_NVLINK_GET_VERSION:
      read = [](const NvLink& l) { return std::uint64_t{l.version}; };
      break;
    case NVML_FI_DEV_NVLINK_GET_POWER_STATE:
      read = [](const NvLink&) { return std::uint64_t{0}; };
      break;
    default:
      return false;
  }
  const NvLink* found = nullptr;
  const nvmlReturn_t missing = find_link(gpu, scope, &found);
  *answer = missing != NVML_SUCCESS ? error_result(missing) : unsigned_result(read(*found));
  const bool is_error =
      field >= NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY && field <= NVML_FI_DEV_NVLINK_ERROR_DL_CRC;
  if (is_error && missing == NVML_SUCCESS && counts_packets(gpu)) *answer = {};
  return true;
}

bool ecc_field(const Gpu& gpu, unsigned int field, FieldResult* answer) {
  if (field < NVML_FI_DEV_ECC_CURRENT || field > NVML_FI_DEV_ECC_DBE_AGG_CBU) return false;
  *answer = {};
  if (gpu.ecc_supported == 0) return true;
  if (field == NVML_FI_DEV_ECC_CURRENT) *answer = unsigned_result(gpu.ecc_current);
  if (field == NVML_FI_DEV_ECC_PENDING) *answer = unsigned_result(gpu.ecc_pending);
  if (field <= NVML_FI_DEV_ECC_PENDING || gpu.ecc_current == 0) return true;
  if (field <= NVML_FI_DEV_ECC_DBE_AGG_TOTAL) {
    const unsigned int offset = field - NVML_FI_DEV_ECC_SBE_VOL_TOTAL;
    *answer = counter_result(ecc_total(gpu, offset % 2, offset / 2));
    return true;
  }
  if (field == NVML_FI_DEV_ECC_DBE_VOL_CBU || field == NVML_FI_DEV_ECC_DBE_AGG_CBU) {
    const unsigned int life = field == NVML_FI_DEV_ECC_DBE_AGG_CBU ? 1 : 0;
    *answer = counter_result(gpu.ecc[1][life].by_location[NVML_MEMORY_LOCATION_CBU]);
    return true;
  }
  // Pairs of single and double bit errors: L1, L2, memory, registers, texture; volatile, then aggregate.
  const bool aggregate = field >= NVML_FI_DEV_ECC_SBE_AGG_L1;
  const unsigned int offset = field - (aggregate ? NVML_FI_DEV_ECC_SBE_AGG_L1 : NVML_FI_DEV_ECC_SBE_VOL_L1);
  *answer = counter_result(gpu.ecc[offset % 2][aggregate ? 1 : 0].by_location[offset / 2]);
  return true;
}

FieldResult retired_or_remapped(const Gpu& gpu, unsigned int field) {
  const RemappedRows& rows = gpu.remapped_rows;
  const bool remaps = field >= NVML_FI_DEV_REMAPPED_COR && field <= NVML_FI_DEV_REMAPPED_FAILURE;
  if (remaps ? rows.supported == 0 : gpu.retired_pages_supported == 0) return {};
  switch (field) {
    case NVML_FI_DEV_RETIRED_SBE:
      return counter_result(retired_page_count(gpu, 0));
    case NVML_FI_DEV_RETIRED_DBE:
      return counter_result(retired_page_count(gpu, 1));
    case NVML_FI_DEV_RETIRED_PENDING:
    case NVML_FI_DEV_RETIRED_PENDING_DBE:
      return counter_result(gpu.retired_pages_pending != 0 ? 1 : 0);
    case NVML_FI_DEV_RETIRED_PENDING_SBE:
      return counter_result(0);
    case NVML_FI_DEV_REMAPPED_COR:
      return unsigned_result(rows.correctable);
    case NVML_FI_DEV_REMAPPED_UNC:
      return unsigned_result(rows.uncorrectable);
    case NVML_FI_DEV_REMAPPED_PENDING:
      return unsigned_result(rows.pending);
    case NVML_FI_DEV_REMAPPED_FAILURE:
      return unsigned_result(rows.failed);
    default:
      return {};
  }
}

std::uint32_t switch_links(const Gpu& gpu) {
  std::uint32_t count = 0;
  for (const NvLink& link : gpu.links)
    count += link.present != 0 && link.active != 0 && link.remote == kRemoteSwitch ? 1 : 0;
  return count;
}

FieldResult power_or_limit(const Gpu& gpu, unsigned int field) {
  switch (field) {
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
    case NVML_FI_DEV_ENERGY:
      return gpu.power_usage_mw == kNotReported ? FieldResult{}
                                                : counter_result(energy_millijoules(gpu, monotonic_ns()));
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT:
      return reported_result(gpu.power_usage_mw);
    case NVML_FI_DEV_POWER_MIN_LIMIT:
      return reported_result(gpu.power_limit_min_mw);
    case NVML_FI_DEV_POWER_MAX_LIMIT:
      return reported_result(gpu.power_limit_max_mw);
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT:
      return reported_result(gpu.power_limit_default_mw);
    case NVML_FI_DEV_POWER_CURRENT_LIMIT:
    case NVML_FI_DEV_POWER_REQUESTED_LIMIT:
      return reported_result(gpu.power_limit_mw);
    case NVML_FI_DEV_PERF_POLICY_POWER:
      return counter_result(gpu.violation_power_ns);
    case NVML_FI_DEV_PERF_POLICY_THERMAL:
      return counter_result(gpu.violation_thermal_ns);
    case NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN:
    case NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN:
      return counter_result(gpu.violation_thermal_ns);
    case NVML_FI_DEV_PERF_POLICY_SYNC_BOOST:
    case NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT:
    case NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION:
    case NVML_FI_DEV_PERF_POLICY_RELIABILITY:
    case NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS:
    case NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS:
    case NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN:
      return counter_result(0);
    default:
      return {};
  }
}

FieldResult read_field(const Gpu& gpu, unsigned int field, unsigned int scope) {
  FieldResult answer;
  if (ecc_field(gpu, field, &answer) || link_field(gpu, field, &answer) ||
      scoped_link_field(gpu, field, scope, &answer) || packet_field(gpu, field, scope, &answer) ||
      traffic_field(gpu, field, scope, &answer))
    return answer;
  switch (field) {
    case NVML_FI_DEV_MEMORY_TEMP:
      return reported_result(gpu.memory_temperature);
    case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: {
      for (const NvLink& link : gpu.links) {
        if (link.present != 0 && link.active != 0) return unsigned_result(link.speed_mbps);
      }
      return {};
    }
    case NVML_FI_DEV_NVLINK_LINK_COUNT:
      return unsigned_result(link_count(gpu));
    case NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT:
      return link_count(gpu) == 0 ? FieldResult{} : unsigned_result(switch_links(gpu));
    case NVML_FI_DEV_PCIE_REPLAY_COUNTER:
      return unsigned_result(gpu.pcie_replays);
    case NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER:
    case NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS:
    case NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR:
    case NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR:
      return unsigned_result(0);
    case NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED:
      return unsigned_result(gpu.mig.capable != 0 && gpu.mig.mode_needs_reset == 0 ? 1 : 0);
    case NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE:
      return unsigned_result(gpu.mig.capable);
    case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
      return unsigned_result(gpu.recovery_action);
    default:
      break;
  }
  answer = retired_or_remapped(gpu, field);
  return answer.result == NVML_SUCCESS ? answer : power_or_limit(gpu, field);
}

void store_result(const FieldResult& answer, nvmlFieldValue_t* field) {
  field->nvmlReturn = answer.result;
  field->latencyUsec = 0;
  field->valueType = answer.type;
  field->value.ullVal = answer.value;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  field->timestamp = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

}  // namespace

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t* values) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(values)) return error;
  if (count <= 0) return NVML_ERROR_INVALID_ARGUMENT;
  for (int i = 0; i < count; ++i) {
    nvmlFieldValue_t& field = values[i];
    const bool known = field.fieldId != 0 && field.fieldId < NVML_FI_MAX;
    store_result(known ? read_field(call.gpu_state(), field.fieldId, field.scopeId)
                       : error_result(NVML_ERROR_INVALID_ARGUMENT),
                 &field);
  }
  return NVML_SUCCESS;
}

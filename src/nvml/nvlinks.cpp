#include "nvml/nvlinks.h"

#include <optional>

#include "nvml/library.h"

// Functions and fields of old drivers that the newest still have.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace gpulet::nvml {
namespace {

// Where a counter is: a field with the link as its scope, and one field for each link up to 11.
struct CounterFields {
  LinkCounter counter;
  unsigned scoped = 0, first = 0, seventh = 0;  // 0: none
};
constexpr CounterFields kCounterFields[] = {
    {LinkCounter::kTransmitted, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX},
    {LinkCounter::kReceived, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX},
    {LinkCounter::kReplayErrors, NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0,
     NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L6},
    {LinkCounter::kRecoveryErrors, NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
     NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L6},
    {LinkCounter::kCrcErrors, NVML_FI_DEV_NVLINK_ERROR_DL_CRC},
    {LinkCounter::kCrcFlitErrors, 0, NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0,
     NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6},
    {LinkCounter::kCrcDataErrors, 0, NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L0,
     NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L6},
    {LinkCounter::kTransmittedPackets, NVML_FI_DEV_NVLINK_COUNT_XMIT_PACKETS},
    {LinkCounter::kTransmittedBytes, NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES},
    {LinkCounter::kReceivedPackets, NVML_FI_DEV_NVLINK_COUNT_RCV_PACKETS},
    {LinkCounter::kReceivedBytes, NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES},
    {LinkCounter::kMalformedPackets, NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS},
    {LinkCounter::kBufferOverruns, NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS},
    {LinkCounter::kReceiveErrors, NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS},
    {LinkCounter::kRemoteErrors, NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS},
    {LinkCounter::kGeneralErrors, NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS},
    {LinkCounter::kIntegrityErrors, NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS},
    {LinkCounter::kTransmitDiscards, NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS},
    {LinkCounter::kRecoveriesDone, NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS},
    {LinkCounter::kRecoveriesFailed, NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS},
    {LinkCounter::kRecoveries, NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS},
    {LinkCounter::kEffectiveErrors, NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS},
    {LinkCounter::kSymbolErrors, NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS},
};
constexpr unsigned kLinksOfRange = 6;

// The field of one link; 0 beyond the last that has one.
unsigned ranged_field(const CounterFields& fields, unsigned link) {
  if (fields.first == 0 || link >= 2 * kLinksOfRange) return 0;
  return link < kLinksOfRange ? fields.first + link : fields.seventh + link - kLinksOfRange;
}

// Counters that nvmlDeviceGetNvLinkErrorCounter has, also of links that have no field.
struct OldCounter {
  LinkCounter counter;
  nvmlNvLinkErrorCounter_t id;
};
constexpr OldCounter kOldCounters[] = {{LinkCounter::kCrcFlitErrors, NVML_NVLINK_ERROR_DL_CRC_FLIT},
                                       {LinkCounter::kCrcDataErrors, NVML_NVLINK_ERROR_DL_CRC_DATA}};

// What the answer at the same place of the request is about; no counter: the state.
struct AskedValue {
  unsigned link;
  std::optional<LinkCounter> counter;
};

}  // namespace

Result<std::vector<NvLinkState>> NvLinks::read_states() const {
  std::vector<NvLinkState> states;
  std::optional<Error> missing;
  for (unsigned index = 0; index < kMaxNvLinks; ++index) {
    const auto up = session_.nvlink_active(gpu_, index);
    if (up) {
      states.push_back({index, *up});
      continue;
    }
    const bool absent = up.error().code() == Code::kUnsupported;
    if (up.error().code() != Code::kInvalidArgument && !absent) return fail(up.error());
    if (!missing) missing = up.error();
    // If the driver or the GPU lacks the call, it lacks it for every link.
    if (absent && states.empty()) break;
  }
  if (states.empty())
    return fail(Code::kUnsupported, missing ? missing->message() : "this GPU has no NVLink");
  return states;
}

Result<std::map<unsigned, NvLinkValues>> NvLinks::read_values(const std::vector<unsigned>& links,
                                                              const std::set<LinkCounter>& counters) const {
  std::map<unsigned, NvLinkValues> found;
  if (links.empty()) return found;
  GPULET_TRY(session_.stale(gpu_));
  const Api& api = session_.library_->api();
  std::vector<nvmlFieldValue_t> request;
  std::vector<AskedValue> asked;
  const auto ask = [&](unsigned field, unsigned link, std::optional<LinkCounter> counter) {
    nvmlFieldValue_t value{};
    value.fieldId = field;
    value.scopeId = link;
    request.push_back(value);
    asked.push_back({link, counter});
  };
  for (const unsigned link : links) {
    ask(NVML_FI_DEV_NVLINK_GET_STATE, link, std::nullopt);
    for (const auto& fields : kCounterFields) {
      if (!counters.contains(fields.counter)) continue;
      if (fields.scoped != 0) ask(fields.scoped, link, fields.counter);
      if (const unsigned field = ranged_field(fields, link); field != 0) ask(field, link, fields.counter);
    }
  }
  const auto status = call_nvml(api, api.nvmlDeviceGetFieldValues, "nvmlDeviceGetFieldValues", raw(gpu_),
                                static_cast<int>(request.size()), request.data());
  if (!status && status.error().code() != Code::kUnsupported) return fail(status.error());
  std::map<unsigned, bool> states;
  std::map<unsigned, NvLinkValues> values;
  for (std::size_t i = 0; status && i < request.size(); ++i) {
    if (request[i].nvmlReturn != NVML_SUCCESS) continue;
    const auto number = field_number(request[i]);
    if (!asked[i].counter) {
      states[asked[i].link] = number == NVML_NVLINK_STATE_ACTIVE || number == NVML_NVLINK_STATE_SLEEP;
    } else {
      values[asked[i].link].counters.try_emplace(*asked[i].counter, number);
    }
  }
  for (const unsigned link : links) {
    auto& one = values[link];
    if (const auto state = states.find(link); state != states.end()) {
      one.up = state->second;
    } else {
      const auto active = session_.nvlink_active(gpu_, link);
      if (!active && is_device_fault(active.error())) return fail(active.error());
      if (!active) continue;
      one.up = *active;
    }
    read_old_counters(link, counters, one);
    found[link] = std::move(one);
  }
  return found;
}

void NvLinks::read_old_counters(unsigned link, const std::set<LinkCounter>& counters,
                                NvLinkValues& values) const {
  const Api& api = session_.library_->api();
  for (const auto& [counter, id] : kOldCounters) {
    if (!counters.contains(counter) || values.counters.contains(counter)) continue;
    unsigned long long count = 0;
    if (call_nvml(api, api.nvmlDeviceGetNvLinkErrorCounter, "nvmlDeviceGetNvLinkErrorCounter", raw(gpu_),
                  link, id, &count))
      values.counters[counter] = count;
  }
}

}  // namespace gpulet::nvml

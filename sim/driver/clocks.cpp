// Clocks and performance states.
#include <algorithm>

#include "sim/driver/call.h"

using namespace gpulet::sim;

namespace {

constexpr std::int32_t kLowestGraphicsMhz = 210;
constexpr std::int32_t kGraphicsStepMhz = 15;
// Idle, application clocks, power cap, hardware slowdown, sync boost, software and hardware thermal, power
// brake.
constexpr unsigned long long kSupportedReasons = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80;

template <class Read>
nvmlReturn_t clock_of(nvmlDevice_t device, nvmlClockType_t type, unsigned int* clock, Read read) {
  const GpuCall call(device);
  if (const auto refused = call.refused(clock)) return refused;
  if (type >= NVML_CLOCK_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  return put_reported(read(call.gpu().clocks)[type], clock);
}

nvmlReturn_t event_reasons(nvmlDevice_t device, unsigned long long* reasons) {
  return get(device, reasons, [](const Gpu& gpu) { return gpu.clock_event_reasons; });
}
nvmlReturn_t supported_reasons(nvmlDevice_t device, unsigned long long* reasons) {
  return get(device, reasons, [](const Gpu&) { return kSupportedReasons; });
}
nvmlReturn_t performance_state(nvmlDevice_t device, nvmlPstates_t* state) {
  return get(device, state, [](const Gpu& gpu) { return gpu.performance_state; });
}

// A list of `total` numbers into the caller's buffer of `*count`; `number(i)` gives each.
template <class Number>
nvmlReturn_t put_list(unsigned int total, unsigned int* count, unsigned int* values, Number number) {
  const unsigned int room = *count;
  *count = total;
  if (values == nullptr || room < total) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned int i = 0; i < total; ++i) values[i] = number(i);
  return NVML_SUCCESS;
}

}  // namespace

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int* clock) {
  return clock_of(device, type, clock, [](const Clocks& clocks) { return clocks.current; });
}
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int* clock) {
  return clock_of(device, type, clock, [](const Clocks& clocks) { return clocks.max; });
}
nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, nvmlClockType_t type,
                                                unsigned int* clock) {
  return clock_of(device, type, clock, [](const Clocks& clocks) { return clocks.max; });
}
nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int* clock) {
  return clock_of(device, type, clock, [](const Clocks& clocks) { return clocks.application; });
}
nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type,
                                                   unsigned int* clock) {
  return clock_of(device, type, clock, [](const Clocks& clocks) { return clocks.application_default; });
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id,
                                unsigned int* clock) {
  switch (id) {
    case NVML_CLOCK_ID_CURRENT:
      return nvmlDeviceGetClockInfo(device, type, clock);
    case NVML_CLOCK_ID_APP_CLOCK_TARGET:
      return clock_of(device, type, clock, [](const Clocks& clocks) { return clocks.application; });
    case NVML_CLOCK_ID_APP_CLOCK_DEFAULT:
      return clock_of(device, type, clock, [](const Clocks& clocks) { return clocks.application_default; });
    case NVML_CLOCK_ID_CUSTOMER_BOOST_MAX:
      return nvmlDeviceGetMaxCustomerBoostClock(device, type, clock);
    default:
      break;
  }
  const auto refused = GpuCall(device).refused();
  return refused != NVML_SUCCESS ? refused : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int* count,
                                                unsigned int* clocks) {
  const GpuCall call(device);
  if (const auto refused = call.refused(count)) return refused;
  const std::int32_t memory = call.gpu().clocks.max[NVML_CLOCK_MEM];
  if (memory == kNotReported) return NVML_ERROR_NOT_SUPPORTED;
  return put_list(1, count, clocks, [memory](unsigned int) { return static_cast<unsigned int>(memory); });
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory,
                                                  unsigned int* count, unsigned int* clocks) {
  const GpuCall call(device);
  if (const auto refused = call.refused(count)) return refused;
  const std::int32_t highest = call.gpu().clocks.max[NVML_CLOCK_GRAPHICS];
  if (highest == kNotReported) return NVML_ERROR_NOT_SUPPORTED;
  if (memory != static_cast<unsigned int>(call.gpu().clocks.max[NVML_CLOCK_MEM])) return NVML_ERROR_NOT_FOUND;
  const std::int32_t steps = std::max(0, highest - kLowestGraphicsMhz) / kGraphicsStepMhz + 1;
  return put_list(static_cast<unsigned int>(steps), count, clocks, [highest](unsigned int i) {
    return static_cast<unsigned int>(highest) - i * static_cast<unsigned int>(kGraphicsStepMhz);
  });
}

nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned int memory,
                                             unsigned int graphics) {
  const GpuEdit call(device);
  if (const auto refused = call.refused()) return refused;
  Clocks& clocks = call.gpu().clocks;
  if (clocks.application[NVML_CLOCK_MEM] == kNotReported) return NVML_ERROR_NOT_SUPPORTED;
  const auto wanted = static_cast<std::int32_t>(graphics);
  if (static_cast<std::int32_t>(memory) != clocks.max[NVML_CLOCK_MEM] ||
      wanted > clocks.max[NVML_CLOCK_GRAPHICS] || wanted < kLowestGraphicsMhz) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  clocks.application[NVML_CLOCK_GRAPHICS] = clocks.application[NVML_CLOCK_SM] = wanted;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device) {
  const GpuEdit call(device);
  if (const auto refused = call.refused()) return refused;
  Clocks& clocks = call.gpu().clocks;
  std::copy(std::begin(clocks.application_default), std::end(clocks.application_default), clocks.application);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long* reasons) {
  return event_reasons(device, reasons);
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long* reasons) {
  return event_reasons(device, reasons);
}
nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long* reasons) {
  return supported_reasons(device, reasons);
}
nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long* reasons) {
  return supported_reasons(device, reasons);
}
nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t* state) {
  return performance_state(device, state);
}
nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, nvmlPstates_t* state) {
  return performance_state(device, state);
}

nvmlReturn_t nvmlDeviceGetSupportedPerformanceStates(nvmlDevice_t device, nvmlPstates_t* states,
                                                     unsigned int size) {
  const GpuCall call(device);
  if (const auto refused = call.refused(states)) return refused;
  const auto room = static_cast<unsigned int>(size / sizeof(nvmlPstates_t));
  if (room == 0) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::fill(states, states + room, NVML_PSTATE_UNKNOWN);
  states[0] = NVML_PSTATE_0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t* info) {
  const GpuCall call(device);
  if (const auto refused = call.refused(info)) return refused;
  if (call.gpu().mig.current != 0) return NVML_ERROR_NOT_SUPPORTED;
  *info = {};
  const unsigned int percent[] = {call.gpu().utilization_gpu, call.gpu().utilization_memory,
                                  call.gpu().utilization_decoder};
  for (std::size_t i = 0; i < std::size(percent); ++i) {
    info->utilization[i].bIsPresent = 1;
    info->utilization[i].percentage = percent[i];
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy,
                                          nvmlViolationTime_t* time) {
  const GpuCall call(device);
  if (const auto refused = call.refused(time)) return refused;
  if (policy >= NVML_PERF_POLICY_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  const Gpu& gpu = call.gpu();
  time->referenceTime = monotonic_ns() / 1000;
  time->violationTime = 0;
  if (policy == NVML_PERF_POLICY_POWER) time->violationTime = gpu.violation_power_ns;
  if (policy == NVML_PERF_POLICY_THERMAL) time->violationTime = gpu.violation_thermal_ns;
  if (policy == NVML_PERF_POLICY_TOTAL_APP_CLOCKS)
    time->violationTime = gpu.violation_power_ns + gpu.violation_thermal_ns;
  return NVML_SUCCESS;
}

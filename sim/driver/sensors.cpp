// Clocks and performance states.
#include <algorithm>

#include "sim/driver/rights.h"
#include "sim/state/counters.h"

using namespace gpulet::sim;

namespace {

constexpr std::int32_t kLowestGraphicsMhz = 210;
constexpr std::int32_t kGraphicsStepMhz = 15;
// Idle, application clocks, power cap, hardware slowdown, sync boost, software and hardware thermal, power
// brake.
constexpr unsigned long long kSupportedReasons = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x80;

template <class Read>
nvmlReturn_t read_clock(nvmlDevice_t device, nvmlClockType_t type, unsigned int* clock, Read read) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(clock)) return error;
  if (type >= NVML_CLOCK_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  return put_reported(read(call.gpu_state().clocks)[type], clock);
}

nvmlReturn_t event_reasons(nvmlDevice_t device, unsigned long long* reasons) {
  return get(device, reasons, [](const Gpu& gpu) { return gpu.clock_event_reasons; });
}
nvmlReturn_t supported_reasons(nvmlDevice_t device, unsigned long long* reasons) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(reasons)) return error;
  *reasons = kSupportedReasons;
  if (driver_branch(call.machine()) >= kBranch615)
    *reasons |= nvmlClocksEventReasonBoardLimit | nvmlClocksEventReasonReliability;
  return NVML_SUCCESS;
}
nvmlReturn_t performance_state(nvmlDevice_t device, nvmlPstates_t* state) {
  return get(device, state, [](const Gpu& gpu) { return gpu.performance_state; });
}

// Copies `total` numbers, each from `number(i)`, into the caller's buffer of `*count`.
template <class Number>
nvmlReturn_t put_list(unsigned int total, unsigned int* count, unsigned int* values, Number number) {
  const unsigned int room = *count;
  *count = total;
  if (values == nullptr || room < total) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned int i = 0; i < total; ++i) values[i] = number(i);
  return NVML_SUCCESS;
}

// What locks a kind of clocks, and the first architecture that can.
struct ClockLock {
  nvmlClockType_t type;
  nvmlDeviceArchitecture_t first_architecture;
  std::int32_t (Clocks::*range)[2];
};
constexpr ClockLock kGraphicsLock{NVML_CLOCK_GRAPHICS, NVML_DEVICE_ARCH_VOLTA, &Clocks::locked_graphics};
constexpr ClockLock kMemoryLock{NVML_CLOCK_MEM, NVML_DEVICE_ARCH_AMPERE, &Clocks::locked_memory};

bool is_symbolic(unsigned int clock) { return clock >= NVML_CLOCK_LIMIT_ID_RANGE_START; }

// Numbers, or two of nvmlClockLimitId_t: the thermal design power's clock is the application clock here.
nvmlReturn_t lock_clocks(nvmlDevice_t device, const ClockLock& lock, unsigned int lowest,
                         unsigned int highest) {
  const GpuEdit call(device);
  if (const auto error = call.entry_error()) return error;
  Gpu& gpu = call.gpu_state();
  const std::int32_t most = gpu.clocks.max[lock.type];
  if (gpu.architecture < lock.first_architecture || most == kNotReported) return NVML_ERROR_NOT_SUPPORTED;
  if (is_symbolic(lowest) != is_symbolic(highest)) return NVML_ERROR_INVALID_ARGUMENT;
  const std::int32_t least = lock.type == NVML_CLOCK_MEM ? most : kLowestGraphicsMhz;
  std::int32_t range[2] = {static_cast<std::int32_t>(lowest), static_cast<std::int32_t>(highest)};
  if (is_symbolic(lowest)) {
    const std::int32_t design = gpu.clocks.application_default[lock.type];
    const bool is_unlocked =
        lowest == NVML_CLOCK_LIMIT_ID_UNLIMITED && highest == NVML_CLOCK_LIMIT_ID_UNLIMITED;
    range[0] = lowest == NVML_CLOCK_LIMIT_ID_UNLIMITED ? least : design;
    range[1] = highest == NVML_CLOCK_LIMIT_ID_UNLIMITED ? most : design;
    if (is_unlocked) range[0] = range[1] = 0;
  } else if (range[0] > range[1] || range[0] < least || range[1] > most) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  std::copy(std::begin(range), std::end(range), gpu.clocks.*lock.range);
  update_current_clocks(gpu);
  return NVML_SUCCESS;
}

}  // namespace

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int* clock) {
  return read_clock(device, type, clock, [](const Clocks& clocks) { return clocks.current; });
}
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int* clock) {
  return read_clock(device, type, clock, [](const Clocks& clocks) { return clocks.max; });
}
nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, nvmlClockType_t type,
                                                unsigned int* clock) {
  return read_clock(device, type, clock, [](const Clocks& clocks) { return clocks.max; });
}
nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int* clock) {
  if (type == NVML_CLOCK_VIDEO) {
    const auto error = GpuCall(device).entry_error(clock);
    return error != NVML_SUCCESS ? error : NVML_ERROR_NOT_SUPPORTED;
  }
  return read_clock(device, type, clock, [](const Clocks& clocks) { return clocks.application; });
}
nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type,
                                                   unsigned int* clock) {
  return read_clock(device, type, clock, [](const Clocks& clocks) { return clocks.application_default; });
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id,
                                unsigned int* clock) {
  switch (id) {
    case NVML_CLOCK_ID_CURRENT:
      return nvmlDeviceGetClockInfo(device, type, clock);
    case NVML_CLOCK_ID_APP_CLOCK_TARGET:
      return read_clock(device, type, clock, [](const Clocks& clocks) { return clocks.application; });
    case NVML_CLOCK_ID_APP_CLOCK_DEFAULT:
      return read_clock(device, type, clock, [](const Clocks& clocks) { return clocks.application_default; });
    case NVML_CLOCK_ID_CUSTOMER_BOOST_MAX:
      return nvmlDeviceGetMaxCustomerBoostClock(device, type, clock);
    default:
      break;
  }
  const auto error = GpuCall(device).entry_error();
  return error != NVML_SUCCESS ? error : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int* count,
                                                unsigned int* clocks) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(count)) return error;
  const std::int32_t memory = call.gpu_state().clocks.max[NVML_CLOCK_MEM];
  if (memory == kNotReported) return NVML_ERROR_NOT_SUPPORTED;
  return put_list(1, count, clocks, [memory](unsigned int) { return static_cast<unsigned int>(memory); });
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory,
                                                  unsigned int* count, unsigned int* clocks) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(count)) return error;
  const std::int32_t highest = call.gpu_state().clocks.max[NVML_CLOCK_GRAPHICS];
  if (highest == kNotReported) return NVML_ERROR_NOT_SUPPORTED;
  if (memory != static_cast<unsigned int>(call.gpu_state().clocks.max[NVML_CLOCK_MEM]))
    return NVML_ERROR_NOT_FOUND;
  const std::int32_t steps = std::max(0, highest - kLowestGraphicsMhz) / kGraphicsStepMhz + 1;
  return put_list(static_cast<unsigned int>(steps), count, clocks, [highest](unsigned int i) {
    return static_cast<unsigned int>(highest) - i * static_cast<unsigned int>(kGraphicsStepMhz);
  });
}

nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned int memory,
                                             unsigned int graphics) {
  const GpuEdit call(device);
  if (const auto error = call.entry_error()) return error;
  Clocks& clocks = call.gpu_state().clocks;
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
  if (const auto error = call.entry_error()) return error;
  Clocks& clocks = call.gpu_state().clocks;
  std::copy(std::begin(clocks.application_default), std::end(clocks.application_default), clocks.application);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int lowest, unsigned int highest) {
  return lock_clocks(device, kGraphicsLock, lowest, highest);
}
nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device) {
  return lock_clocks(device, kGraphicsLock, NVML_CLOCK_LIMIT_ID_UNLIMITED, NVML_CLOCK_LIMIT_ID_UNLIMITED);
}
nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned int lowest, unsigned int highest) {
  return lock_clocks(device, kMemoryLock, lowest, highest);
}
nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device) {
  return lock_clocks(device, kMemoryLock, NVML_CLOCK_LIMIT_ID_UNLIMITED, NVML_CLOCK_LIMIT_ID_UNLIMITED);
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
  if (const auto error = call.entry_error(states)) return error;
  const auto room = static_cast<unsigned int>(size / sizeof(nvmlPstates_t));
  if (room == 0) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::fill(states, states + room, NVML_PSTATE_UNKNOWN);
  states[0] = NVML_PSTATE_0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t* info) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(info)) return error;
  if (call.gpu_state().mig.current != 0) return NVML_ERROR_NOT_SUPPORTED;
  *info = {};
  const unsigned int percent[] = {call.gpu_state().utilization_gpu, call.gpu_state().utilization_memory,
                                  call.gpu_state().utilization_decoder};
  for (std::size_t i = 0; i < std::size(percent); ++i) {
    info->utilization[i].bIsPresent = 1;
    info->utilization[i].percentage = percent[i];
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy,
                                          nvmlViolationTime_t* time) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(time)) return error;
  if (policy >= NVML_PERF_POLICY_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  const Gpu& gpu = call.gpu_state();
  time->referenceTime = monotonic_ns() / 1000;
  time->violationTime = 0;
  if (policy == NVML_PERF_POLICY_POWER) time->violationTime = gpu.violation_power_ns;
  if (policy == NVML_PERF_POLICY_THERMAL) time->violationTime = gpu.violation_thermal_ns;
  if (policy == NVML_PERF_POLICY_TOTAL_APP_CLOCKS)
    time->violationTime = gpu.violation_power_ns + gpu.violation_thermal_ns;
  return NVML_SUCCESS;
}

// Power, temperature, fans.

namespace {

nvmlReturn_t power_limit(nvmlDevice_t device, unsigned int* limit) {
  return get_reported(device, limit, [](const Gpu& gpu) { return gpu.power_limit_mw; });
}

nvmlReturn_t set_power_limit(nvmlDevice_t device, unsigned int limit) {
  const GpuEdit call(device);
  if (const auto error = call.entry_error()) return error;
  Gpu& gpu = call.gpu_state();
  if (gpu.power_limit_max_mw == kNotReported) return NVML_ERROR_NOT_SUPPORTED;
  const auto wanted = static_cast<std::int64_t>(limit);
  if (wanted < gpu.power_limit_min_mw || wanted > gpu.power_limit_max_mw) return NVML_ERROR_INVALID_ARGUMENT;
  gpu.power_limit_mw = static_cast<std::int32_t>(limit);
  if (gpu.power_usage_mw != kNotReported && gpu.power_usage_mw > gpu.power_limit_mw)
    set_power_usage(gpu, gpu.power_limit_mw, monotonic_ns());
  return NVML_SUCCESS;
}

std::int32_t temperature_threshold(const Gpu& gpu, nvmlTemperatureThresholds_t type) {
  switch (type) {
    case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN:
      return gpu.temperature_shutdown;
    case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN:
      return gpu.temperature_slowdown;
    case NVML_TEMPERATURE_THRESHOLD_MEM_MAX:
      return gpu.temperature_memory_max;
    case NVML_TEMPERATURE_THRESHOLD_GPU_MAX:
      return gpu.temperature_gpu_max;
    default:
      return kNotReported;
  }
}

bool has_sensor(const Machine& machine, nvmlTemperatureSensors_t sensor) {
  if (sensor == NVML_TEMPERATURE_GPU_MAX) return driver_branch(machine) >= kBranch615;
  return sensor == NVML_TEMPERATURE_GPU;
}

nvmlReturn_t fan_speed(nvmlDevice_t device, unsigned int fan, unsigned int* speed) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(speed)) return error;
  if (call.gpu_state().fan_percent == kNotReported) return NVML_ERROR_NOT_SUPPORTED;
  if (fan >= static_cast<unsigned int>(call.gpu_state().fan_count)) return NVML_ERROR_INVALID_ARGUMENT;
  return put_reported(call.gpu_state().fan_percent, speed);
}

}  // namespace

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int* power) {
  return get_reported(device, power, [](const Gpu& gpu) { return gpu.power_usage_mw; });
}
nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int* limit) {
  return power_limit(device, limit);
}
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int* limit) {
  return power_limit(device, limit);
}
nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int* limit) {
  return get_reported(device, limit, [](const Gpu& gpu) { return gpu.power_limit_default_mw; });
}

nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return get(device, mode, [](const Gpu& gpu) {
    return gpu.power_limit_mw == kNotReported ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
  });
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int* min,
                                                          unsigned int* max) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(min, max)) return error;
  if (const auto missing = put_reported(call.gpu_state().power_limit_min_mw, min)) return missing;
  return put_reported(call.gpu_state().power_limit_max_mw, max);
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int limit) {
  return set_power_limit(device, limit);
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device, nvmlPowerValue_v2_t* value) {
  if (const auto error = GpuCall(device).entry_error(value)) return error;
  if (value->version != nvmlPowerValue_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (value->powerScope != NVML_POWER_SCOPE_GPU) return NVML_ERROR_NOT_SUPPORTED;
  return set_power_limit(device, value->powerValueMw);
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long* energy) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(energy)) return error;
  if (call.gpu_state().power_usage_mw == kNotReported) return NVML_ERROR_NOT_SUPPORTED;
  *energy = energy_millijoules(call.gpu_state(), monotonic_ns());
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                      unsigned int* temperature) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(temperature)) return error;
  if (!has_sensor(call.machine(), sensor)) return NVML_ERROR_INVALID_ARGUMENT;
  return put_reported(call.gpu_state().temperature, temperature);
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t* temperature) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(temperature)) return error;
  if (temperature->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (!has_sensor(call.machine(), temperature->sensorType)) return NVML_ERROR_INVALID_ARGUMENT;
  return put_reported(call.gpu_state().temperature, &temperature->temperature);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t type,
                                               unsigned int* temperature) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(temperature)) return error;
  if (type >= NVML_TEMPERATURE_THRESHOLD_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  return put_reported(temperature_threshold(call.gpu_state(), type), temperature);
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t* margin) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(margin)) return error;
  if (margin->version != nvmlMarginTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (call.gpu_state().temperature_slowdown == kNotReported) return NVML_ERROR_NOT_SUPPORTED;
  margin->marginTemperature = call.gpu_state().temperature_slowdown - call.gpu_state().temperature;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetThermalSettings(nvmlDevice_t device, unsigned int sensor,
                                          nvmlGpuThermalSettings_t* settings) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(settings)) return error;
  if (sensor != 0 && sensor != NVML_THERMAL_TARGET_ALL) return NVML_ERROR_INVALID_ARGUMENT;
  *settings = {};
  settings->count = 1;
  settings->sensor[0].controller = NVML_THERMAL_CONTROLLER_GPU_INTERNAL;
  settings->sensor[0].defaultMaxTemp = call.gpu_state().temperature_shutdown;
  settings->sensor[0].currentTemp = call.gpu_state().temperature;
  settings->sensor[0].target = NVML_THERMAL_TARGET_GPU;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned int* speed) {
  return fan_speed(device, 0, speed);
}
nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int* speed) {
  return fan_speed(device, fan, speed);
}
nvmlReturn_t nvmlDeviceGetTargetFanSpeed(nvmlDevice_t device, unsigned int fan, unsigned int* speed) {
  return fan_speed(device, fan, speed);
}
nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned int* count) {
  return get(device, count,
             [](const Gpu& gpu) { return gpu.fan_percent == kNotReported ? 0 : gpu.fan_count; });
}

// Power, temperature, fans.
#include "sim/driver/call.h"

using namespace gpulet::sim;

namespace {

nvmlReturn_t power_limit(nvmlDevice_t device, unsigned int* limit) {
  return get_reported(device, limit, [](const Gpu& gpu) { return gpu.power_limit_mw; });
}

nvmlReturn_t set_power_limit(nvmlDevice_t device, unsigned int limit) {
  const GpuEdit call(device);
  if (const auto refused = call.refused()) return refused;
  Gpu& gpu = call.gpu();
  if (gpu.power_limit_max_mw == kNotReported) return NVML_ERROR_NOT_SUPPORTED;
  const auto wanted = static_cast<std::int64_t>(limit);
  if (wanted < gpu.power_limit_min_mw || wanted > gpu.power_limit_max_mw) return NVML_ERROR_INVALID_ARGUMENT;
  gpu.power_limit_mw = static_cast<std::int32_t>(limit);
  return NVML_SUCCESS;
}

std::int32_t threshold_of(const Gpu& gpu, nvmlTemperatureThresholds_t type) {
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

nvmlReturn_t fan_speed(nvmlDevice_t device, unsigned int fan, unsigned int* speed) {
  const GpuCall call(device);
  if (const auto refused = call.refused(speed)) return refused;
  if (call.gpu().fan_percent == kNotReported) return NVML_ERROR_NOT_SUPPORTED;
  if (fan >= static_cast<unsigned int>(call.gpu().fan_count)) return NVML_ERROR_INVALID_ARGUMENT;
  return put_reported(call.gpu().fan_percent, speed);
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
  if (const auto refused = call.refused(min, max)) return refused;
  if (const auto missing = put_reported(call.gpu().power_limit_min_mw, min)) return missing;
  return put_reported(call.gpu().power_limit_max_mw, max);
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int limit) {
  return set_power_limit(device, limit);
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device, nvmlPowerValue_v2_t* value) {
  if (const auto refused = GpuCall(device).refused(value)) return refused;
  if (value->version != nvmlPowerValue_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (value->powerScope != NVML_POWER_SCOPE_GPU) return NVML_ERROR_NOT_SUPPORTED;
  return set_power_limit(device, value->powerValueMw);
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long* energy) {
  const GpuCall call(device);
  if (const auto refused = call.refused(energy)) return refused;
  if (call.gpu().power_usage_mw == kNotReported) return NVML_ERROR_NOT_SUPPORTED;
  *energy = energy_millijoules(call.gpu(), monotonic_ns());
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                      unsigned int* temperature) {
  const GpuCall call(device);
  if (const auto refused = call.refused(temperature)) return refused;
  if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  return put_reported(call.gpu().temperature, temperature);
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t* temperature) {
  const GpuCall call(device);
  if (const auto refused = call.refused(temperature)) return refused;
  if (temperature->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (temperature->sensorType != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  return put_reported(call.gpu().temperature, &temperature->temperature);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t type,
                                               unsigned int* temperature) {
  const GpuCall call(device);
  if (const auto refused = call.refused(temperature)) return refused;
  if (type >= NVML_TEMPERATURE_THRESHOLD_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  return put_reported(threshold_of(call.gpu(), type), temperature);
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t* margin) {
  const GpuCall call(device);
  if (const auto refused = call.refused(margin)) return refused;
  if (margin->version != nvmlMarginTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (call.gpu().temperature_slowdown == kNotReported) return NVML_ERROR_NOT_SUPPORTED;
  margin->marginTemperature = call.gpu().temperature_slowdown - call.gpu().temperature;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetThermalSettings(nvmlDevice_t device, unsigned int sensor,
                                          nvmlGpuThermalSettings_t* settings) {
  const GpuCall call(device);
  if (const auto refused = call.refused(settings)) return refused;
  if (sensor != 0 && sensor != NVML_THERMAL_TARGET_ALL) return NVML_ERROR_INVALID_ARGUMENT;
  *settings = {};
  settings->count = 1;
  settings->sensor[0].controller = NVML_THERMAL_CONTROLLER_GPU_INTERNAL;
  settings->sensor[0].defaultMaxTemp = call.gpu().temperature_shutdown;
  settings->sensor[0].currentTemp = call.gpu().temperature;
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

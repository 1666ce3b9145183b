// A driver library with health readings that the simulator cannot imitate. GPU 0 is of the newest
// kind: field values replace the older calls. GPU 1 has a driver that knows neither the new fields
// nor new struct versions.
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

#include <cstdio>

// GPU 1 has the fields of old drivers.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

int gpus[2];
bool is_new(nvmlDevice_t device) { return reinterpret_cast<int*>(device) == &gpus[0]; }

void write_answer(nvmlFieldValue_t* field, unsigned long long value) {
  field->nvmlReturn = NVML_SUCCESS;
  field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
  field->value.ullVal = value;
}

}  // namespace

nvmlReturn_t nvmlInit_v2() { return NVML_SUCCESS; }
nvmlReturn_t nvmlShutdown() { return NVML_SUCCESS; }
nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  std::snprintf(version, length, "999.1");
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  if (index > 1) return NVML_ERROR_INVALID_ARGUMENT;
  *device = reinterpret_cast<nvmlDevice_t>(&gpus[index]);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t* values) {
  for (int i = 0; i < count; ++i) {
    auto* field = values + i;
    field->nvmlReturn = is_new(device) ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    if (!is_new(device)) continue;
    if (field->fieldId == NVML_FI_DEV_PERF_POLICY_THERMAL) write_answer(field, 8'000'000'000);
    if (field->fieldId == NVML_FI_DEV_PERF_POLICY_POWER) write_answer(field, 9'000'000'000);
    if (field->fieldId == NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS) write_answer(field, 100 + field->scopeId);
    if (field->fieldId == NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS) write_answer(field, 1000);
  }
  return NVML_SUCCESS;
}

// Links 0 and 1; the second is down.
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t, unsigned int link, nvmlEnableState_t* active) {
  if (link > 1) return NVML_ERROR_INVALID_ARGUMENT;
  *active = link == 0 ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link,
                                             nvmlNvLinkErrorCounter_t counter, unsigned long long* value) {
  if (is_new(device)) return NVML_ERROR_NOT_SUPPORTED;
  if (link != 0) return NVML_ERROR_UNKNOWN;
  *value = 1ULL + counter;  // 1 + 2 + 3 + 4
  return counter <= NVML_NVLINK_ERROR_DL_CRC_DATA ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t, nvmlEccCounterType_t,
                                             nvmlMemoryLocation_t location, unsigned long long* count) {
  if (location == NVML_MEMORY_LOCATION_SRAM)
    return is_new(device) ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
  *count = location;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t* status) {
  if (!is_new(device)) return NVML_ERROR_NOT_SUPPORTED;
  status->volatileUncParity = 20;
  status->volatileUncSecDed = 3;
  status->bThresholdExceeded = 1;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t* info) {
  if (!is_new(device) || info->version != nvmlGpuFabricInfo_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  info->state = NVML_GPU_FABRIC_STATE_COMPLETED;
  info->status = NVML_SUCCESS;
  info->healthMask = NVML_GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t, nvmlGpuFabricInfo_t* info) {
  info->state = NVML_GPU_FABRIC_STATE_COMPLETED;
  info->status = NVML_ERROR_UNKNOWN;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t, nvmlPageRetirementCause_t cause, unsigned int* count,
                                       unsigned long long* addresses) {
  const unsigned int pages = cause == NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR ? 2 : 0;
  const bool fits = *count >= pages && addresses != nullptr;
  *count = pages;
  return fits || pages == 0 ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

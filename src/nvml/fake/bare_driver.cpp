// A driver library with almost no functions, which the simulator cannot imitate: one GPU, with a
// name, a UUID and an address only. Like every library, it cannot be called after its static objects are
// destroyed; a shutdown takes long enough to see that.
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

#include <poll.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kShutdownMilliseconds = 20;
std::atomic<bool> destroyed = false;
struct StaticObject {
  ~StaticObject() {
    destroyed = true;
    ::poll(nullptr, 0, 2 * kShutdownMilliseconds);
  }
} static_object;

}  // namespace

nvmlReturn_t nvmlInit_v2() { return NVML_SUCCESS; }
nvmlReturn_t nvmlShutdown() {
  ::poll(nullptr, 0, kShutdownMilliseconds);
  if (destroyed) std::abort();
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  std::snprintf(version, length, "418.81.07");
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 1;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int, nvmlDevice_t* device) {
  static int gpu = 0;
  *device = reinterpret_cast<nvmlDevice_t>(&gpu);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t, char* uuid, unsigned int length) {
  std::snprintf(uuid, length, "GPU-00000000-0000-4000-8000-000000000001");
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t, char* name, unsigned int length) {
  std::snprintf(name, length, "Tesla V100-SXM2-32GB");
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t, nvmlPciInfo_t* pci) {
  *pci = {};
  pci->bus = 6;
  return NVML_SUCCESS;
}
// The event wait of drivers before MIG, under its old name: the new one has a longer struct.
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t* set) {
  static int events = 0;
  *set = reinterpret_cast<nvmlEventSet_t>(&events);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t) { return NVML_SUCCESS; }
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t, nvmlEventData_t* data, unsigned int) {
  nvmlDeviceGetHandleByIndex_v2(0, &data->device);
  data->eventType = nvmlEventTypeXidCriticalError;
  data->eventData = 79;
  return NVML_SUCCESS;
}

// Initialisation, versions, errors, and the look-up of functions by name.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/text.h"
#include "sim/cuda/client.h"
#include "sim/driver/rights.h"

using namespace gpulet::sim;
using namespace gpulet::sim::cuda;

namespace {

struct ErrorText {
  CUresult code;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM",
     "OS call failed or operation not supported on this OS"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
     "cannot set while device is active in this process"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

CUresult put_error_text(CUresult code, const char* ErrorText::* text, const char** result) {
  if (result == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto* const found = std::ranges::find(kErrors, code, &ErrorText::code);
  const bool is_known = found != std::end(kErrors);
  *result = is_known ? found->*text : nullptr;
  return is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// The GPUs of the machine that have a node and can compute, in the order of their indexes. A GPU in MIG mode
// computes by its MIG devices alone, which this library does not have.
std::vector<std::uint32_t> usable_gpus(const Machine& machine, std::uint64_t hidden) {
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
    const Gpu& gpu = machine.gpus[i];
    if ((hidden >> i & 1) == 0 && gpu.faults.lost == 0 && gpu.mig.current == 0) found.push_back(i);
  }
  return found;
}

// An index into `usable`, or the only GPU whose UUID begins so.
std::optional<std::uint32_t> find_visible(const Machine& machine, const std::vector<std::uint32_t>& usable,
                                          std::string_view name) {
  if (const auto index = gpulet::text::parse_unsigned(name)) {
    if (*index >= usable.size()) return std::nullopt;
    return usable[*index];
  }
  if (!name.starts_with("GPU-")) return std::nullopt;
  std::optional<std::uint32_t> found;
  for (const std::uint32_t gpu : usable) {
    if (!std::string_view(machine.gpus[gpu].uuid).starts_with(name)) continue;
    if (found) return std::nullopt;
    found = gpu;
  }
  return found;
}

// CUDA_VISIBLE_DEVICES: what follows a name of no GPU is not visible, and nothing is if one is named twice.
// Source: CUDA C++ Programming Guide, "CUDA Environment Variables".
std::vector<std::uint32_t> visible_gpus(const Machine& machine, std::vector<std::uint32_t> usable) {
  const char* const names = std::getenv("CUDA_VISIBLE_DEVICES");
  if (names == nullptr) return usable;
  std::vector<std::uint32_t> found;
  for (const std::string& name : gpulet::text::split(names, ',')) {
    const auto gpu = find_visible(machine, usable, gpulet::text::trim(name));
    if (!gpu) break;
    if (std::ranges::find(found, *gpu) != found.end()) return {};
    found.push_back(*gpu);
  }
  return found;
}

// Of GPUs behind NVSwitches, until the fabric manager has registered them.
bool waits_for_fabric(const Gpu& gpu) {
  return gpu.fabric.state != 0 && gpu.fabric.state != kFabricCompleted;
}

CUresult find_devices(ClientProcess& own, const NodeAccess& access) {
  const ReadGuard machine = own.state.lock_for_read();
  if (machine->driver.loaded == 0) return CUDA_ERROR_NO_DEVICE;
  const auto visible = visible_gpus(*machine, usable_gpus(*machine, access.hidden_gpus));
  if (visible.empty()) return CUDA_ERROR_NO_DEVICE;
  own.devices.clear();
  for (const std::uint32_t gpu : visible) {
    if (waits_for_fabric(machine->gpus[gpu])) return CUDA_ERROR_SYSTEM_NOT_READY;
    own.devices.push_back(Device{gpu});
  }
  own.generation = machine->driver.generation;
  return CUDA_SUCCESS;
}

CUresult initialise_client(ClientProcess& own) {
  auto state = StateFile::open_state(machine_state_path());
  if (!state) return CUDA_ERROR_NO_DEVICE;
  own.state = std::move(*state);
  wait_out_hang_and_delay(own.state);
  const NodeAccess access = open_device_nodes(own.state);
  if (access.control != NVML_SUCCESS) return CUDA_ERROR_NO_DEVICE;
  if (!access.uvm) return CUDA_ERROR_UNKNOWN;
  if (const auto error = find_devices(own, access)) return error;
  const auto added = add_cuda_client(own.state);
  if (!added) return CUDA_ERROR_OPERATING_SYSTEM;
  own.cuda_client = *added;
  return CUDA_SUCCESS;
}

void* find_export(const std::string& name) {
  static void* const kSelf = [] {
    Dl_info info{};
    const bool is_known = dladdr(reinterpret_cast<const void*>(&find_export), &info) != 0;
    return is_known ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  }();
  return kSelf == nullptr ? nullptr : dlsym(kSelf, name.c_str());
}

// Versions whose first CUDA version is not that of most.
struct Version {
  std::string_view function;
  int since;
};
constexpr Version kVersions[] = {{"cuDeviceGetUuid_v2", 11040},
                                 {"cuGetProcAddress_v2", 12000},
                                 {"cuCtxCreate_v4", 12050},
                                 {"cuDevicePrimaryCtxRelease_v2", 11000},
                                 {"cuEventElapsedTime_v2", 12080},
                                 {"cuDevicePrimaryCtxReset_v2", 11000},
                                 {"cuDevicePrimaryCtxSetFlags_v2", 11000}};
constexpr int kFirstVersion = 2000;
constexpr int kFirstOfSecondVersions = 3020;

int since_version(const std::string& function) {
  const auto* const found = std::ranges::find(kVersions, function, &Version::function);
  if (found != std::end(kVersions)) return found->since;
  return function.ends_with("_v2") ? kFirstOfSecondVersions : kFirstVersion;
}

// CUdriverProcAddressQueryResult.
enum class Search { kFound = 0, kNotFound = 1, kVersionTooOld = 2 };

Search find_function(const std::string& name, int version, void** function) {
  Search result = Search::kNotFound;
  for (const char* const suffix : {"_v4", "_v2", ""}) {
    const std::string exported = name + suffix;
    void* const found = exported.starts_with("cu") ? find_export(exported) : nullptr;
    if (found == nullptr) continue;
    if (since_version(exported) <= version) {
      *function = found;
      return Search::kFound;
    }
    result = Search::kVersionTooOld;
  }
  return result;
}

constexpr std::uint64_t kProcAddressFlags = 3;  // legacy and per-thread default stream

}  // namespace

GPULET_CUDA_EXPORT cuInit(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  ClientProcess& own = client();
  if (own.pid.load() == getpid()) return CUDA_SUCCESS;
  const std::lock_guard lock(own.mutex);
  // A child of fork() has nothing of its parent's.
  if (own.pid.load() != 0) return own.pid.load() == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
  if (const auto error = initialise_client(own)) return error;
  own.pid.store(getpid());
  return CUDA_SUCCESS;
}

// Also before cuInit.
GPULET_CUDA_EXPORT cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto state = StateFile::open_state(machine_state_path());
  *version = state ? state->lock_for_read()->driver.cuda_version : 0;
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuGetErrorName(CUresult error, const char** name) {
  return put_error_text(error, &ErrorText::name, name);
}
GPULET_CUDA_EXPORT cuGetErrorString(CUresult error, const char** text) {
  return put_error_text(error, &ErrorText::text, text);
}

GPULET_CUDA_EXPORT cuGetProcAddress_v2(const char* symbol, void** function, int version, std::uint64_t flags,
                                       int* status) {
  if (symbol == nullptr || function == nullptr || flags > kProcAddressFlags) return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  const Search found = find_function(symbol, version, function);
  if (status != nullptr) *status = static_cast<int>(found);
  return CUDA_SUCCESS;
}
GPULET_CUDA_EXPORT cuGetProcAddress(const char* symbol, void** function, int version, std::uint64_t flags) {
  int status = 0;
  const CUresult result = cuGetProcAddress_v2(symbol, function, version, flags, &status);
  return result == CUDA_SUCCESS && status != 0 ? CUDA_ERROR_NOT_FOUND : result;
}

// The tables are private to NVIDIA's own libraries.
GPULET_CUDA_EXPORT cuGetExportTable(const void** table, const CUuuid* id) {
  if (table == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

GPULET_CUDA_EXPORT cuProfilerStart() { return Call().call_error(); }
GPULET_CUDA_EXPORT cuProfilerStop() { return Call().call_error(); }

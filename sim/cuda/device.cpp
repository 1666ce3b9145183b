// What a device is: its names, memory and attributes.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/text.h"
#include "sim/cuda/client.h"

using namespace gpulet::sim;
using namespace gpulet::sim::cuda;

namespace {

// CUdevice_attribute.
constexpr int kAttributes = 144;  // of CUDA 12.9
struct FixedAttribute {
  int attribute;
  int value;
};
// What all simulated GPUs have alike, with an H100's values. An attribute of no table is 0.
constexpr FixedAttribute kFixedAttributes[] = {
    {1, 1024},         // MAX_THREADS_PER_BLOCK
    {2, 1024},         // MAX_BLOCK_DIM_X
    {3, 1024},         // MAX_BLOCK_DIM_Y
    {4, 64},           // MAX_BLOCK_DIM_Z
    {5, 0x7fffffff},   // MAX_GRID_DIM_X
    {6, 65535},        // MAX_GRID_DIM_Y
    {7, 65535},        // MAX_GRID_DIM_Z
    {8, 49152},        // MAX_SHARED_MEMORY_PER_BLOCK
    {9, 65536},        // TOTAL_CONSTANT_MEMORY
    {10, 32},          // WARP_SIZE
    {11, 0x7fffffff},  // MAX_PITCH
    {12, 65536},       // MAX_REGISTERS_PER_BLOCK
    {14, 512},         // TEXTURE_ALIGNMENT
    {15, 1},           // GPU_OVERLAP
    {19, 1},           // CAN_MAP_HOST_MEMORY
    {30, 512},         // SURFACE_ALIGNMENT
    {31, 1},           // CONCURRENT_KERNELS
    {38, 50 << 20},    // L2_CACHE_SIZE
    {39, 2048},        // MAX_THREADS_PER_MULTIPROCESSOR
    {40, 3},           // ASYNC_ENGINE_COUNT
    {41, 1},           // UNIFIED_ADDRESSING
    {51, 32},          // TEXTURE_PITCH_ALIGNMENT
    {78, 1},           // STREAM_PRIORITIES_SUPPORTED
    {79, 1},           // GLOBAL_L1_CACHE_SUPPORTED
    {80, 1},           // LOCAL_L1_CACHE_SUPPORTED
    {81, 233472},      // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    {82, 65536},       // MAX_REGISTERS_PER_MULTIPROCESSOR
    {83, 1},           // MANAGED_MEMORY
    {87, 2},           // SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO
    {89, 1},           // CONCURRENT_MANAGED_ACCESS
    {90, 1},           // COMPUTE_PREEMPTION_SUPPORTED
    {95, 1},           // COOPERATIVE_LAUNCH
    {97, 232448},      // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    {99, 1},           // HOST_REGISTER_SUPPORTED
    {102, 1},          // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    {106, 32},         // MAX_BLOCKS_PER_MULTIPROCESSOR
    {111, 1024},       // RESERVED_SHARED_MEMORY_PER_BLOCK
    {115, 1},          // MEMORY_POOLS_SUPPORTED
};

constexpr int kKilohertz = 1000;  // in a megahertz

// Of the GPU itself.
int gpu_attribute(const Gpu& gpu, int attribute) {
  switch (attribute) {
    case 13:  // CLOCK_RATE
      return gpu.clocks.max[1] * kKilohertz;
    case 16:  // MULTIPROCESSOR_COUNT
      return static_cast<int>(gpu.multiprocessors);
    case 20:  // COMPUTE_MODE
      return static_cast<int>(gpu.compute_mode);
    case 32:  // ECC_ENABLED
      return static_cast<int>(gpu.ecc_current);
    case 33:  // PCI_BUS_ID
      return gpu.pci.bus;
    case 34:  // PCI_DEVICE_ID
      return gpu.pci.device;
    case 36:  // MEMORY_CLOCK_RATE
      return gpu.clocks.max[2] * kKilohertz;
    case 37:  // GLOBAL_MEMORY_BUS_WIDTH
      return static_cast<int>(gpu.memory_bus_bits);
    case 50:  // PCI_DOMAIN_ID
      return static_cast<int>(gpu.pci.domain);
    case 75:  // COMPUTE_CAPABILITY_MAJOR
      return gpu.compute_major;
    case 76:  // COMPUTE_CAPABILITY_MINOR
      return gpu.compute_minor;
    default:
      return 0;
  }
}

// Runs `read(gpu)` under the machine's lock.
template <class Read>
CUresult read_device(CUdevice number, const void* result, Read read) {
  const Call call;
  if (const auto error = call.call_error(result)) return error;
  const Device* const device = find_device(number);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const ReadGuard machine = client().state.lock_for_read();
  return read(machine->gpus[device->gpu]);
}

std::string bus_id(const PciAddress& address) {
  char text[24];
  std::snprintf(text, sizeof(text), "%04X:%02X:%02X.%X", address.domain, address.bus, address.device,
                address.function & 0xfU);
  return text;
}

CUresult put_string(const std::string& text, char* buffer, int length) {
  if (length <= 0) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t kept = std::min(text.size(), static_cast<std::size_t>(length) - 1);
  std::memcpy(buffer, text.data(), kept);
  buffer[kept] = '\0';
  return CUDA_SUCCESS;
}

CUresult put_uuid(const char* text, unsigned char* bytes) {
  std::string digits(text);
  digits.erase(0, digits.find('-'));
  std::erase(digits, '-');
  for (std::size_t i = 0; i < sizeof(CUuuid); ++i) {
    const std::string pair = i * 2 + 2 <= digits.size() ? digits.substr(i * 2, 2) : "0";
    bytes[i] = static_cast<unsigned char>(std::strtoul(pair.c_str(), nullptr, 16));
  }
  return CUDA_SUCCESS;
}

}  // namespace

GPULET_CUDA_EXPORT cuDeviceGetCount(int* count) {
  const Call call;
  if (const auto error = call.call_error(count)) return error;
  *count = static_cast<int>(client().devices.size());
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuDeviceGet(CUdevice* device, int ordinal) {
  return read_device(ordinal, device, [=](const Gpu&) {
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

GPULET_CUDA_EXPORT cuDeviceGetName(char* name, int length, CUdevice device) {
  return read_device(device, name, [=](const Gpu& gpu) { return put_string(gpu.name, name, length); });
}

GPULET_CUDA_EXPORT cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  return read_device(device, uuid, [=](const Gpu& gpu) { return put_uuid(gpu.uuid, *uuid); });
}
GPULET_CUDA_ALIAS(cuDeviceGetUuid_v2, cuDeviceGetUuid);

GPULET_CUDA_EXPORT cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  return read_device(device, text, [=](const Gpu& gpu) { return put_string(bus_id(gpu.pci), text, length); });
}

GPULET_CUDA_EXPORT cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  const Call call;
  if (const auto error = call.call_error(device, text)) return error;
  const ReadGuard machine = client().state.lock_for_read();
  const auto& devices = client().devices;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const std::string own = gpulet::text::lower(bus_id(machine->gpus[devices[i].gpu].pci));
    const std::string asked = gpulet::text::lower(text);
    if (asked != own && asked != "0000" + own) continue;
    *device = static_cast<CUdevice>(i);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

GPULET_CUDA_EXPORT cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice number) {
  const Call call;
  if (const auto error = call.call_error(bytes)) return error;
  const Device* const device = find_device(number);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = visible_memory(device->gpu).total;
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  return read_device(device, value, [=](const Gpu& gpu) {
    if (attribute < 1 || attribute >= kAttributes) return CUDA_ERROR_INVALID_VALUE;
    const auto* const fixed = std::ranges::find(kFixedAttributes, attribute, &FixedAttribute::attribute);
    *value = fixed != std::end(kFixedAttributes) ? fixed->value : gpu_attribute(gpu, attribute);
    return CUDA_SUCCESS;
  });
}

GPULET_CUDA_EXPORT cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  if (minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return read_device(device, major, [=](const Gpu& gpu) {
    *major = gpu.compute_major;
    *minor = gpu.compute_minor;
    return CUDA_SUCCESS;
  });
}

GPULET_CUDA_EXPORT cuDeviceCanAccessPeer(int* can_access, CUdevice device, CUdevice peer) {
  const Call call;
  if (const auto error = call.call_error(can_access)) return error;
  const Device *const own = find_device(device), *const other = find_device(peer);
  if (own == nullptr || other == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *can_access = own != other && peer_bytes_per_second(own->gpu, other->gpu) != 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

// All memory of a process is accessible to it: only the errors differ.
GPULET_CUDA_EXPORT cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  const ContextCall call;
  if (const auto error = call.call_error()) return error;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const Context* const other = client().contexts.find(peer);
  if (other == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const Device& own = call.device();
  const Device& there = client().devices[other->device];
  if (own.gpu == there.gpu) return CUDA_ERROR_INVALID_DEVICE;
  return peer_bytes_per_second(own.gpu, there.gpu) == 0 ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED : CUDA_SUCCESS;
}
GPULET_CUDA_EXPORT cuCtxDisablePeerAccess(CUcontext) { return ContextCall().call_error(); }

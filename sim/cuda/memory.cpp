// Allocations of memory: of the GPU, managed, and of the host.
#include <algorithm>
#include <utility>

#include "sim/cuda/client.h"

using namespace gpulet::sim;
using namespace gpulet::sim::cuda;

namespace {

constexpr std::size_t kPitchAlignment = 512;
constexpr unsigned int kHostFlags = 0x07;  // portable, device map, write combined
constexpr unsigned int kAttachGlobal = 1, kAttachHost = 2;

// Memory of the host with its addresses: charged to no GPU.
CUresult allocate_on_host(const ContextCall& call, std::uint64_t bytes, AllocationKind kind,
                          CUdeviceptr* address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  auto range = bytes > kMaxBytes ? std::nullopt : AddressRange::reserve(round_to_pages(bytes), true);
  if (!range) return CUDA_ERROR_OUT_OF_MEMORY;
  Allocation made{kind, bytes, call.handle(), call.context().device};
  made.block = std::make_shared<Block>(Block{std::move(*range), GpuMemory()});
  *address = made.block->range.start();
  client().allocations.emplace(*address, std::move(made));
  return CUDA_SUCCESS;
}

CUresult allocate_host(void** result, std::size_t bytes, unsigned int flags) {
  const ContextCall call;
  if (const auto error = call.call_error(result)) return error;
  if (flags > kHostFlags) return CUDA_ERROR_INVALID_VALUE;
  CUdeviceptr address = 0;
  if (const auto error = allocate_on_host(call, bytes, AllocationKind::kHost, &address)) return error;
  *result = reinterpret_cast<void*>(address);
  return CUDA_SUCCESS;
}

// The allocation of one of the `kinds` that starts at the address.
Allocation* find_start(CUdeviceptr address, std::initializer_list<AllocationKind> kinds) {
  const auto found = client().allocations.find(address);
  const bool is_one =
      found != client().allocations.end() && std::ranges::find(kinds, found->second.kind) != kinds.end();
  return is_one ? &found->second : nullptr;
}

CUdeviceptr to_address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

bool is_of_host(const Allocation& allocation) {
  return allocation.kind == AllocationKind::kHost || allocation.kind == AllocationKind::kRegistered;
}

// CUpointer_attribute.
CUresult put_pointer_attribute(void* result, int attribute, CUdeviceptr address, const Allocation& found) {
  constexpr unsigned int kHostMemory = 1, kDeviceMemory = 2;  // CUmemorytype
  switch (attribute) {
    case 1:  // CONTEXT
      *static_cast<CUcontext*>(result) = found.context;
      return CUDA_SUCCESS;
    case 2:  // MEMORY_TYPE
      *static_cast<unsigned int*>(result) = is_of_host(found) ? kHostMemory : kDeviceMemory;
      return CUDA_SUCCESS;
    case 3:  // DEVICE_POINTER
      *static_cast<CUdeviceptr*>(result) = address;
      return CUDA_SUCCESS;
    case 4:  // HOST_POINTER
      if (!is_of_host(found) && found.kind != AllocationKind::kManaged) return CUDA_ERROR_INVALID_VALUE;
      *static_cast<CUdeviceptr*>(result) = address;
      return CUDA_SUCCESS;
    case 8:  // IS_MANAGED
      *static_cast<unsigned int*>(result) = found.kind == AllocationKind::kManaged ? 1 : 0;
      return CUDA_SUCCESS;
    case 9:  // DEVICE_ORDINAL
      *static_cast<int*>(result) = static_cast<int>(found.device);
      return CUDA_SUCCESS;
    case 11:  // RANGE_START_ADDR
      *static_cast<CUdeviceptr*>(result) = allocation_start(address);
      return CUDA_SUCCESS;
    case 12:  // RANGE_SIZE
      *static_cast<std::size_t*>(result) = found.bytes;
      return CUDA_SUCCESS;
    default:
      return attribute >= 1 && attribute <= 20 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

GPULET_CUDA_EXPORT cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  const ContextCall call;
  if (const auto error = call.call_error(free, total)) return error;
  const VisibleMemory found = visible_memory(call.device().gpu);
  *free = found.free;
  *total = found.total;
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
  const ContextCall call;
  if (const auto error = call.call_error(address)) return error;
  return allocate(call.handle(), bytes, AllocationKind::kDevice, address);
}

GPULET_CUDA_EXPORT cuMemAllocPitch_v2(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                                      std::size_t height, unsigned int element) {
  const ContextCall call;
  if (const auto error = call.call_error(address, pitch)) return error;
  if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
  if (width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (width > kMaxBytes || height > kMaxBytes / width) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::size_t row = (width + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
  if (height > kMaxBytes / row) return CUDA_ERROR_OUT_OF_MEMORY;
  *pitch = row;
  return allocate(call.handle(), row * height, AllocationKind::kDevice, address);
}

GPULET_CUDA_EXPORT cuMemFree_v2(CUdeviceptr address) {
  const ContextCall call;
  if (const auto error = call.call_error()) return error;
  if (address == 0) return CUDA_SUCCESS;
  using enum AllocationKind;
  Allocation* const found = find_start(address, {kDevice, kManaged, kGraph, kPooled});
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return found->kind == kPooled ? free_to_pool(address) : (free_allocation(address), CUDA_SUCCESS);
}

GPULET_CUDA_EXPORT cuMemGetAddressRange_v2(CUdeviceptr* start, std::size_t* bytes, CUdeviceptr address) {
  const ContextCall call;
  if (const auto error = call.call_error()) return error;
  const Allocation* const found = find_allocation(address);
  if (found == nullptr || found->kind == AllocationKind::kHost) return CUDA_ERROR_NOT_FOUND;
  if (start != nullptr) *start = allocation_start(address);
  if (bytes != nullptr) *bytes = found->bytes;
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuMemAllocManaged(CUdeviceptr* address, std::size_t bytes, unsigned int flags) {
  const ContextCall call;
  if (const auto error = call.call_error(address)) return error;
  if (flags != kAttachGlobal && flags != kAttachHost) return CUDA_ERROR_INVALID_VALUE;
  return allocate_on_host(call, bytes, AllocationKind::kManaged, address);
}

GPULET_CUDA_EXPORT cuMemHostAlloc(void** address, std::size_t bytes, unsigned int flags) {
  return allocate_host(address, bytes, flags);
}
GPULET_CUDA_EXPORT cuMemAllocHost_v2(void** address, std::size_t bytes) {
  return allocate_host(address, bytes, 0);
}

GPULET_CUDA_EXPORT cuMemFreeHost(void* pointer) {
  const ContextCall call;
  if (const auto error = call.call_error()) return error;
  if (find_start(to_address(pointer), {AllocationKind::kHost}) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  free_allocation(to_address(pointer));
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuMemHostRegister_v2(void* pointer, std::size_t bytes, unsigned int) {
  const ContextCall call;
  if (const auto error = call.call_error(pointer)) return error;
  if (bytes == 0 || bytes > kMaxBytes || find_allocation(to_address(pointer)) != nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  client().allocations.insert_or_assign(
      to_address(pointer),
      Allocation{AllocationKind::kRegistered, bytes, call.handle(), call.context().device});
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuMemHostUnregister(void* pointer) {
  const ContextCall call;
  if (const auto error = call.call_error(pointer)) return error;
  if (find_start(to_address(pointer), {AllocationKind::kRegistered}) == nullptr)
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  free_allocation(to_address(pointer));
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* pointer, unsigned int flags) {
  const ContextCall call;
  if (const auto error = call.call_error(address, pointer)) return error;
  const Allocation* const found = find_allocation(to_address(pointer));
  if (flags != 0 || found == nullptr || !is_of_host(*found)) return CUDA_ERROR_INVALID_VALUE;
  *address = to_address(pointer);
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuMemHostGetFlags(unsigned int* flags, void* pointer) {
  const ContextCall call;
  if (const auto error = call.call_error(flags, pointer)) return error;
  const Allocation* const found = find_allocation(to_address(pointer));
  if (found == nullptr || !is_of_host(*found)) return CUDA_ERROR_INVALID_VALUE;
  *flags = 2;  // CU_MEMHOSTALLOC_DEVICEMAP
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuPointerGetAttribute(void* result, int attribute, CUdeviceptr address) {
  const ContextCall call;
  if (const auto error = call.call_error(result)) return error;
  const Allocation* const found = find_allocation(address);
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE
                          : put_pointer_attribute(result, attribute, address, *found);
}

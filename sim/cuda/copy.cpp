// Copies and fills. They are done when the call returns, in any stream. A device pointer that is of no
// allocation is refused; a host's pointer is the client's own affair, as with the real library.

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "sim/cuda/client.h"
#include "sim/cuda/stream.h"

using namespace gpulet::sim;
using namespace gpulet::sim::cuda;

namespace {

// Pages of managed memory move to the GPU that uses them.
void move_to_gpu(Allocation& allocation, std::uint64_t bytes) {
  if (allocation.kind != AllocationKind::kManaged) return;
  const std::uint64_t wanted = round_to_pages(std::min(allocation.bytes, allocation.resident + bytes));
  if (wanted <= allocation.resident) return;
  const auto more = static_cast<std::int64_t>(wanted - allocation.resident);
  allocation.resident +=
      static_cast<std::uint64_t>(change_managed(client().devices[allocation.device].gpu, more));
}

// Whether all bytes belong to one allocation.
bool is_usable(CUdeviceptr address, std::uint64_t bytes) {
  return find_allocation(address, bytes) != nullptr;
}

template <class Pointer>
void* pointer_of(Pointer address) {
  return reinterpret_cast<void*>(address);
}
void* pointer_of(const void* pointer) { return const_cast<void*>(pointer); }

bool is_device_side(const void*) { return false; }
bool is_device_side(CUdeviceptr) { return true; }

template <class Side>
bool is_valid_side(Side side, std::size_t bytes) {
  if (!is_device_side(side)) return pointer_of(side) != nullptr;
  return is_usable(reinterpret_cast<CUdeviceptr>(pointer_of(side)), bytes);
}

// Copies, and counts the time that a link of this speed takes; 0: within one GPU.
void copy_over_link(void* target, const void* source, std::size_t bytes, std::uint64_t bytes_per_second) {
  std::memmove(target, source, bytes);
  if (bytes_per_second == 0) return;
  const double seconds = static_cast<double>(bytes) / static_cast<double>(bytes_per_second);
  client().copy_time_ns += static_cast<std::uint64_t>(seconds * 1e9) + 1;
}

// Where the faulty word of an allocation is: in its second page of 4 KiB.
constexpr std::uint64_t kBadWord = 4096 + 20;

// A GPU with bad memory reads one word wrong.
void apply_bad_memory(void* read, CUdeviceptr source, std::size_t bytes) {
  const Allocation* const found = find_allocation(source, bytes);
  if (found == nullptr || found->kind != AllocationKind::kDevice) return;
  if (client().state.lock_for_read()->gpus[client().devices[found->device].gpu].faults.bad_memory == 0)
    return;
  const CUdeviceptr bad = allocation_start(source) + kBadWord;
  if (bad < source || bad >= source + bytes) return;
  static_cast<unsigned char*>(read)[bad - source] ^= 0x10;
}

std::uint32_t gpu_of(CUdeviceptr address) { return client().devices[find_allocation(address)->device].gpu; }

// Both are on GPUs.
void copy_between(CUdeviceptr target, CUdeviceptr source, std::size_t bytes) {
  const std::uint32_t to = gpu_of(target), from = gpu_of(source);
  copy_over_link(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), bytes,
                 to == from ? 0 : peer_bytes_per_second(to, from));
}

// A side is a device's address, or a pointer to the host's memory.
template <class Target, class Source>
CUresult copy(Target target, Source source, std::size_t bytes, CUstream stream) {
  const ContextCall call;
  if (const auto error = call.call_error()) return error;
  if (!is_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (bytes == 0) return CUDA_SUCCESS;
  if (!is_valid_side(target, bytes) || !is_valid_side(source, bytes)) return CUDA_ERROR_INVALID_VALUE;
  constexpr bool kToDevice = std::is_same_v<Target, CUdeviceptr>;
  constexpr bool kFromDevice = std::is_same_v<Source, CUdeviceptr>;
  if constexpr (kToDevice && kFromDevice) {
    copy_between(target, source, bytes);
  } else if constexpr (kToDevice || kFromDevice) {
    copy_over_link(pointer_of(target), pointer_of(source), bytes, host_bytes_per_second(call.device().gpu));
    if constexpr (kFromDevice) apply_bad_memory(target, source, bytes);
  } else {
    std::memmove(pointer_of(target), pointer_of(source), bytes);
  }
  return CUDA_SUCCESS;
}

// One of the two is an address of the device, or both.
CUresult copy_unified(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream stream) {
  return copy(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), bytes, stream);
}

template <class Value>
CUresult fill(CUdeviceptr address, Value value, std::size_t count, CUstream stream) {
  const ContextCall call;
  if (const auto error = call.call_error()) return error;
  if (!is_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (count == 0) return CUDA_SUCCESS;
  if (count > kMaxBytes || address % sizeof(Value) != 0) return CUDA_ERROR_INVALID_VALUE;
  Allocation* const allocation = find_allocation(address, count * sizeof(Value));
  if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  move_to_gpu(*allocation, count * sizeof(Value));
  // Whole blocks at a time: under a sanitizer a loop over the words takes many times as long.
  auto* const words = static_cast<Value*>(pointer_of(address));
  words[0] = value;
  for (std::size_t filled = 1; filled < count;) {
    const std::size_t more = std::min(filled, count - filled);
    std::memcpy(words + filled, words, more * sizeof(Value));
    filled += more;
  }
  return CUDA_SUCCESS;
}

}  // namespace

GPULET_CUDA_EXPORT cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
  return copy(to, from, bytes, nullptr);
}
GPULET_CUDA_EXPORT cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
  return copy(to, from, bytes, nullptr);
}
GPULET_CUDA_EXPORT cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return copy(to, from, bytes, nullptr);
}
GPULET_CUDA_EXPORT cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  return copy_unified(to, from, bytes, nullptr);
}
GPULET_CUDA_EXPORT cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes,
                                        CUstream stream) {
  return copy(to, from, bytes, stream);
}
GPULET_CUDA_EXPORT cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return copy(to, from, bytes, stream);
}
GPULET_CUDA_EXPORT cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                                        CUstream stream) {
  return copy(to, from, bytes, stream);
}
GPULET_CUDA_EXPORT cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return copy_unified(to, from, bytes, stream);
}

// The addresses say which GPUs they are of.
GPULET_CUDA_EXPORT cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                     CUcontext from_context, std::size_t bytes, CUstream stream) {
  if (to_context == nullptr || from_context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return copy(to, from, bytes, stream);
}
GPULET_CUDA_EXPORT cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                                CUcontext from_context, std::size_t bytes) {
  return cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, nullptr);
}

GPULET_CUDA_EXPORT cuMemsetD8_v2(CUdeviceptr address, unsigned char value, std::size_t count) {
  return fill(address, value, count, nullptr);
}
GPULET_CUDA_EXPORT cuMemsetD16_v2(CUdeviceptr address, unsigned short value, std::size_t count) {
  return fill(address, value, count, nullptr);
}
GPULET_CUDA_EXPORT cuMemsetD32_v2(CUdeviceptr address, unsigned int value, std::size_t count) {
  return fill(address, value, count, nullptr);
}
GPULET_CUDA_EXPORT cuMemsetD8Async(CUdeviceptr address, unsigned char value, std::size_t count,
                                   CUstream stream) {
  return fill(address, value, count, stream);
}
GPULET_CUDA_EXPORT cuMemsetD16Async(CUdeviceptr address, unsigned short value, std::size_t count,
                                    CUstream stream) {
  return fill(address, value, count, stream);
}
GPULET_CUDA_EXPORT cuMemsetD32Async(CUdeviceptr address, unsigned int value, std::size_t count,
                                    CUstream stream) {
  return fill(address, value, count, stream);
}

GPULET_CUDA_ALIAS(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds);
GPULET_CUDA_ALIAS(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds);
GPULET_CUDA_ALIAS(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds);
GPULET_CUDA_ALIAS(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz);
GPULET_CUDA_ALIAS(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz);
GPULET_CUDA_ALIAS(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz);
GPULET_CUDA_ALIAS(cuMemsetD8_v2, cuMemsetD8_v2_ptds);
GPULET_CUDA_ALIAS(cuMemsetD8Async, cuMemsetD8Async_ptsz);

// Allocations in stream order, from memory pools. A pool keeps the pages of what is freed for the next
// allocation, up to its release threshold: 0, unless the client sets it.
#include <algorithm>
#include <utility>
#include <vector>

#include "sim/cuda/client.h"
#include "sim/cuda/stream.h"

using namespace gpulet::sim;
using namespace gpulet::sim::cuda;

namespace {

// CUmemPool_attribute.
constexpr int kReuseAttributes = 3, kReleaseThreshold = 4, kReservedCurrent = 5, kUsedCurrent = 7;

struct Pool {
  std::uint32_t device = 0;
  bool is_default = false;
  std::uint64_t threshold = 0, maximum = 0;  // bytes; maximum 0: none
  std::uint64_t used = 0;
  std::vector<std::shared_ptr<Block>> kept{};
};

HandleTable<CUmemoryPool, Pool>& pools() {
  static auto* const kPools = new HandleTable<CUmemoryPool, Pool>;
  return *kPools;
}

std::uint64_t kept_bytes(const Pool& pool) {
  std::uint64_t bytes = 0;
  for (const auto& block : pool.kept) bytes += block->memory.bytes();
  return bytes;
}

void trim_pool(Pool& pool, std::uint64_t bytes) {
  while (!pool.kept.empty() && kept_bytes(pool) > bytes) pool.kept.pop_back();
}

// The device's own pool, made when it is asked for.
CUmemoryPool default_pool(std::uint32_t device) {
  static auto* const kDefaults = new std::map<std::uint32_t, CUmemoryPool>;
  const auto [entry, is_new] = kDefaults->try_emplace(device, nullptr);
  if (is_new) entry->second = pools().add(Pool{device, true});
  return entry->second;
}

std::shared_ptr<Block> take_kept(Pool& pool, std::uint64_t bytes) {
  const auto found =
      std::ranges::find(pool.kept, bytes, [](const auto& block) { return block->memory.bytes(); });
  if (found == pool.kept.end()) return nullptr;
  auto block = std::move(*found);
  pool.kept.erase(found);
  return block;
}

CUresult allocate_in(CUcontext context, CUmemoryPool handle, std::uint64_t bytes, CUdeviceptr* address) {
  Pool* const pool = pools().find(handle);
  if (pool == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > kMaxBytes || (pool->maximum != 0 && pool->used + bytes > pool->maximum))
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (auto block = take_kept(*pool, round_to_pages(bytes))) {
    *address = block->range.start();
    client().allocations.emplace(*address,
                                 Allocation{AllocationKind::kPooled, bytes, context, pool->device, block});
  } else {
    CUresult refused = allocate(context, bytes, AllocationKind::kPooled, address);
    if (refused == CUDA_ERROR_OUT_OF_MEMORY && trim_pools(pool->device))
      refused = allocate(context, bytes, AllocationKind::kPooled, address);
    if (refused != CUDA_SUCCESS) return refused;
  }
  client().allocations.at(*address).pool = handle;
  pool->used += bytes;
  return CUDA_SUCCESS;
}

CUresult allocate_async(CUdeviceptr* address, std::size_t bytes, std::optional<CUmemoryPool> pool,
                        CUstream stream) {
  const ContextCall call;
  if (const auto error = call.call_error(address)) return error;
  if (!is_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
  return allocate_in(call.handle(), pool.value_or(default_pool(call.context().device)), bytes, address);
}

CUresult put_default_pool(CUmemoryPool* pool, CUdevice device) {
  const Call call;
  if (const auto error = call.call_error(pool)) return error;
  if (find_device(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *pool = default_pool(static_cast<std::uint32_t>(device));
  return CUDA_SUCCESS;
}

}  // namespace

CUresult gpulet::sim::cuda::free_to_pool(CUdeviceptr address) {
  const Allocation& allocation = client().allocations.at(address);
  Pool* const pool = pools().find(allocation.pool);
  const auto block = allocation.block;
  const bool is_whole = block->used.empty();  // no small one, which shares its page
  if (pool != nullptr) {
    pool->used -= std::min(pool->used, allocation.bytes);
    if (is_whole && kept_bytes(*pool) + block->memory.bytes() <= pool->threshold) pool->kept.push_back(block);
  }
  free_allocation(address);
  return CUDA_SUCCESS;
}

bool gpulet::sim::cuda::trim_pools(std::uint32_t device) {
  bool has_trimmed = false;
  pools().for_each([&](Pool& pool) {
    if (pool.device != device || pool.kept.empty()) return;
    trim_pool(pool, 0);
    has_trimmed = true;
  });
  return has_trimmed;
}

GPULET_CUDA_EXPORT cuMemAllocAsync(CUdeviceptr* address, std::size_t bytes, CUstream stream) {
  return allocate_async(address, bytes, std::nullopt, stream);
}
GPULET_CUDA_EXPORT cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool,
                                           CUstream stream) {
  return allocate_async(address, bytes, pool, stream);
}
GPULET_CUDA_EXPORT cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  const ContextCall call;
  if (const auto error = call.call_error()) return error;
  if (!is_stream(stream)) return CUDA_ERROR_INVALID_HANDLE;
  const auto found = client().allocations.find(address);
  if (found == client().allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  if (found->second.kind == AllocationKind::kPooled) return free_to_pool(address);
  if (found->second.kind != AllocationKind::kDevice && found->second.kind != AllocationKind::kGraph)
    return CUDA_ERROR_INVALID_VALUE;
  free_allocation(address);
  return CUDA_SUCCESS;
}
GPULET_CUDA_ALIAS(cuMemAllocAsync, cuMemAllocAsync_ptsz);
GPULET_CUDA_ALIAS(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz);
GPULET_CUDA_ALIAS(cuMemFreeAsync, cuMemFreeAsync_ptsz);

GPULET_CUDA_EXPORT cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  return put_default_pool(pool, device);
}
GPULET_CUDA_EXPORT cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  return put_default_pool(pool, device);
}

GPULET_CUDA_EXPORT cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  const Call call;
  if (const auto error = call.call_error(pool, properties)) return error;
  if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED || properties->handleTypes != 0 ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return CUDA_ERROR_INVALID_VALUE;
  if (find_device(properties->location.id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *pool =
      pools().add(Pool{static_cast<std::uint32_t>(properties->location.id), false, 0, properties->maxSize});
  return CUDA_SUCCESS;
}
GPULET_CUDA_EXPORT cuMemPoolDestroy(CUmemoryPool handle) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  const Pool* const pool = pools().find(handle);
  if (pool == nullptr || pool->is_default) return CUDA_ERROR_INVALID_VALUE;
  pools().remove(handle);
  return CUDA_SUCCESS;
}
GPULET_CUDA_EXPORT cuMemPoolTrimTo(CUmemoryPool handle, std::size_t bytes) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  Pool* const pool = pools().find(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  trim_pool(*pool, bytes - std::min<std::uint64_t>(bytes, pool->used));
  return CUDA_SUCCESS;
}
GPULET_CUDA_EXPORT cuMemPoolSetAttribute(CUmemoryPool handle, int attribute, const void* value) {
  const Call call;
  if (const auto error = call.call_error(value)) return error;
  Pool* const pool = pools().find(handle);
  if (pool == nullptr || attribute < 1 || attribute > kReleaseThreshold) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == kReleaseThreshold) {
    pool->threshold = *static_cast<const std::uint64_t*>(value);
    trim_pool(*pool, pool->threshold);
  }
  return CUDA_SUCCESS;
}
GPULET_CUDA_EXPORT cuMemPoolGetAttribute(CUmemoryPool handle, int attribute, void* value) {
  const Call call;
  if (const auto error = call.call_error(value)) return error;
  const Pool* const pool = pools().find(handle);
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (attribute >= 1 && attribute <= kReuseAttributes) {
    *static_cast<int*>(value) = 1;
    return CUDA_SUCCESS;
  }
  auto& bytes = *static_cast<std::uint64_t*>(value);
  if (attribute == kReleaseThreshold)
    bytes = pool->threshold;
  else if (attribute == kReservedCurrent)
    bytes = pool->used + kept_bytes(*pool);
  else if (attribute == kUsedCurrent)
    bytes = pool->used;
  else
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

// Virtual memory management: physical memory of the GPU, addresses, and mappings of one at the other.
// Physical memory counts for the process until it is released and nowhere mapped.
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "base/file.h"
#include "sim/cuda/client.h"

using namespace gpulet::sim;
using namespace gpulet::sim::cuda;

namespace {

struct PhysicalMemory {
  GpuMemory memory;
  gpulet::FileDescriptor content{};  // an anonymous file, which all mappings share
  std::uint32_t device = 0;
};
using Physical = std::shared_ptr<PhysicalMemory>;

HandleTable<CUmemHandle, Physical>& physical_memory() {
  static auto* const kMemory = new HandleTable<CUmemHandle, Physical>;
  return *kMemory;
}

std::map<CUdeviceptr, AddressRange>& reservations() {
  static auto* const kReservations = new std::map<CUdeviceptr, AddressRange>;
  return *kReservations;
}

bool is_whole_pages(std::uint64_t bytes) {
  return bytes != 0 && bytes <= kMaxBytes && bytes % kPageBytes == 0;
}

bool is_reserved(CUdeviceptr address, std::uint64_t bytes) {
  auto after = reservations().upper_bound(address);
  if (after == reservations().begin()) return false;
  const AddressRange& range = std::prev(after)->second;
  return address - range.start() <= range.bytes() && bytes <= range.bytes() - (address - range.start());
}

bool overlaps_mapping(CUdeviceptr address, std::uint64_t bytes) {
  const auto& all = client().allocations;
  const auto first = all.lower_bound(address);
  if (first != all.end() && first->first < address + bytes) return true;
  return first != all.begin() && std::prev(first)->first + std::prev(first)->second.bytes > address;
}

bool is_valid(const CUmemAllocationProp& properties) {
  return properties.type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
         (properties.requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0;
}

// Applies `act` to each mapping of the range, if mappings fill it.
template <class Act>
CUresult for_each_mapping(CUdeviceptr address, std::uint64_t bytes, Act act) {
  auto& all = client().allocations;
  CUdeviceptr next = address;
  for (auto at = all.find(address); next < address + bytes; ++at) {
    if (at == all.end() || at->first != next || at->second.kind != AllocationKind::kMapped)
      return CUDA_ERROR_INVALID_VALUE;
    next += at->second.bytes;
  }
  if (next != address + bytes) return CUDA_ERROR_INVALID_VALUE;
  for (auto at = all.find(address); at != all.end() && at->first < next;) {
    const auto current = at++;
    act(current->first, current->second);
  }
  return CUDA_SUCCESS;
}

void* addresses(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

}  // namespace

GPULET_CUDA_EXPORT cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp* properties,
                                                 int option) {
  const Call call;
  if (const auto error = call.call_error(bytes, properties)) return error;
  if (option < 0 || option > 1 || !is_valid(*properties)) return CUDA_ERROR_INVALID_VALUE;
  if (find_device(properties->location.id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = kPageBytes;
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuMemCreate(CUmemHandle* handle, std::size_t bytes, const CUmemAllocationProp* properties,
                               std::uint64_t flags) {
  const Call call;
  if (const auto error = call.call_error(handle, properties)) return error;
  if (flags != 0 || !is_valid(*properties) || !is_whole_pages(bytes)) return CUDA_ERROR_INVALID_VALUE;
  const Device* const device = find_device(properties->location.id);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (const auto error = check_gpu(device->gpu)) return error;
  auto made = std::make_shared<PhysicalMemory>();
  if (const auto refused = GpuMemory::take(device->gpu, bytes, made->memory)) return refused;
  made->device = static_cast<std::uint32_t>(properties->location.id);
  made->content = gpulet::FileDescriptor(memfd_create("cuda", MFD_CLOEXEC));
  if (!made->content.is_open() || ftruncate(made->content.get(), static_cast<off_t>(bytes)) != 0)
    return CUDA_ERROR_OPERATING_SYSTEM;
  *handle = physical_memory().add(std::move(made));
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuMemRelease(CUmemHandle handle) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  return physical_memory().remove(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

GPULET_CUDA_EXPORT cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
                                       CUdeviceptr /*wanted*/, std::uint64_t flags) {
  const Call call;
  if (const auto error = call.call_error(address)) return error;
  if (flags != 0 || !is_whole_pages(bytes) || (alignment & (alignment - 1)) != 0 || alignment > kPageBytes)
    return CUDA_ERROR_INVALID_VALUE;
  auto range = AddressRange::reserve(bytes, false);
  if (!range) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = range->start();
  reservations().emplace(range->start(), std::move(*range));
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  const auto found = reservations().find(address);
  if (found == reservations().end() || found->second.bytes() != bytes || overlaps_mapping(address, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  reservations().erase(found);
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemHandle handle,
                            std::uint64_t flags) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  const Physical* const found = physical_memory().find(handle);
  if (found == nullptr || flags != 0 || offset != 0 || !is_whole_pages(bytes) || address % kPageBytes != 0 ||
      bytes > (*found)->memory.bytes() || !is_reserved(address, bytes) || overlaps_mapping(address, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (mmap(addresses(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, (*found)->content.get(), 0) ==
      MAP_FAILED)
    return CUDA_ERROR_OPERATING_SYSTEM;
  Allocation made{AllocationKind::kMapped, bytes, nullptr, (*found)->device};
  made.mapped = *found;
  made.has_access = false;
  client().allocations.emplace(address, std::move(made));
  return CUDA_SUCCESS;
}

GPULET_CUDA_EXPORT cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
  const Call call;
  if (const auto error = call.call_error()) return error;
  if (!is_whole_pages(bytes)) return CUDA_ERROR_INVALID_VALUE;
  return for_each_mapping(address, bytes, [](CUdeviceptr start, const Allocation& mapping) {
    mmap(addresses(start), mapping.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
         -1, 0);
    free_allocation(start);
  });
}

GPULET_CUDA_EXPORT cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access,
                                  std::size_t count) {
  const Call call;
  if (const auto error = call.call_error(access)) return error;
  if (count != 1 || !is_whole_pages(bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (find_device(access->location.id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const bool is_given = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (!is_given && access->flags != 0) return CUDA_ERROR_NOT_SUPPORTED;
  return for_each_mapping(address, bytes, [is_given](CUdeviceptr start, Allocation& mapping) {
    mprotect(addresses(start), mapping.bytes, is_given ? PROT_READ | PROT_WRITE : PROT_NONE);
    mapping.has_access = is_given;
  });
}

// No other process can have this memory.
GPULET_CUDA_EXPORT cuMemExportToShareableHandle(void* shareable, CUmemHandle handle, int /*type*/,
                                                std::uint64_t /*flags*/) {
  const Call call;
  if (const auto error = call.call_error(shareable)) return error;
  return physical_memory().find(handle) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
}
GPULET_CUDA_EXPORT cuMemImportFromShareableHandle(CUmemHandle* handle, void* /*shareable*/, int /*type*/) {
  const Call call;
  const CUresult error = call.call_error(handle);
  return error != CUDA_SUCCESS ? error : CUDA_ERROR_NOT_SUPPORTED;
}
GPULET_CUDA_EXPORT cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  const ContextCall call;
  if (const auto error = call.call_error(handle)) return error;
  return find_allocation(address) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
}
GPULET_CUDA_EXPORT cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle /*handle*/,
                                         unsigned int /*flags*/) {
  const ContextCall call;
  const CUresult error = call.call_error(address);
  return error != CUDA_SUCCESS ? error : CUDA_ERROR_NOT_SUPPORTED;
}
GPULET_CUDA_EXPORT cuIpcCloseMemHandle(CUdeviceptr /*address*/) {
  const ContextCall call;
  const CUresult error = call.call_error();
  return error != CUDA_SUCCESS ? error : CUDA_ERROR_INVALID_VALUE;
}

// What a process has of the simulated GPUs by CUDA: contexts, memory and handles, behind one lock. Memory of
// the GPU is counted in the shared machine (sim/state), for the process and against the limits of its cgroup.
//
// A device pointer is the address of lazily backed memory of the process, so that copies really copy. Numbers
// are handed out as handles and looked up, so that no handle of a client is dereferenced.
// Sources: cuda.h 12.9; measured on a real H100 (docs/real-hardware.md): a context takes 518 MiB, and
// allocations come in pages of 2 MiB, which small ones share.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/cuda/abi.h"
#include "sim/state/memory_limits.h"
#include "sim/state/state.h"

namespace gpulet::sim::cuda {

inline constexpr std::uint64_t kPageBytes = 2U << 20;
inline constexpr std::uint64_t kContextBytes = 518ULL << 20;
// No allocation is larger; sums of two sizes do not overflow.
inline constexpr std::uint64_t kMaxBytes = 1ULL << 44;

constexpr std::uint64_t round_to_pages(std::uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// Memory of a GPU that this process holds; given back by the destructor.
class GpuMemory {
 public:
  GpuMemory() = default;
  GpuMemory(GpuMemory&& other) noexcept { swap(other); }
  GpuMemory& operator=(GpuMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~GpuMemory();

  // CUDA_ERROR_OUT_OF_MEMORY beyond what the GPU has free, or a limit of the cgroup.
  static CUresult take(std::uint32_t gpu, std::uint64_t bytes, GpuMemory& taken);
  std::uint64_t bytes() const { return bytes_; }

 private:
  void swap(GpuMemory& other) noexcept;

  std::uint32_t gpu_ = 0;
  std::uint64_t bytes_ = 0;
  std::string cgroup_;  // charged; empty: none
};

// Addresses of this process: private, aligned to pages, and backed only where they are written.
class AddressRange {
 public:
  AddressRange() = default;
  AddressRange(AddressRange&& other) noexcept;
  AddressRange& operator=(AddressRange&& other) noexcept;
  ~AddressRange();

  // Without a range if the process may have no more addresses.
  static std::optional<AddressRange> reserve(std::uint64_t bytes, bool is_accessible);
  CUdeviceptr start() const { return start_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  CUdeviceptr start_ = 0;
  std::uint64_t bytes_ = 0;
};

// Pages of a GPU with their addresses. One large allocation, or several small ones.
struct Block {
  AddressRange range;
  GpuMemory memory;
  std::map<std::uint64_t, std::uint64_t> used{};  // of small ones: end by start, relative to the range
};

enum class AllocationKind { kDevice, kPooled, kGraph, kManaged, kHost, kRegistered, kMapped };

struct Allocation {
  AllocationKind kind;
  std::uint64_t bytes;  // as requested
  CUcontext context;
  std::uint32_t device;
  std::shared_ptr<Block> block{};  // its addresses, and memory of the GPU if it is there
  std::uint64_t resident = 0;      // of managed memory: bytes on the GPU
  CUmemoryPool pool = nullptr;     // of kPooled
  std::shared_ptr<void> mapped{};  // of kMapped: its physical memory
  bool has_access = true;          // of kMapped, once cuMemSetAccess has given it
};

struct Context {
  std::uint32_t device = 0;
  bool is_primary = false;
  unsigned int flags = 0;
  GpuMemory memory{};
  std::vector<std::weak_ptr<Block>> small_blocks{};
};

struct PrimaryContext {
  unsigned int users = 0;
  unsigned int flags = 0;
  CUcontext context = nullptr;
};

struct Device {
  std::uint32_t gpu = 0;  // index on the machine
  PrimaryContext primary{};
};

// Unique in the process, so that a handle of one kind is never one of another.
inline std::atomic<std::uintptr_t> last_handle{0x10000};

// Objects by the handle that the client has.
template <class Handle, class Object>
class HandleTable {
 public:
  Handle add(Object object) {
    const std::uintptr_t handle = last_handle += 16;
    objects_.emplace(handle, std::move(object));
    return (Handle)handle;  // a pointer, or a number
  }
  Object* find(Handle handle) {
    const auto found = objects_.find((std::uintptr_t)handle);
    return found == objects_.end() ? nullptr : &found->second;
  }
  bool remove(Handle handle) { return objects_.erase((std::uintptr_t)handle) != 0; }
  void remove_if(auto predicate) {
    std::erase_if(objects_, [&](const auto& entry) { return predicate(entry.second); });
  }
  void for_each(auto act) {
    for (auto& [handle, object] : objects_) act(object);
  }

 private:
  std::map<std::uintptr_t, Object> objects_;
};

struct ClientProcess {
  std::mutex mutex;
  std::atomic<int> pid{0};  // of the process that called cuInit with success; a child of fork() is none
  StateFile state;
  std::uint32_t cuda_client = 0;
  std::uint32_t generation = 0;  // the driver's at initialisation
  std::vector<Device> devices;
  HandleTable<CUcontext, Context> contexts;
  std::map<CUdeviceptr, Allocation> allocations;
  std::uint64_t copy_time_ns = 0;  // that its copies take over their links
};

// Never destroyed.
ClientProcess& client();

// The contexts that are current to the calling thread; the last is on top.
std::vector<CUcontext>& context_stack();

// Entry of a call: waits while the driver hangs, then holds the client's lock.
class Call {
 public:
  Call();
  // CUDA_ERROR_NOT_INITIALIZED before cuInit and in a child of fork(); CUDA_ERROR_INVALID_VALUE for a null
  // result pointer.
  template <class... Pointers>
  CUresult call_error(const Pointers*... results) const {
    if (error_ != CUDA_SUCCESS) return error_;
    return (... && (results != nullptr)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }

 protected:
  std::unique_lock<std::mutex> lock_;
  CUresult error_ = CUDA_SUCCESS;
};

// Entry of a call about the current context: CUDA_ERROR_INVALID_CONTEXT without one,
// CUDA_ERROR_CONTEXT_IS_DESTROYED, or CUDA_ERROR_UNKNOWN if its GPU or the driver is gone.
class ContextCall : public Call {
 public:
  ContextCall();
  CUcontext handle() const { return handle_; }
  Context& context() const { return *context_; }
  Device& device() const { return client().devices[context_->device]; }

 private:
  CUcontext handle_ = nullptr;
  Context* context_ = nullptr;
};

// The device; null if there is none of that number.
Device* find_device(CUdevice device);
// CUDA_ERROR_UNKNOWN if the GPU or the driver is gone since cuInit.
CUresult check_gpu(std::uint32_t gpu);
// Whether two GPUs have NVLinks, and their slower one's speed in bytes a second; 0 without.
std::uint64_t peer_bytes_per_second(std::uint32_t gpu, std::uint32_t peer);
// Of the PCIe link of a GPU, as far as copies reach it.
std::uint64_t host_bytes_per_second(std::uint32_t gpu);
// Ends a context with its memory.
void destroy_context(CUcontext context);

// The allocation with `address`, and all `bytes` from there inside it; null if there is none.
Allocation* find_allocation(CUdeviceptr address, std::uint64_t bytes = 0);
// Where that allocation starts.
CUdeviceptr allocation_start(CUdeviceptr address);
// Allocates pages of the context's GPU, or a part of a page, under `kind`.
CUresult allocate(CUcontext context, std::uint64_t bytes, AllocationKind kind, CUdeviceptr* address);
// Ends the allocation that starts at `address`.
void free_allocation(CUdeviceptr address);
// Ends an allocation of a pool, which may keep its pages for the next.
CUresult free_to_pool(CUdeviceptr address);
// Gives back the pages that pools keep on a device; false if there are none.
bool trim_pools(std::uint32_t device);

// What a client sees as the memory of a GPU: all but what the driver reserves; of a process whose cgroup has
// a limit, that.
struct VisibleMemory {
  std::uint64_t total = 0, free = 0;
};
VisibleMemory visible_memory(std::uint32_t gpu);
// Takes up to `bytes` of the GPU for pages of managed memory that it uses; as many as are free. Negative:
// gives them back. Returns the change.
std::int64_t change_managed(std::uint32_t gpu, std::int64_t bytes);

}  // namespace gpulet::sim::cuda

// The memory that the shared machine counts for this process: its entry in the GPU's processes, and the
// charge to its cgroup.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "sim/cuda/client.h"
#include "sim/driver/memory_limits.h"

namespace gpulet::sim::cuda {
namespace {

Process* find_process(Gpu& gpu) {
  auto* const found = std::ranges::find_if(gpu.processes, [](const Process& process) {
    return process.pid != 0 && process.cuda_client == client().cuda_client;
  });
  return found == std::end(gpu.processes) ? nullptr : found;
}

Process* find_or_add_process(Gpu& gpu) {
  if (Process* const process = find_process(gpu)) return process;
  auto* const slot = std::ranges::find(gpu.processes, 0U, &Process::pid);
  if (slot == std::end(gpu.processes)) return nullptr;
  *slot = {};
  slot->pid = static_cast<std::uint32_t>(getpid());
  slot->gpu_instance = slot->compute_instance = kNoInstance;
  slot->cuda_client = client().cuda_client;
  return slot;
}

std::uint64_t managed_bytes(const Gpu& gpu) {
  std::uint64_t bytes = 0;
  for (const Process& process : gpu.processes) bytes += process.pid == 0 ? 0 : process.managed_bytes;
  return bytes;
}

std::uint64_t free_bytes(const Gpu& gpu) {
  const std::uint64_t used = gpu.memory_reserved + memory_in_use(gpu);
  return gpu.memory_total - std::min(gpu.memory_total, used);
}

// Moves managed pages of any process to its host's memory, until no more than the GPU has is in use.
void evict_managed(Gpu& gpu) {
  for (Process& process : gpu.processes) {
    const std::uint64_t used = gpu.memory_reserved + memory_in_use(gpu);
    if (used <= gpu.memory_total) return;
    if (process.pid != 0) process.managed_bytes -= std::min(process.managed_bytes, used - gpu.memory_total);
  }
}

// Before the machine's lock: the cgroup is of no interest to a driver that does not limit memory.
std::vector<Cgroup> own_cgroups() {
  if (memory_backend(*client().state.lock_for_read()) == MemoryBackend::kOff) return {};
  return cgroup_path_of_caller().chain;
}

ClientOfGpu client_of(std::uint32_t gpu) { return {gpu, client().cuda_client}; }

}  // namespace

GpuMemory::~GpuMemory() {
  if (bytes_ == 0 || client().pid.load() != getpid()) return;
  const EditGuard machine = client().state.lock_for_edit();
  if (machine->driver.generation != client().generation) return;
  release_client(*machine, client_of(gpu_), cgroup_, bytes_);
  Process* const process = find_process(machine->gpus[gpu_]);
  if (process == nullptr) return;
  process->memory_bytes -= std::min(process->memory_bytes, bytes_);
  if (process->memory_bytes == 0) *process = {};
}

void GpuMemory::swap(GpuMemory& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(bytes_, other.bytes_);
  std::swap(cgroup_, other.cgroup_);
}

CUresult GpuMemory::take(std::uint32_t index, std::uint64_t bytes, GpuMemory& taken) {
  const auto cgroups = own_cgroups();
  const EditGuard machine = client().state.lock_for_edit();
  Gpu& gpu = machine->gpus[index];
  if (bytes > free_bytes(gpu) + managed_bytes(gpu)) return CUDA_ERROR_OUT_OF_MEMORY;
  Process* const process = find_or_add_process(gpu);
  if (process == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  auto charged = charge_client(*machine, client_of(index), cgroups, bytes);
  if (!charged) {
    if (process->memory_bytes == 0) *process = {};
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  process->memory_bytes += bytes;
  evict_managed(gpu);
  taken.gpu_ = index;
  taken.bytes_ = bytes;
  taken.cgroup_ = std::move(*charged);
  return CUDA_SUCCESS;
}

VisibleMemory visible_memory(std::uint32_t index) {
  const auto cgroups = own_cgroups();
  const ReadGuard machine = client().state.lock_for_read();
  const Gpu& gpu = machine->gpus[index];
  VisibleMemory found{gpu.memory_total - std::min(gpu.memory_total, gpu.memory_reserved), free_bytes(gpu)};
  if (cgroups.empty()) return found;
  const auto limit = find_memory_limit(*machine, index, cgroups.front());
  if (!limit || limit->hard == kUnlimitedMemory) return found;
  found.total = limit->hard;
  found.free = std::min(found.free, limit->hard - std::min(limit->hard, limit->used));
  return found;
}

std::int64_t change_managed(std::uint32_t index, std::int64_t bytes) {
  const EditGuard machine = client().state.lock_for_edit();
  Gpu& gpu = machine->gpus[index];
  Process* const process = find_process(gpu);
  if (process == nullptr) return 0;
  const auto most = static_cast<std::int64_t>(free_bytes(gpu));
  const auto least = -static_cast<std::int64_t>(process->managed_bytes);
  const std::int64_t change = std::clamp(bytes, least, most);
  process->managed_bytes += static_cast<std::uint64_t>(change);
  return change;
}

AddressRange::AddressRange(AddressRange&& other) noexcept
    : start_(std::exchange(other.start_, 0)), bytes_(std::exchange(other.bytes_, 0)) {}

AddressRange& AddressRange::operator=(AddressRange&& other) noexcept {
  std::swap(start_, other.start_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

AddressRange::~AddressRange() {
  if (bytes_ != 0) munmap(reinterpret_cast<void*>(start_), bytes_);
}

std::optional<AddressRange> AddressRange::reserve(std::uint64_t bytes, bool is_accessible) {
  const std::uint64_t whole = bytes + kPageBytes;
  void* const mapped = mmap(nullptr, whole, is_accessible ? PROT_READ | PROT_WRITE : PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return std::nullopt;
  const auto first = reinterpret_cast<CUdeviceptr>(mapped);
  AddressRange range;
  range.start_ = round_to_pages(first);
  range.bytes_ = bytes;
  if (range.start_ != first) munmap(mapped, range.start_ - first);
  munmap(reinterpret_cast<void*>(range.start_ + bytes), first + whole - range.start_ - bytes);
  return range;
}

}  // namespace gpulet::sim::cuda

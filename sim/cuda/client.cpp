#include "sim/cuda/client.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "sim/driver/call.h"

namespace gpulet::sim::cuda {
namespace {

constexpr std::uint64_t kAlignment = 512;
constexpr std::uint64_t kLargestSmall = 1U << 20;  // shares its page with others

// A place for `bytes` between the small allocations of a block.
std::optional<std::uint64_t> find_gap(const Block& block, std::uint64_t bytes) {
  std::uint64_t start = 0;
  for (const auto& [used_start, used_end] : block.used) {
    if (start + bytes <= used_start) return start;
    start = used_end;
  }
  if (start + bytes <= block.range.bytes()) return start;
  return std::nullopt;
}

CUresult make_block(std::uint32_t gpu, std::uint64_t bytes, std::shared_ptr<Block>& made) {
  GpuMemory memory;
  if (const auto refused = GpuMemory::take(gpu, bytes, memory)) return refused;
  auto range = AddressRange::reserve(bytes, true);
  if (!range) return CUDA_ERROR_OUT_OF_MEMORY;
  made = std::make_shared<Block>(Block{std::move(*range), std::move(memory)});
  return CUDA_SUCCESS;
}

CUresult place_small(Context& context, std::uint64_t bytes, std::shared_ptr<Block>& block,
                     CUdeviceptr* address) {
  std::erase_if(context.small_blocks, [](const auto& weak) { return weak.expired(); });
  std::optional<std::uint64_t> gap;
  for (const auto& weak : context.small_blocks) {
    block = weak.lock();
    gap = find_gap(*block, bytes);
    if (gap) break;
  }
  if (!gap) {
    if (const auto refused = make_block(client().devices[context.device].gpu, kPageBytes, block))
      return refused;
    context.small_blocks.push_back(block);
    gap = 0;
  }
  block->used[*gap] = *gap + bytes;
  *address = block->range.start() + *gap;
  return CUDA_SUCCESS;
}

}  // namespace

ClientProcess& client() {
  static auto* const kClient = new ClientProcess;
  return *kClient;
}

std::vector<CUcontext>& context_stack() {
  thread_local std::vector<CUcontext> stack;
  return stack;
}

Call::Call() {
  if (client().pid.load() != getpid()) {
    error_ = CUDA_ERROR_NOT_INITIALIZED;
    return;
  }
  wait_out_hang_and_delay(client().state);
  lock_ = std::unique_lock(client().mutex);
}

ContextCall::ContextCall() {
  if (error_ != CUDA_SUCCESS) return;
  handle_ = context_stack().empty() ? nullptr : context_stack().back();
  if (handle_ == nullptr) {
    error_ = CUDA_ERROR_INVALID_CONTEXT;
    return;
  }
  context_ = client().contexts.find(handle_);
  error_ = context_ == nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED : check_gpu(device().gpu);
}

Device* find_device(CUdevice device) {
  auto& devices = client().devices;
  const auto index = static_cast<std::size_t>(device);
  return device < 0 || index >= devices.size() ? nullptr : &devices[index];
}

namespace {

// Of the GPU, while its CUDA calls hang.
void wait_out_cuda_hang(std::uint32_t gpu) {
  while (true) {
    const std::uint32_t seen = client().state.change_count();
    if (client().state.lock_for_read()->gpus[gpu].faults.cuda_hang == 0) return;
    client().state.wait_for_change(seen, -1);
  }
}

std::uint64_t at_fault(const Gpu& gpu, std::uint64_t bytes_per_second) {
  return gpu.faults.copy_percent == 0 ? bytes_per_second : bytes_per_second / 100 * gpu.faults.copy_percent;
}

// What copies reach of a link's raw speed, in percent.
constexpr std::uint64_t kLinkEfficiency = 85;

}  // namespace

std::uint64_t host_bytes_per_second(std::uint32_t index) {
  // Of a lane and direction, in MB/s, by generation. Source: PCI Express Base Specification 6.0.
  constexpr std::uint64_t kLaneMegabytes[] = {0, 250, 500, 985, 1969, 3938, 7563};
  const ReadGuard machine = client().state.lock_for_read();
  const Gpu& gpu = machine->gpus[index];
  const auto generation = std::clamp(gpu.pcie_generation_max, 1, 6);
  const auto lanes = static_cast<std::uint64_t>(std::max(gpu.pcie_width, 1));
  return at_fault(gpu, kLaneMegabytes[generation] * 1'000'000 * lanes / 100 * kLinkEfficiency);
}

std::uint64_t peer_bytes_per_second(std::uint32_t one, std::uint32_t other) {
  const ReadGuard machine = client().state.lock_for_read();
  const auto speed = [&](std::uint32_t index) {
    std::uint64_t sum = 0;
    for (const NvLink& link : machine->gpus[index].links) sum += link.active == 0 ? 0 : link.speed_mbps;
    return at_fault(machine->gpus[index], sum * 1'000'000 / 100 * kLinkEfficiency);
  };
  return std::min(speed(one), speed(other));
}

CUresult check_gpu(std::uint32_t gpu) {
  wait_out_cuda_hang(gpu);
  const ReadGuard machine = client().state.lock_for_read();
  const bool is_there = machine->driver.loaded != 0 && machine->driver.generation == client().generation &&
                        machine->gpus[gpu].faults.lost == 0;
  return is_there ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

void destroy_context(CUcontext handle) {
  std::vector<CUdeviceptr> own;
  for (const auto& [address, allocation] : client().allocations) {
    if (allocation.context == handle && allocation.kind != AllocationKind::kMapped) own.push_back(address);
  }
  for (const CUdeviceptr address : own) free_allocation(address);
  client().contexts.remove(handle);
}

CUdeviceptr allocation_start(CUdeviceptr address) {
  auto after = client().allocations.upper_bound(address);
  return after == client().allocations.begin() ? 0 : std::prev(after)->first;
}

Allocation* find_allocation(CUdeviceptr address, std::uint64_t bytes) {
  const auto found = client().allocations.find(allocation_start(address));
  if (found == client().allocations.end()) return nullptr;
  const std::uint64_t offset = address - found->first;
  Allocation& allocation = found->second;
  const bool is_inside = offset < allocation.bytes && bytes <= allocation.bytes - offset;
  return is_inside && allocation.has_access ? &allocation : nullptr;
}

CUresult allocate(CUcontext handle, std::uint64_t bytes, AllocationKind kind, CUdeviceptr* address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > kMaxBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  Context& context = *client().contexts.find(handle);
  Allocation made{kind, bytes, handle, context.device};
  if (bytes <= kLargestSmall) {
    const std::uint64_t aligned = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (const auto refused = place_small(context, aligned, made.block, address)) return refused;
  } else {
    const auto refused = make_block(client().devices[context.device].gpu, round_to_pages(bytes), made.block);
    if (refused != CUDA_SUCCESS) return refused;
    *address = made.block->range.start();
  }
  client().allocations.emplace(*address, std::move(made));
  return CUDA_SUCCESS;
}

void free_allocation(CUdeviceptr address) {
  const auto found = client().allocations.find(address);
  if (found == client().allocations.end()) return;
  const Allocation& allocation = found->second;
  if (allocation.block) allocation.block->used.erase(address - allocation.block->range.start());
  if (allocation.resident != 0)
    change_managed(client().devices[allocation.device].gpu, -static_cast<std::int64_t>(allocation.resident));
  client().allocations.erase(found);
}

}  // namespace gpulet::sim::cuda

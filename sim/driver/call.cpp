#include "sim/driver/call.h"

#include <unistd.h>

namespace gpulet::sim {
namespace {

constexpr std::uint64_t kTag = 0xa7;

// One field of the 64 bits of a handle.
struct Field {
  unsigned shift;
  unsigned bits;
  std::uint64_t put(std::uint64_t value) const { return (value & ((1ULL << bits) - 1)) << shift; }
  std::uint64_t get(std::uint64_t word) const { return word >> shift & ((1ULL << bits) - 1); }
};
constexpr Field kTagField{56, 8};
constexpr Field kKindField{53, 3};
constexpr Field kGpuField{47, 6};
constexpr Field kGpuInstanceField{43, 4};
constexpr Field kComputeInstanceField{39, 4};
constexpr Field kGenerationField{24, 15};
constexpr Field kIncarnationField{16, 8};
constexpr Field kCreationField{0, 16};
static_assert(kMaxGpus <= 64 && kMaxGpuInstances <= 16 && kMaxComputeInstances <= 16);

template <class Pointer>
Pointer to_pointer(const Handle& handle) {
  return reinterpret_cast<Pointer>(encode(handle));
}

}  // namespace

std::uint64_t encode(const Handle& handle) {
  return kTagField.put(kTag) | kKindField.put(static_cast<std::uint64_t>(handle.kind)) |
         kGpuField.put(handle.gpu) | kGpuInstanceField.put(handle.gpu_instance) |
         kComputeInstanceField.put(handle.compute_instance) | kGenerationField.put(handle.generation) |
         kIncarnationField.put(handle.incarnation) | kCreationField.put(handle.creation);
}

std::optional<Handle> decode(const void* pointer) {
  const auto word = reinterpret_cast<std::uint64_t>(pointer);
  if (kTagField.get(word) != kTag) return std::nullopt;
  const std::uint64_t kind = kKindField.get(word);
  if (kind < 1 || kind > 4) return std::nullopt;
  return Handle{static_cast<HandleKind>(kind),
                static_cast<std::uint8_t>(kGpuField.get(word)),
                static_cast<std::uint8_t>(kGpuInstanceField.get(word)),
                static_cast<std::uint8_t>(kComputeInstanceField.get(word)),
                static_cast<std::uint16_t>(kGenerationField.get(word)),
                static_cast<std::uint8_t>(kIncarnationField.get(word)),
                static_cast<std::uint16_t>(kCreationField.get(word))};
}

template <class Target>
BasicGpuCall<Target>::BasicGpuCall(nvmlDevice_t device, Accepts accepts) {
  auto handle = decode(device);
  if (handle && handle->kind != HandleKind::kGpu &&
      !(handle->kind == HandleKind::kMigDevice && accepts == Accepts::kMigToo)) {
    handle.reset();
  }
  enter(handle);
}

template <class Target>
BasicGpuCall<Target>::BasicGpuCall(nvmlGpuInstance_t instance) {
  auto handle = decode(instance);
  if (handle && handle->kind != HandleKind::kGpuInstance) handle.reset();
  enter(handle);
}

template <class Target>
BasicGpuCall<Target>::BasicGpuCall(nvmlComputeInstance_t instance) {
  auto handle = decode(instance);
  if (handle && handle->kind != HandleKind::kComputeInstance) handle.reset();
  enter(handle);
}

template <class Target>
BasicGpuCall<Target>::BasicGpuCall(unsigned int index) : index_(index) {
  enter_index();
}

template <class Target>
void BasicGpuCall<Target>::enter(const std::optional<Handle>& handle) {
  index_ = handle ? handle->gpu : static_cast<unsigned int>(kMaxGpus);
  enter_index();
  if (refused_ != NVML_SUCCESS || !guard_) return;
  refused_ = check(*handle);
}

// Suffers the driver's and the GPU's faults, and leaves with the lock held unless the call is refused.
template <class Target>
void BasicGpuCall<Target>::enter_index() {
  refused_ = pass_driver_faults();
  if (refused_ != NVML_SUCCESS) return;
  const StateFile& state = *session().state.load(std::memory_order_acquire);
  bool delayed = false;
  while (true) {
    const std::uint32_t seen = state.changes();
    std::uint32_t delay_us = 0;
    bool hangs = false;
    {
      const ReadGuard machine = state.read();
      refused_ = driver_ready(*machine);
      if (refused_ != NVML_SUCCESS) return;
      if (index_ >= machine->gpu_count) {
        refused_ = NVML_ERROR_INVALID_ARGUMENT;
        return;
      }
      const Faults& faults = machine->gpus[index_].faults;
      hangs = faults.hang != 0;
      delay_us = delayed ? 0 : faults.delay_us;
      if (!hangs && delay_us == 0) {
        if (faults.lost != 0) refused_ = NVML_ERROR_GPU_IS_LOST;
        if (faults.error != 0) refused_ = static_cast<nvmlReturn_t>(faults.error);
        if (refused_ != NVML_SUCCESS) return;
        break;
      }
    }
    if (hangs) {
      state.wait(seen, -1);
    } else {
      usleep(delay_us);
      delayed = true;
    }
  }
  refused_ = lock_and_recheck(state);
}

// Between the look at the faults and this lock, the driver may have gone or the GPU been lost.
template <class Target>
nvmlReturn_t BasicGpuCall<Target>::lock_and_recheck(const StateFile& state) {
  if constexpr (std::is_const_v<Target>) {
    guard_.emplace(state.read());
  } else {
    guard_.emplace(state.edit());
  }
  if (const auto unready = driver_ready(**guard_)) return unready;
  return gpu().faults.lost != 0 ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

template <class Target>
nvmlReturn_t BasicGpuCall<Target>::peer(nvmlDevice_t other, unsigned int* other_index) const {
  const auto handle = decode(other);
  if (!handle || handle->kind != HandleKind::kGpu || handle->gpu >= machine().gpu_count)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (handle->generation != (machine().driver.generation & 0x7fff)) return NVML_ERROR_INVALID_ARGUMENT;
  const Gpu& one = machine().gpus[handle->gpu];
  if (handle->incarnation != (one.incarnation & 0xff) || one.faults.lost != 0) return NVML_ERROR_GPU_IS_LOST;
  *other_index = handle->gpu;
  return NVML_SUCCESS;
}

template <class Target>
nvmlReturn_t BasicGpuCall<Target>::check(const Handle& handle) {
  const Machine& all = **guard_;
  if (handle.generation != (all.driver.generation & 0x7fff)) return NVML_ERROR_INVALID_ARGUMENT;
  const Gpu& one = all.gpus[index_];
  // The card that it meant is no longer there.
  if (handle.incarnation != (one.incarnation & 0xff)) return NVML_ERROR_GPU_IS_LOST;
  if (handle.kind == HandleKind::kGpu) return NVML_SUCCESS;

  if (handle.gpu_instance >= kMaxGpuInstances || handle.compute_instance >= kMaxComputeInstances)
    return NVML_ERROR_INVALID_ARGUMENT;
  const GpuInstance& instance = one.mig.instances[handle.gpu_instance];
  if (instance.used == 0) return NVML_ERROR_INVALID_ARGUMENT;
  std::uint32_t creation = instance.creation;
  if (handle.kind != HandleKind::kGpuInstance) {
    const ComputeInstance& compute = instance.compute[handle.compute_instance];
    if (compute.used == 0) return NVML_ERROR_INVALID_ARGUMENT;
    creation = compute.creation;
    compute_instance_slot_ = handle.compute_instance;
  }
  gpu_instance_slot_ = handle.gpu_instance;
  return handle.creation == (creation & 0xffff) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

template <class Target>
Handle BasicGpuCall<Target>::base_handle(HandleKind kind) const {
  return Handle{kind,
                static_cast<std::uint8_t>(index_),
                0,
                0,
                static_cast<std::uint16_t>(machine().driver.generation & 0x7fff),
                static_cast<std::uint8_t>(gpu().incarnation & 0xff),
                0};
}

template <class Target>
nvmlDevice_t BasicGpuCall<Target>::gpu_handle() const {
  return to_pointer<nvmlDevice_t>(base_handle(HandleKind::kGpu));
}

template <class Target>
nvmlDevice_t BasicGpuCall<Target>::mig_handle(const GpuInstance& instance,
                                              const ComputeInstance& compute) const {
  Handle handle = base_handle(HandleKind::kMigDevice);
  handle.gpu_instance = instance.start;
  handle.compute_instance = static_cast<std::uint8_t>(compute.id);
  handle.creation = static_cast<std::uint16_t>(compute.creation & 0xffff);
  return to_pointer<nvmlDevice_t>(handle);
}

template <class Target>
nvmlGpuInstance_t BasicGpuCall<Target>::gpu_instance_handle(const GpuInstance& instance) const {
  Handle handle = base_handle(HandleKind::kGpuInstance);
  handle.gpu_instance = instance.start;
  handle.creation = static_cast<std::uint16_t>(instance.creation & 0xffff);
  return to_pointer<nvmlGpuInstance_t>(handle);
}

template <class Target>
nvmlComputeInstance_t BasicGpuCall<Target>::compute_instance_handle(const GpuInstance& instance,
                                                                    const ComputeInstance& compute) const {
  Handle handle = base_handle(HandleKind::kComputeInstance);
  handle.gpu_instance = instance.start;
  handle.compute_instance = static_cast<std::uint8_t>(compute.id);
  handle.creation = static_cast<std::uint16_t>(compute.creation & 0xffff);
  return to_pointer<nvmlComputeInstance_t>(handle);
}

template class BasicGpuCall<const Machine>;
template class BasicGpuCall<Machine>;

nvmlDevice_t gpu_handle(const Machine& machine, unsigned int index) {
  return to_pointer<nvmlDevice_t>(Handle{HandleKind::kGpu, static_cast<std::uint8_t>(index), 0, 0,
                                         static_cast<std::uint16_t>(machine.driver.generation & 0x7fff),
                                         static_cast<std::uint8_t>(machine.gpus[index].incarnation & 0xff),
                                         0});
}

nvmlReturn_t put_text(const char* text, char* buffer, unsigned int length) {
  const std::size_t size = std::strlen(text) + 1;
  if (size > length) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(buffer, text, size);
  return NVML_SUCCESS;
}

}  // namespace gpulet::sim

// The way into a call about one GPU: initialised, handle valid, faults of the GPU suffered. What a function
// of the C ABI does after that is to copy numbers out of (or into) the machine, whose lock is held as long as
// the call object lives.
//
//   nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int* minor) {
//     const GpuCall call(device);
//     if (const auto refused = call.refused(minor)) return refused;
//     *minor = call.gpu().minor;
//     return NVML_SUCCESS;
//   }
#pragma once

#include <cstring>
#include <optional>

#include "sim/driver/session.h"

namespace gpulet::sim {

// Handles are opaque to clients and never dereferenced: they are the facts themselves, so that a stale one is
// seen.
enum class HandleKind : std::uint8_t { kGpu = 1, kMigDevice = 2, kGpuInstance = 3, kComputeInstance = 4 };
struct Handle {
  HandleKind kind;
  std::uint8_t gpu;
  std::uint8_t gpu_instance;  // slots
  std::uint8_t compute_instance;
  std::uint16_t generation;  // of the driver, 15 bits
  std::uint8_t incarnation;  // of the card
  std::uint16_t creation;    // of the instance
};
std::uint64_t encode(const Handle& handle);
std::optional<Handle> decode(const void* pointer);

enum class Accepts { kGpuOnly, kMigToo };

template <class Target>
class BasicGpuCall {
 public:
  explicit BasicGpuCall(nvmlDevice_t device, Accepts accepts = Accepts::kGpuOnly);
  explicit BasicGpuCall(nvmlGpuInstance_t instance);
  explicit BasicGpuCall(nvmlComputeInstance_t instance);
  // By index, before there is a handle.
  explicit BasicGpuCall(unsigned int index);

  // The reason to return at once: the call's own, else INVALID_ARGUMENT when a pointer for a result is null.
  template <class... Pointers>
  nvmlReturn_t refused(const Pointers*... results) const {
    if (refused_ != NVML_SUCCESS) return refused_;
    return (... && (results != nullptr)) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
  }

  auto& machine() const { return **guard_; }
  auto& gpu() const { return (*guard_)->gpus[index_]; }
  unsigned int index() const { return index_; }
  bool is_mig() const { return gpu_instance_slot_ >= 0; }
  // Of a MIG device or instance handle.
  auto& gpu_instance() const { return gpu().mig.instances[gpu_instance_slot_]; }
  auto& compute_instance() const { return gpu_instance().compute[compute_instance_slot_]; }
  auto& profile() const { return gpu().mig.profiles[gpu_instance().profile]; }

  // The index of another GPU that the call is about too. Its handle is checked under the same lock.
  nvmlReturn_t peer(nvmlDevice_t other, unsigned int* other_index) const;

  nvmlDevice_t gpu_handle() const;
  nvmlDevice_t mig_handle(const GpuInstance& instance, const ComputeInstance& compute) const;
  nvmlGpuInstance_t gpu_instance_handle(const GpuInstance& instance) const;
  nvmlComputeInstance_t compute_instance_handle(const GpuInstance& instance,
                                                const ComputeInstance& compute) const;

 private:
  void enter(const std::optional<Handle>& handle);
  void enter_index();
  nvmlReturn_t lock_and_recheck(const StateFile& state);
  nvmlReturn_t check(const Handle& handle);
  Handle base_handle(HandleKind kind) const;

  std::optional<Guard<Target>> guard_;
  nvmlReturn_t refused_ = NVML_ERROR_INVALID_ARGUMENT;
  unsigned int index_ = 0;
  int gpu_instance_slot_ = -1;
  int compute_instance_slot_ = -1;
};

using GpuCall = BasicGpuCall<const Machine>;
using GpuEdit = BasicGpuCall<Machine>;

// The handle of a GPU by its index, made while the machine is locked.
nvmlDevice_t gpu_handle(const Machine& machine, unsigned int index);

// Copies a text and its end. INSUFFICIENT_SIZE when it does not fit.
nvmlReturn_t put_text(const char* text, char* buffer, unsigned int length);

// Copies a number that some GPUs do not report.
template <class Number>
nvmlReturn_t put_reported(std::int32_t value, Number* result) {
  if (value == kNotReported) return NVML_ERROR_NOT_SUPPORTED;
  *result = static_cast<Number>(value);
  return NVML_SUCCESS;
}

// The whole of a call that copies one number: `read(gpu)` gives it.
template <class Number, class Read>
nvmlReturn_t get(nvmlDevice_t device, Number* result, Read read) {
  const GpuCall call(device);
  if (const auto refused = call.refused(result)) return refused;
  *result = static_cast<Number>(read(call.gpu()));
  return NVML_SUCCESS;
}

// The same for a number that may be kNotReported.
template <class Number, class Read>
nvmlReturn_t get_reported(nvmlDevice_t device, Number* result, Read read) {
  const GpuCall call(device);
  if (const auto refused = call.refused(result)) return refused;
  return put_reported(read(call.gpu()), result);
}

// The same for a text; an empty one is one that the card does not have.
template <class Read>
nvmlReturn_t get_text(nvmlDevice_t device, char* buffer, unsigned int length, Read read) {
  const GpuCall call(device);
  if (const auto refused = call.refused(buffer)) return refused;
  const char* text = read(call.gpu());
  return *text == '\0' ? NVML_ERROR_NOT_SUPPORTED : put_text(text, buffer, length);
}

// A versioned struct names its size and version in its first member.
template <class Struct>
constexpr unsigned int struct_version(unsigned int version) {
  return static_cast<unsigned int>(sizeof(Struct)) | version << 24U;
}

}  // namespace gpulet::sim

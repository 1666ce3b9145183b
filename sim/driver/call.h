// Entry of a call about one GPU: checks initialisation and the handle, and applies the GPU's faults. A
// function of the C ABI then copies values from or to the machine, which stays locked while the call object
// lives.
//
//   nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int* minor) {
//     const GpuCall call(device);
//     if (const auto error = call.entry_error(minor)) return error;
//     *minor = call.gpu_state().minor;
//     return NVML_SUCCESS;
//   }
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sim/state/clients.h"
#include "sim/state/driver_branch.h"
#include "sim/state/state.h"

// nvml.h with every declared function exported and none redirected to a newer version: this library defines
// all of them.
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

namespace gpulet::sim {

// State of one client process: NVML initialisation, driver generation, the machine's mapping.
struct Session {
  std::mutex mutex;                        // for nvmlInit and nvmlShutdown only
  std::atomic<StateFile*> state{nullptr};  // the newest mapping
  // All mappings. None is unmapped, because a call on another thread may still sleep in it.
  std::vector<std::unique_ptr<StateFile>> mappings;
  std::atomic<std::uint32_t> users{0};       // nvmlInit minus nvmlShutdown
  std::atomic<std::uint32_t> generation{0};  // the driver's at initialisation
  // Bit per GPU index: this process has no device node for it. A container sees only its own GPUs.
  std::atomic<std::uint64_t> hidden{0};
  // Rights at initialisation, see sim/driver/rights.h.
  std::atomic<bool> monitors_mig{false};
  std::atomic<bool> configures_mig{false};
  std::atomic<bool> is_owner{false};
  std::atomic<bool> has_nodes{false};
  std::uint64_t device = 0;  // of the mapped file, to detect a replacement
  std::uint64_t inode = 0;
  std::optional<ClientEntry> entry;  // while NVML is initialised; guarded by the machine's lock
};

// Returns the session, which is never destroyed.
Session& session();

inline bool is_hidden(std::uint32_t gpu) { return (session().hidden.load() >> gpu & 1) != 0; }
// Returns the index of the `n`th GPU that this process sees; gpu_count if there is none.
std::uint32_t nth_visible(const Machine& machine, std::uint32_t n);

// As check_unused(), for clients other than this process. Precondition: `machine` is locked.
Status check_unused_by_others(const Machine& machine, unsigned int gpu);

// Returns NVML_SUCCESS if a call may proceed, else NVML_ERROR_UNINITIALIZED or NVML_ERROR_DRIVER_NOT_LOADED.
nvmlReturn_t driver_ready(const Machine& machine);

// The file of the machine: GPULET_SIM_STATE, else in the nearest directory above this library; "" without
// one.
std::string machine_state_path();

// Sleeps while the whole driver hangs, then for its delay, without a lock.
void wait_out_hang_and_delay(const StateFile& state);
// Sleeps while the whole driver hangs, then for its delay, without a lock. Returns NVML_ERROR_UNINITIALIZED
// if the session has no machine.
nvmlReturn_t wait_out_driver_faults();

// Both of the above, for calls about no GPU.
nvmlReturn_t enter_driver();

// The answer that `gpulet-sim answer` has set for this function and the GPU of `handle` (a device, a GPU
// instance or a compute instance; null for calls about no GPU); NVML_SUCCESS without one, or while the driver
// is away.
nvmlReturn_t configured_answer(const char* function, const void* handle);

// Handles are opaque to clients and never dereferenced: they encode indexes and generations, so that a stale
// one is detected.
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
std::uint64_t encode_handle(const Handle& handle);
std::optional<Handle> decode_handle(const void* pointer);

enum class Accepts { kGpuOnly, kGpuOrMig };

template <class Target>
class BasicGpuCall {
 public:
  explicit BasicGpuCall(nvmlDevice_t device, Accepts accepts = Accepts::kGpuOnly);
  explicit BasicGpuCall(nvmlGpuInstance_t instance);
  explicit BasicGpuCall(nvmlComputeInstance_t instance);
  // Calls by index, for lookups.
  explicit BasicGpuCall(unsigned int index);

  // Returns the error to return immediately: the call's own, else INVALID_ARGUMENT for a null result pointer.
  template <class... Pointers>
  nvmlReturn_t entry_error(const Pointers*... results) const {
    if (entry_error_ != NVML_SUCCESS) return entry_error_;
    return (... && (results != nullptr)) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
  }

  auto& machine() const { return **guard_; }
  auto& gpu_state() const { return (*guard_)->gpus[index_]; }
  unsigned int gpu_index() const { return index_; }
  bool is_mig() const { return gpu_instance_slot_ >= 0; }
  // Only for MIG device and instance handles.
  auto& gpu_instance() const { return gpu_state().mig.instances[gpu_instance_slot_]; }
  auto& compute_instance() const { return gpu_instance().compute[compute_instance_slot_]; }
  auto& mig_profile() const { return gpu_state().mig.profiles[gpu_instance().profile]; }

  // Returns the index of a second GPU. Its handle is checked under the same lock.
  nvmlReturn_t peer_call(nvmlDevice_t other, unsigned int* other_index) const;

  nvmlDevice_t gpu_handle() const;
  nvmlDevice_t mig_handle(const GpuInstance& instance, const ComputeInstance& compute) const;
  nvmlGpuInstance_t gpu_instance_handle(const GpuInstance& instance) const;
  nvmlComputeInstance_t compute_instance_handle(const GpuInstance& instance,
                                                const ComputeInstance& compute) const;

 private:
  void enter(const std::optional<Handle>& handle);
  void enter_index();
  nvmlReturn_t lock_and_recheck(const StateFile& state);
  nvmlReturn_t check_handle(const Handle& handle);
  Handle base_handle(HandleKind kind) const;

  std::optional<Guard<Target>> guard_;
  nvmlReturn_t entry_error_ = NVML_ERROR_INVALID_ARGUMENT;
  unsigned int index_ = 0;
  int gpu_instance_slot_ = -1;
  int compute_instance_slot_ = -1;
};

using GpuCall = BasicGpuCall<const Machine>;  // a call that changes the GPU is a GpuEdit: rights.h

// Returns the handle of a GPU by index. Precondition: the machine is locked.
nvmlDevice_t gpu_handle(const Machine& machine, unsigned int index);

// Copies a NUL-terminated string. INSUFFICIENT_SIZE if it does not fit.
nvmlReturn_t put_text(const char* text, char* buffer, unsigned int length);

// Copies a value that some GPUs do not report.
template <class Number>
nvmlReturn_t put_reported(std::int32_t value, Number* result) {
  if (value == kNotReported) return NVML_ERROR_NOT_SUPPORTED;
  *result = static_cast<Number>(value);
  return NVML_SUCCESS;
}

// Implements a call that copies one value, `read(gpu)`.
template <class Number, class Read>
nvmlReturn_t get(nvmlDevice_t device, Number* result, Read read) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(result)) return error;
  *result = static_cast<Number>(read(call.gpu_state()));
  return NVML_SUCCESS;
}

// The same for a value that may be kNotReported.
template <class Number, class Read>
nvmlReturn_t get_reported(nvmlDevice_t device, Number* result, Read read) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(result)) return error;
  return put_reported(read(call.gpu_state()), result);
}

// The same for a string; the card does not have an empty one.
template <class Read>
nvmlReturn_t get_text(nvmlDevice_t device, char* buffer, unsigned int length, Read read) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(buffer)) return error;
  const char* text = read(call.gpu_state());
  return *text == '\0' ? NVML_ERROR_NOT_SUPPORTED : put_text(text, buffer, length);
}

// Returns the first member of a versioned struct: size and version.
template <class Struct>
constexpr unsigned int struct_version(unsigned int version) {
  return static_cast<unsigned int>(sizeof(Struct)) | version << 24U;
}

// Sum of ECC counters. `type` and `counter` as nvmlMemoryErrorType_t and nvmlEccCounterType_t.
std::uint64_t ecc_total(const Gpu& gpu, unsigned int type, unsigned int counter);
std::uint32_t retired_page_count(const Gpu& gpu, std::uint32_t cause);

std::uint32_t link_count(const Gpu& gpu);
// NVML_ERROR_NOT_SUPPORTED without NVLink, INVALID_ARGUMENT beyond the last link.
nvmlReturn_t find_link(const Gpu& gpu, unsigned int link, const NvLink** found);

// Fills a PCI address as NVML writes it.
void fill_pci(const PciAddress& address, std::uint32_t device_id, std::uint32_t subsystem_id,
              nvmlPciInfo_t* pci);

}  // namespace gpulet::sim

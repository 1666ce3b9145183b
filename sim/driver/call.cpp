// nvmlInit and nvmlShutdown. The library finds the machine's file by GPULET_SIM_STATE, else as
// run/gpulet-sim/state in the nearest directory above the library: the driver root, or "/" in a container.
#include "sim/driver/call.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>

#include "sim/driver/process_end.h"
#include "sim/driver/rights.h"

namespace gpulet::sim {
namespace {

std::string state_above_library() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&nvmlInit_v2), &info) == 0 || info.dli_fname == nullptr) return {};
  char resolved[PATH_MAX];
  if (realpath(info.dli_fname, resolved) == nullptr) return {};
  std::string directory(resolved);
  while (true) {
    const auto slash = directory.rfind('/');
    if (slash == std::string::npos) return {};
    directory.resize(slash);
    std::string candidate = directory + "/" + std::string(kStatePathInRoot);
    if (access(candidate.c_str(), F_OK) == 0) return candidate;
  }
}

// Maps the machine's file unless it is mapped already. Precondition: the session's mutex is held.
StateFile* find_state(Session& current) {
  const std::string path = machine_state_path();
  struct stat info{};
  if (path.empty() || stat(path.c_str(), &info) != 0) return nullptr;
  StateFile* mapped = current.state.load(std::memory_order_acquire);
  if (mapped != nullptr && current.device == info.st_dev && current.inode == info.st_ino) return mapped;
  auto opened = StateFile::open_state(path);
  if (!opened) return nullptr;
  current.mappings.push_back(std::make_unique<StateFile>(std::move(*opened)));
  StateFile* fresh = current.mappings.back().get();
  current.device = info.st_dev;
  current.inode = info.st_ino;
  current.state.store(fresh, std::memory_order_release);
  return fresh;
}

void store_rights(Session& current, const NodeAccess& access) {
  current.hidden.store(access.hidden_gpus);
  current.is_owner.store(access.is_owner);
  current.has_nodes.store(access.has_nodes);
  current.monitors_mig.store(access.monitor || is_administrator());
  current.configures_mig.store(access.config);
}

nvmlReturn_t initialise(bool attaches_gpus) {
  Session& current = session();
  const StateFile* state = nullptr;
  {
    const std::lock_guard lock(current.mutex);
    state = find_state(current);
  }
  if (state == nullptr) return NVML_ERROR_DRIVER_NOT_LOADED;
  wait_out_hang_and_delay(*state);
  const NodeAccess access = open_device_nodes(*state);
  if (access.control != NVML_SUCCESS) return access.control;

  const std::lock_guard lock(current.mutex);
  const EditGuard machine = state->lock_for_edit();
  if (machine->driver.loaded == 0) return NVML_ERROR_DRIVER_NOT_LOADED;
  if (machine->driver.init_error != 0) return static_cast<nvmlReturn_t>(machine->driver.init_error);
  const bool stale = current.generation.load() != machine->driver.generation;
  // After a driver reload, initialisation restarts with one user.
  current.users.store(stale ? 1 : current.users.load() + 1);
  current.generation.store(machine->driver.generation);
  store_rights(current, access);
  if (stale || !current.entry) {
    current.entry.reset();
    auto added = ClientEntry::add_client(*state, *machine, attaches_gpus ? ~access.hidden_gpus : 0);
    if (added) current.entry = std::move(*added);
  }
  return NVML_SUCCESS;
}

}  // namespace

std::string machine_state_path() {
  if (const char* named = std::getenv("GPULET_SIM_STATE"); named != nullptr && *named != '\0') return named;
  return state_above_library();
}

void wait_out_hang_and_delay(const StateFile& state) {
  std::uint32_t delay_us = 0;
  while (true) {
    const std::uint32_t seen = state.change_count();
    {
      const ReadGuard machine = state.lock_for_read();
      if (machine->driver.hang == 0) {
        delay_us = machine->driver.delay_us;
        break;
      }
    }
    state.wait_for_change(seen, -1);
  }
  if (delay_us != 0) usleep(delay_us);
}

Session& session() {
  static Session* const kSession = new Session;
  return *kSession;
}

std::uint32_t nth_visible(const Machine& machine, std::uint32_t n) {
  std::uint32_t gpu = 0;
  for (; gpu < machine.gpu_count; ++gpu) {
    if (!is_hidden(gpu) && n-- == 0) break;
  }
  return gpu;
}

Status check_unused_by_others(const Machine& machine, unsigned int gpu) {
  if (!session().entry) return {};
  return check_unused(machine, session().entry->descriptor(), gpu);
}

nvmlReturn_t driver_ready(const Machine& machine) {
  if (machine.driver.loaded == 0) return NVML_ERROR_DRIVER_NOT_LOADED;
  if (session().users.load() == 0 || session().generation.load() != machine.driver.generation)
    return NVML_ERROR_UNINITIALIZED;
  return NVML_SUCCESS;
}

nvmlReturn_t wait_out_driver_faults() {
  const StateFile* state = session().state.load(std::memory_order_acquire);
  if (state == nullptr || session().users.load() == 0) return NVML_ERROR_UNINITIALIZED;
  wait_out_hang_and_delay(*state);
  crash_if_destroyed();
  return NVML_SUCCESS;
}

namespace {

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> prefixes) {
  return std::ranges::any_of(prefixes, [&](auto prefix) { return text.starts_with(prefix); });
}

// Of kAnyOptionalCall.
bool is_optional_call(std::string_view function) {
  return !starts_with_any(function, {"nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount",
                                     "nvmlDeviceGetHandleBy", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo",
                                     "nvmlSystemGetDriverVersion", "nvmlDeviceGetMigDeviceHandleByIndex"});
}

}  // namespace

nvmlReturn_t configured_answer(const char* function, const void* handle) {
  const StateFile* state = session().state.load(std::memory_order_acquire);
  if (state == nullptr || session().users.load() == 0) return NVML_SUCCESS;
  const ReadGuard machine = state->lock_for_read();
  if (machine->answer_count == 0 || driver_ready(*machine) != NVML_SUCCESS) return NVML_SUCCESS;
  const auto decoded = decode_handle(handle);
  for (std::uint32_t i = 0; i < machine->answer_count; ++i) {
    const Answer& answer = machine->answers[i];
    const bool of_gpu = answer.gpu == kMaxGpus || (decoded && decoded->gpu == answer.gpu);
    const bool of_call = answer.call == kAnyOptionalCall ? is_optional_call(function)
                                                         : std::string_view(answer.call) == function;
    if (of_gpu && of_call) return static_cast<nvmlReturn_t>(answer.nvml_return);
  }
  return NVML_SUCCESS;
}

nvmlReturn_t enter_driver() {
  if (const nvmlReturn_t error = wait_out_driver_faults(); error != NVML_SUCCESS) return error;
  return driver_ready(*session().state.load(std::memory_order_acquire)->lock_for_read());
}

}  // namespace gpulet::sim

using namespace gpulet::sim;

nvmlReturn_t nvmlInit_v2(void) { return initialise(true); }
nvmlReturn_t nvmlInit(void) { return initialise(true); }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
  if ((flags & ~static_cast<unsigned>(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH)) != 0)
    return NVML_ERROR_INVALID_ARGUMENT;
  return initialise((flags & NVML_INIT_FLAG_NO_ATTACH) == 0);
}

nvmlReturn_t nvmlShutdown(void) {
  linger_in_shutdown();
  crash_if_destroyed();
  const std::lock_guard lock(session().mutex);
  if (session().users.load() == 0) return NVML_ERROR_UNINITIALIZED;
  const ReadGuard machine = session().state.load(std::memory_order_acquire)->lock_for_read();
  if (session().users.fetch_sub(1) == 1) session().entry.reset();
  return NVML_SUCCESS;
}

namespace gpulet::sim {
namespace {

constexpr std::uint64_t kTag = 0xa7;

// A bit field of a handle.
struct HandleField {
  unsigned shift;
  unsigned bits;
  std::uint64_t shift_value(std::uint64_t value) const { return (value & ((1ULL << bits) - 1)) << shift; }
  std::uint64_t extract_value(std::uint64_t word) const { return word >> shift & ((1ULL << bits) - 1); }
};
constexpr HandleField kTagField{56, 8};
constexpr HandleField kKindField{53, 3};
constexpr HandleField kGpuField{47, 6};
constexpr HandleField kGpuInstanceField{43, 4};
constexpr HandleField kComputeInstanceField{39, 4};
constexpr HandleField kGenerationField{24, 15};
constexpr HandleField kIncarnationField{16, 8};
constexpr HandleField kCreationField{0, 16};
static_assert(kMaxGpus <= 64 && kMaxGpuInstances <= 16 && kMaxComputeInstances <= 16);

template <class Pointer>
Pointer to_pointer(const Handle& handle) {
  return reinterpret_cast<Pointer>(encode_handle(handle));
}

}  // namespace

std::uint64_t encode_handle(const Handle& handle) {
  return kTagField.shift_value(kTag) | kKindField.shift_value(static_cast<std::uint64_t>(handle.kind)) |
         kGpuField.shift_value(handle.gpu) | kGpuInstanceField.shift_value(handle.gpu_instance) |
         kComputeInstanceField.shift_value(handle.compute_instance) |
         kGenerationField.shift_value(handle.generation) | kIncarnationField.shift_value(handle.incarnation) |
         kCreationField.shift_value(handle.creation);
}

std::optional<Handle> decode_handle(const void* pointer) {
  const auto word = reinterpret_cast<std::uint64_t>(pointer);
  if (kTagField.extract_value(word) != kTag) return std::nullopt;
  const std::uint64_t kind = kKindField.extract_value(word);
  if (kind < 1 || kind > 4) return std::nullopt;
  return Handle{static_cast<HandleKind>(kind),
                static_cast<std::uint8_t>(kGpuField.extract_value(word)),
                static_cast<std::uint8_t>(kGpuInstanceField.extract_value(word)),
                static_cast<std::uint8_t>(kComputeInstanceField.extract_value(word)),
                static_cast<std::uint16_t>(kGenerationField.extract_value(word)),
                static_cast<std::uint8_t>(kIncarnationField.extract_value(word)),
                static_cast<std::uint16_t>(kCreationField.extract_value(word))};
}

template <class Target>
BasicGpuCall<Target>::BasicGpuCall(nvmlDevice_t device, Accepts accepts) {
  auto handle = decode_handle(device);
  if (handle && handle->kind != HandleKind::kGpu &&
      !(handle->kind == HandleKind::kMigDevice && accepts == Accepts::kGpuOrMig)) {
    handle.reset();
  }
  enter(handle);
}

template <class Target>
BasicGpuCall<Target>::BasicGpuCall(nvmlGpuInstance_t instance) {
  auto handle = decode_handle(instance);
  if (handle && handle->kind != HandleKind::kGpuInstance) handle.reset();
  enter(handle);
}

template <class Target>
BasicGpuCall<Target>::BasicGpuCall(nvmlComputeInstance_t instance) {
  auto handle = decode_handle(instance);
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
  if (entry_error_ != NVML_SUCCESS || !guard_) return;
  entry_error_ = check_handle(*handle);
}

// Applies the driver's and the GPU's faults. Holds the lock on return unless the call is refused.
template <class Target>
void BasicGpuCall<Target>::enter_index() {
  entry_error_ = wait_out_driver_faults();
  if (entry_error_ != NVML_SUCCESS) return;
  const StateFile& state = *session().state.load(std::memory_order_acquire);
  bool delayed = false;
  while (true) {
    const std::uint32_t seen = state.change_count();
    std::uint32_t delay_us = 0;
    bool hangs = false;
    {
      const ReadGuard machine = state.lock_for_read();
      entry_error_ = driver_ready(*machine);
      if (entry_error_ != NVML_SUCCESS) return;
      if (index_ >= machine->gpu_count) {
        entry_error_ = NVML_ERROR_INVALID_ARGUMENT;
        return;
      }
      const Faults& faults = machine->gpus[index_].faults;
      hangs = faults.hang != 0;
      delay_us = delayed ? 0 : faults.delay_us;
      if (!hangs && delay_us == 0) {
        if (faults.lost != 0) entry_error_ = NVML_ERROR_GPU_IS_LOST;
        if (faults.error != 0) entry_error_ = static_cast<nvmlReturn_t>(faults.error);
        if (entry_error_ != NVML_SUCCESS) return;
        break;
      }
    }
    if (hangs) {
      state.wait_for_change(seen, -1);
    } else {
      usleep(delay_us);
      delayed = true;
    }
  }
  entry_error_ = lock_and_recheck(state);
}

// The driver or the GPU may have gone since the faults were read.
template <class Target>
nvmlReturn_t BasicGpuCall<Target>::lock_and_recheck(const StateFile& state) {
  if constexpr (std::is_const_v<Target>) {
    guard_.emplace(state.lock_for_read());
  } else {
    guard_.emplace(state.lock_for_edit());
  }
  if (const auto unready = driver_ready(**guard_)) return unready;
  return gpu_state().faults.lost != 0 ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

template <class Target>
nvmlReturn_t BasicGpuCall<Target>::peer_call(nvmlDevice_t other, unsigned int* other_index) const {
  const auto handle = decode_handle(other);
  if (!handle || handle->kind != HandleKind::kGpu || handle->gpu >= machine().gpu_count)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (handle->generation != (machine().driver.generation & 0x7fff)) return NVML_ERROR_INVALID_ARGUMENT;
  const Gpu& one = machine().gpus[handle->gpu];
  if (handle->incarnation != (one.incarnation & 0xff) || one.faults.lost != 0) return NVML_ERROR_GPU_IS_LOST;
  *other_index = handle->gpu;
  return NVML_SUCCESS;
}

template <class Target>
nvmlReturn_t BasicGpuCall<Target>::check_handle(const Handle& handle) {
  const Machine& all = **guard_;
  if (handle.generation != (all.driver.generation & 0x7fff)) return NVML_ERROR_INVALID_ARGUMENT;
  const Gpu& one = all.gpus[index_];
  // The card was replaced.
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
                static_cast<std::uint8_t>(gpu_state().incarnation & 0xff),
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

std::uint64_t ecc_total(const Gpu& gpu, unsigned int type, unsigned int counter) {
  const auto& counts = gpu.ecc[type][counter].by_location;
  return std::accumulate(std::begin(counts), std::end(counts), std::uint64_t{0});
}

std::uint32_t retired_page_count(const Gpu& gpu, std::uint32_t cause) {
  const auto* end = gpu.retired_pages + gpu.retired_page_count;
  return static_cast<std::uint32_t>(std::count_if(
      gpu.retired_pages, end, [cause](const RetiredPage& page) { return page.cause == cause; }));
}

void fill_pci(const PciAddress& address, std::uint32_t device_id, std::uint32_t subsystem_id,
              nvmlPciInfo_t* pci) {
  *pci = {};
  pci->domain = address.domain;
  pci->bus = address.bus;
  pci->device = address.device;
  pci->pciDeviceId = device_id;
  pci->pciSubSystemId = subsystem_id;
  // The legacy form has four digits of the domain.
  std::snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.%X", address.domain & 0xffffU,
                address.bus, address.device, address.function & 0xfU);
  std::snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.%X", address.domain, address.bus,
                address.device, address.function);
}

std::uint32_t link_count(const Gpu& gpu) {
  return static_cast<std::uint32_t>(std::count_if(std::begin(gpu.links), std::end(gpu.links),
                                                  [](const NvLink& link) { return link.present != 0; }));
}

nvmlReturn_t find_link(const Gpu& gpu, unsigned int link, const NvLink** found) {
  if (link >= kMaxLinks) return NVML_ERROR_INVALID_ARGUMENT;
  if (gpu.links[link].present == 0)
    return link_count(gpu) == 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
  *found = &gpu.links[link];
  return NVML_SUCCESS;
}

}  // namespace gpulet::sim

// The shared file: creation, mapping, lock and the futex of its changes. The mutex is robust and the futex is
// keyed by the file, so that both work across containers with their own process ids.
#include "sim/state/state.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <new>

#include "base/file.h"
#include "base/text.h"
#include "sim/state/counters.h"

namespace gpulet::sim {
namespace {

long futex(std::atomic<std::uint32_t>* word, int operation, std::uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

void lock_mutex(Shared* shared) {
  // A process died with the lock held. At most one plain value is half written, so continue.
  if (pthread_mutex_lock(&shared->mutex) == EOWNERDEAD) pthread_mutex_consistent(&shared->mutex);
}

Status initialise_mutex(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int error = pthread_mutex_init(&mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  if (error != 0) return fail(errno_error("make a shared mutex", error));
  return {};
}

Result<Shared*> map_file(int fd, const std::string& path) {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return fail(errno_error("map", errno, path));
  return static_cast<Shared*>(memory);
}

// Unloads the driver for processes that map the file at `path`. Returns the generation of the next state.
std::uint32_t retire_file(const std::string& path) {
  auto old = StateFile::open_state(path);
  if (!old) return 1;
  EditGuard machine = old->lock_for_edit();
  unload_driver(*machine);
  return machine->driver.generation + 1;
}

}  // namespace

template <class Target>
Guard<Target>::Guard(Shared* shared) : shared_(shared) {
  lock_mutex(shared_);
}

template <class Target>
Guard<Target>::~Guard() {
  if (shared_ == nullptr) return;
  constexpr bool kEdits = !std::is_const_v<Target>;
  if (kEdits) shared_->changes.fetch_add(1, std::memory_order_seq_cst);
  pthread_mutex_unlock(&shared_->mutex);
  if (kEdits && shared_->waiters.load(std::memory_order_seq_cst) != 0) {
    futex(&shared_->changes, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

template class Guard<Machine>;
template class Guard<const Machine>;

StateFile& StateFile::operator=(StateFile&& other) noexcept {
  std::swap(shared_, other.shared_);
  std::swap(path_, other.path_);
  return *this;
}

StateFile::~StateFile() {
  if (shared_ != nullptr) munmap(shared_, sizeof(Shared));
}

Result<StateFile> StateFile::create_state(const std::string& path, const Machine& initial) {
  const auto slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0) GPULET_TRY(make_directories(path.substr(0, slash)));
  const std::uint32_t generation = std::max(retire_file(path), initial.driver.generation);

  const std::string fresh = path + ".new";
  unlink(fresh.c_str());
  FileDescriptor fd(::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.is_open()) return fail(errno_error("create", errno, fresh));
  if (ftruncate(fd.get(), sizeof(Shared)) != 0) return fail(errno_error("size", errno, fresh));
  GPULET_TRY_ASSIGN(Shared * shared, map_file(fd.get(), fresh));
  StateFile file;
  file.shared_ = shared;
  file.path_ = path;

  new (&shared->changes) std::atomic<std::uint32_t>(0);
  new (&shared->waiters) std::atomic<std::uint32_t>(0);
  GPULET_TRY(initialise_mutex(shared->mutex));
  std::memcpy(static_cast<void*>(&shared->machine), &initial, sizeof(Machine));
  shared->machine.driver.generation = generation;
  for (std::uint32_t i = 0; i < initial.gpu_count; ++i) {
    Gpu& gpu = shared->machine.gpus[i];
    if (gpu.energy_since_ns == 0) gpu.energy_since_ns = monotonic_ns();
  }
  shared->layout_version = kLayoutVersion;
  shared->bytes = sizeof(Shared);
  shared->magic = kMagic;
  if (fchmod(fd.get(), 0666) != 0) return fail(errno_error("chmod", errno, fresh));
  if (rename(fresh.c_str(), path.c_str()) != 0) return fail(errno_error("rename", errno, path));
  return file;
}

Result<StateFile> StateFile::open_state(const std::string& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.is_open()) return fail(errno_error("open", errno, path));
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return fail(errno_error("stat", errno, path));
  if (info.st_size != static_cast<off_t>(sizeof(Shared))) {
    return fail(Code::kFailedPrecondition, "not a state of this build of the simulated driver", path);
  }
  GPULET_TRY_ASSIGN(Shared * shared, map_file(fd.get(), path));
  StateFile file;
  file.shared_ = shared;
  file.path_ = path;
  if (shared->magic != kMagic || shared->layout_version != kLayoutVersion ||
      shared->bytes != sizeof(Shared)) {
    return fail(Code::kFailedPrecondition, "not a state of this build of the simulated driver", path);
  }
  return file;
}

ReadGuard StateFile::lock_for_read() const {
  ReadGuard guard(shared_);
  update_cuda_clients(shared_->machine, path_);
  return guard;
}

EditGuard StateFile::lock_for_edit() const {
  EditGuard guard(shared_);
  update_cuda_clients(shared_->machine, path_);
  return guard;
}

void StateFile::wait_for_change(std::uint32_t seen, std::int64_t timeout_ms) const {
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(timeout_ms / 1000);
  timeout.tv_nsec = static_cast<long>(timeout_ms % 1000) * 1'000'000;
  shared_->waiters.fetch_add(1, std::memory_order_seq_cst);
  if (change_count() == seen) futex(&shared_->changes, FUTEX_WAIT, seen, timeout_ms < 0 ? nullptr : &timeout);
  shared_->waiters.fetch_sub(1, std::memory_order_seq_cst);
}

// Operations on the machine: events, resets, driver reloads, replaced cards, processes.

namespace {

// FNV-1a with one round of mixing, so that similar seeds give different results.
std::uint64_t hash_seed(std::string_view text, std::uint64_t basis) {
  std::uint64_t value = fnv1a_64(text, basis);
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

void clear_volatile_errors(Gpu& gpu) {
  gpu.ecc[0][0] = {};
  gpu.ecc[1][0] = {};
}

// Resets counters that start at driver load or GPU reset.
void restart_counters(Gpu& gpu) {
  clear_volatile_errors(gpu);
  gpu.pcie_replays = 0;
  gpu.violation_power_ns = gpu.violation_thermal_ns = 0;
  gpu.energy_mj = 0;
  gpu.energy_since_ns = monotonic_ns();
  for (NvLink& link : gpu.links) {
    link.replay_errors = link.recovery_errors = link.crc_flit_errors = link.crc_data_errors =
        link.ecc_errors = 0;
    link.transmitted_kib = link.received_kib = 0;
  }
  gpu.links_since_ns = monotonic_ns();
}

// Neither survives a reset or a load of the driver. Source: nvml.h, nvmlDeviceSetPowerManagementLimit and
// nvmlDeviceSetGpuLockedClocks.
void restore_power_settings(Gpu& gpu) {
  gpu.power_limit_mw = gpu.power_limit_default_mw;
  for (auto* lock : {&gpu.clocks.locked_graphics, &gpu.clocks.locked_memory}) (*lock)[0] = (*lock)[1] = 0;
  update_current_clocks(gpu);
}

// NVML_GPU_FABRIC_STATE_COMPLETED, NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY.
constexpr std::uint8_t kFabricHealthy = 1;

void join_fabric(Fabric& fabric) {
  if (fabric.state == 0) return;
  fabric.state = kFabricCompleted;
  fabric.status = 0;
  fabric.health_mask = 0;
  fabric.health_summary = kFabricHealthy;
}

void clear_instances(Mig& mig) {
  for (GpuInstance& instance : mig.instances) instance = {};
}

void train_links(Gpu& gpu) {
  for (NvLink& link : gpu.links) link.active = link.present;
}

// Slowdowns: hardware, software thermal, hardware thermal, power brake.
constexpr std::uint64_t kSlowdownReasons = 0x8 | 0x20 | 0x40 | 0x80;
constexpr std::int32_t kCoolCelsius = 34;

}  // namespace

std::string make_uuid(std::string_view prefix, std::string_view seed) {
  const std::uint64_t high = hash_seed(seed, 0xcbf29ce484222325ULL);
  const std::uint64_t low = hash_seed(seed, 0x84222325cbf29ce4ULL);
  char text[40];
  std::snprintf(text, sizeof(text), "%08x-%04x-4%03x-%04x-%012llx", static_cast<unsigned>(high >> 32),
                static_cast<unsigned>(high >> 16 & 0xffff), static_cast<unsigned>(high & 0xfff),
                static_cast<unsigned>((low >> 48 & 0x3fff) | 0x8000),
                static_cast<unsigned long long>(low & 0xffffffffffffULL));
  return std::string(prefix) + text;
}

void post_event(Machine& machine, std::uint32_t gpu, EventType type, std::uint64_t data,
                std::uint32_t gpu_instance, std::uint32_t compute_instance) {
  const std::uint64_t sequence = ++machine.last_event;
  machine.events[sequence % kMaxEvents] = Event{sequence, type, data, gpu, gpu_instance, compute_instance, 0};
}

void unload_driver(Machine& machine) {
  machine.driver.loaded = 0;
  ++machine.driver.generation;
}

void load_driver(Machine& machine) {
  if (machine.driver.loaded == 0) {
    for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
      Gpu& gpu = machine.gpus[i];
      restart_counters(gpu);
      restore_power_settings(gpu);
      // Instances exist in the driver only. Since Hopper so does the mode; Ampere has it on the card, where a
      // pending mode waits for a reset: loading the driver is none. Source: MIG User Guide, "Deployment
      // Considerations" (persistent across reboots on Ampere) and "Enable MIG Mode".
      clear_instances(gpu.mig);
      if (gpu.mig.mode_needs_reset == 0) gpu.mig.current = gpu.mig.pending = 0;
    }
    clear_memory_limits(machine);
    remove_cuda_processes(machine);
  }
  machine.driver.loaded = 1;
}

Status reset_gpu(Machine& machine, std::uint32_t index) {
  if (index >= machine.gpu_count) return fail(Code::kNotFound, "no GPU with this index");
  Gpu& gpu = machine.gpus[index];
  if (gpu.faults.lost != 0) return fail(Code::kDeviceLost, "a lost GPU cannot be reset", gpu.uuid);
  for (const Process& process : gpu.processes) {
    if (process.pid != 0)
      return fail(Code::kFailedPrecondition, "in use by process " + std::to_string(process.pid), gpu.uuid);
  }
  reset_idle_gpu(gpu);
  return {};
}

void reset_idle_gpu(Gpu& gpu) {
  restart_counters(gpu);
  restore_power_settings(gpu);
  clear_instances(gpu.mig);
  gpu.mig.current = gpu.mig.pending;
  gpu.ecc_current = gpu.ecc_pending;
  gpu.remapped_rows.pending = 0;
  gpu.retired_pages_pending = 0;
  gpu.recovery_action = 0;
  train_links(gpu);
}

namespace {

bool are_linked(const Gpu& a, const Gpu& b) {
  const auto is_up = [](const NvLink& link) { return link.present != 0 && link.active != 0; };
  const auto has_switch = [&](const Gpu& gpu) {
    return std::ranges::any_of(
        gpu.links, [&](const NvLink& link) { return is_up(link) && link.remote == kRemoteSwitch; });
  };
  return (has_switch(a) && has_switch(b)) || std::ranges::any_of(a.links, [&](const NvLink& link) {
           return is_up(link) && link.remote == kRemoteGpu &&
                  std::memcmp(&link.remote_pci, &b.pci, sizeof(b.pci)) == 0;
         });
}

}  // namespace

std::vector<std::uint32_t> reset_partners(const Machine& machine, std::uint32_t gpu) {
  constexpr std::int32_t kAmpere = 8;
  std::vector<std::uint32_t> group = {gpu};
  if (machine.gpus[gpu].compute_major >= kAmpere) return group;
  for (std::size_t i = 0; i < group.size(); ++i) {
    for (std::uint32_t other = 0; other < machine.gpu_count; ++other) {
      if (std::ranges::find(group, other) == group.end() &&
          are_linked(machine.gpus[group[i]], machine.gpus[other]))
        group.push_back(other);
    }
  }
  std::ranges::sort(group);
  return group;
}

void update_current_clocks(Gpu& gpu) {
  const bool is_busy = std::ranges::any_of(gpu.processes, [](const auto& process) { return process.pid != 0; });
  const auto& clocks = is_busy ? gpu.clocks.application : gpu.idle.clocks;
  for (std::size_t i = 0; i < std::size(clocks); ++i) {
    const bool is_memory = i == 2;
    const auto& lock = is_memory ? gpu.clocks.locked_memory : gpu.clocks.locked_graphics;
    const bool is_locked = lock[1] != 0 && clocks[i] != kNotReported && i != 3;
    gpu.clocks.current[i] = is_locked ? std::clamp(clocks[i], lock[0], lock[1]) : clocks[i];
  }
}

void reboot(Machine& machine) {
  unload_driver(machine);
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
    for (Process& process : machine.gpus[i].processes) process = {};
    reset_idle_gpu(machine.gpus[i]);
  }
  load_driver(machine);
}

void heal_gpu(Gpu& gpu) {
  gpu.faults = {};
  gpu.recovery_action = 0;
  gpu.remapped_rows.pending = 0;
  gpu.remapped_rows.failed = 0;
  gpu.retired_pages_pending = 0;
  gpu.clock_event_reasons &= ~kSlowdownReasons;
  if (gpu.temperature_gpu_max != kNotReported && gpu.temperature >= gpu.temperature_gpu_max)
    gpu.temperature = kCoolCelsius;
  gpu.sram_threshold = 0;
  gpu.pcie_width = gpu.pcie_width_max;
  join_fabric(gpu.fabric);
  clear_volatile_errors(gpu);
  set_links_load(gpu, gpu.links_load, monotonic_ns());
  train_links(gpu);
}

void replace_gpu(Machine& machine, std::uint32_t index) {
  Gpu& gpu = machine.gpus[index];
  ++gpu.incarnation;
  const std::string seed = std::string(gpu.uuid) + "#" + std::to_string(gpu.incarnation);
  set_text(gpu.uuid, make_uuid("GPU-", seed));
  char serial[16];
  std::snprintf(serial, sizeof(serial), "16%011llu",
                static_cast<unsigned long long>(hash_seed(seed, 1) % 100'000'000'000ULL));
  set_text(gpu.serial, serial);
  heal_gpu(gpu);
  for (auto& by_counter : gpu.ecc) {
    for (EccCounts& counts : by_counter) counts = {};
  }
  gpu.retired_page_count = 0;
  gpu.remapped_rows.correctable = 0;
  gpu.remapped_rows.uncorrectable = 0;
  restart_counters(gpu);
  for (Process& process : gpu.processes) process = {};
  clear_memory_limits(machine, index);
  gpu.mig.current = gpu.mig.pending = 0;
  clear_instances(gpu.mig);
}

std::uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000ULL + static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t memory_in_use(const Gpu& gpu, std::uint32_t gpu_instance) {
  std::uint64_t bytes = gpu_instance == kNoInstance ? gpu.memory_used : 0;
  for (const Process& process : gpu.processes) {
    if (process.pid == 0) continue;
    if (gpu_instance == kNoInstance || process.gpu_instance == gpu_instance)
      bytes += process.memory_bytes + process.managed_bytes;
  }
  return bytes;
}

bool add_process(Gpu& gpu, const Process& process) {
  for (Process& slot : gpu.processes) {
    if (slot.pid != 0) continue;
    slot = process;
    return true;
  }
  return false;
}

bool remove_process(Gpu& gpu, std::uint32_t pid) {
  bool found = false;
  for (Process& slot : gpu.processes) {
    if (pid == 0 || slot.pid != pid || slot.cuda_client != 0) continue;
    slot = {};
    found = true;
  }
  return found;
}

}  // namespace gpulet::sim

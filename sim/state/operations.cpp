// What happens to the machine: events, resets, driver reloads, replaced cards, processes.
#include <cstdio>
#include <ctime>

#include "sim/state/state.h"

namespace gpulet::sim {
namespace {

// FNV-1a, then one round of mixing, so that near seeds give far results.
std::uint64_t hash(std::string_view text, std::uint64_t basis) {
  std::uint64_t value = basis;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

void clear_volatile_errors(Gpu& gpu) {
  gpu.ecc[0][0] = {};
  gpu.ecc[1][0] = {};
}

// All that is counted since the driver was loaded or the GPU reset.
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
  const std::uint64_t high = hash(seed, 0xcbf29ce484222325ULL);
  const std::uint64_t low = hash(seed, 0x84222325cbf29ce4ULL);
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
      // Instances live in the driver; the mode does too from Hopper on, before that on the card.
      clear_instances(gpu.mig);
      if (gpu.mig.mode_needs_reset == 0) gpu.mig.current = gpu.mig.pending = 0;
    }
  }
  machine.driver.loaded = 1;
}

Status reset_gpu(Machine& machine, std::uint32_t index) {
  if (index >= machine.gpu_count) return fail(Code::kNotFound, "no GPU of that index");
  Gpu& gpu = machine.gpus[index];
  if (gpu.faults.lost != 0) return fail(Code::kDeviceLost, "a lost GPU cannot be reset", gpu.uuid);
  for (const Process& process : gpu.processes) {
    if (process.pid != 0)
      return fail(Code::kFailedPrecondition, "in use by process " + std::to_string(process.pid), gpu.uuid);
  }
  restart_counters(gpu);
  clear_instances(gpu.mig);
  gpu.mig.current = gpu.mig.pending;
  gpu.ecc_current = gpu.ecc_pending;
  gpu.remapped_rows.pending = 0;
  gpu.retired_pages_pending = 0;
  gpu.recovery_action = 0;
  train_links(gpu);
  return {};
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
  train_links(gpu);
}

void replace_gpu(Machine& machine, std::uint32_t index) {
  Gpu& gpu = machine.gpus[index];
  ++gpu.incarnation;
  const std::string seed = std::string(gpu.uuid) + "#" + std::to_string(gpu.incarnation);
  set_text(gpu.uuid, make_uuid("GPU-", seed));
  char serial[16];
  std::snprintf(serial, sizeof(serial), "16%011llu",
                static_cast<unsigned long long>(hash(seed, 1) % 100'000'000'000ULL));
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
  gpu.mig.current = gpu.mig.pending = 0;
  clear_instances(gpu.mig);
}

std::uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000ULL + static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t energy_millijoules(const Gpu& gpu, std::uint64_t now_ns) {
  if (gpu.power_usage_mw <= 0 || now_ns <= gpu.energy_since_ns) return gpu.energy_mj;
  const std::uint64_t elapsed_us = (now_ns - gpu.energy_since_ns) / 1000;
  return gpu.energy_mj + elapsed_us * static_cast<std::uint64_t>(gpu.power_usage_mw) / 1'000'000;
}

void set_power_usage(Gpu& gpu, std::int32_t milliwatts, std::uint64_t now_ns) {
  gpu.energy_mj = energy_millijoules(gpu, now_ns);
  gpu.energy_since_ns = now_ns;
  gpu.power_usage_mw = milliwatts;
}

std::uint64_t memory_in_use(const Gpu& gpu, std::uint32_t gpu_instance) {
  std::uint64_t bytes = gpu_instance == kNoInstance ? gpu.memory_used : 0;
  for (const Process& process : gpu.processes) {
    if (process.pid == 0) continue;
    if (gpu_instance == kNoInstance || process.gpu_instance == gpu_instance) bytes += process.memory_bytes;
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
    if (pid == 0 || slot.pid != pid) continue;
    slot = {};
    found = true;
  }
  return found;
}

}  // namespace gpulet::sim

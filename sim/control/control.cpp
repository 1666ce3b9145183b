#include "sim/control/control.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "base/text.h"
#include "sim/control/answers.h"
#include "sim/root/driver_files.h"
#include "sim/state/clients.h"
#include "sim/state/counters.h"
#include "sim/state/mig.h"

namespace gpulet::sim::control {
namespace {

constexpr std::uint64_t kFallenOffTheBus = 79;
constexpr std::uint32_t kFirstGeneratedPid = 4'000'000;  // above the kernel's default range
// nvmlClocksEventReason*.
constexpr std::uint64_t kIdle = 0x1;
constexpr std::uint64_t kHardwareSlowdown = 0x8;
constexpr std::uint64_t kSoftwareThermal = 0x20;
constexpr std::uint64_t kHardwareThermal = 0x40;
constexpr std::int32_t kSlowClockShare = 4;  // hardware slowdown leaves a quarter of the clock
constexpr std::int32_t kMaxCelsius = 200;
// PCIe traffic per percent of load.
constexpr std::uint32_t kTransmittedKbps = 20'000;
constexpr std::uint32_t kReceivedKbps = 50'000;

// XIDs whose catalogue action is a GPU reset.
constexpr std::uint64_t kResettingXids[] = {46,  48,  62,  64,  74,  95,  109, 110, 119, 120, 136, 140,
                                            143, 144, 145, 146, 147, 148, 149, 150, 155, 156, 158};
constexpr std::uint64_t kRebootingXids[] = {kFallenOffTheBus, 151};

void set_recovery_action(Machine& machine, std::uint32_t gpu, std::uint32_t action) {
  if (machine.gpus[gpu].recovery_action == action) return;
  machine.gpus[gpu].recovery_action = action;
  post_event(machine, gpu, kEventGpuRecoveryAction, action);
}

std::int32_t interpolate(std::int32_t idle, std::int32_t full, std::uint32_t percent) {
  if (idle == kNotReported || full == kNotReported) return idle;
  return idle + (full - idle) * static_cast<std::int32_t>(percent) / 100;
}

// Derives the metrics of the whole GPU from its processes' utilization.
void update_load_metrics(Machine& machine, std::uint32_t index) {
  Gpu& gpu = machine.gpus[index];
  std::uint32_t busy = 0;
  std::uint32_t memory = 0;
  bool any = false;
  for (const Process& process : gpu.processes) {
    if (process.pid == 0) continue;
    any = true;
    busy = std::min<std::uint32_t>(100, busy + process.sm_utilization);
    memory = std::min<std::uint32_t>(100, memory + process.memory_utilization);
  }
  gpu.utilization_gpu = busy;
  gpu.utilization_memory = memory;
  gpu.pcie_tx_kbps = busy * kTransmittedKbps;
  gpu.pcie_rx_kbps = busy * kReceivedKbps;
  set_links_load(gpu, busy, monotonic_ns());
  set_power_usage(gpu, interpolate(gpu.idle.power_mw, gpu.power_limit_mw, busy), monotonic_ns());
  // Cooling keeps a full load some degrees below the maximum.
  gpu.temperature =
      interpolate(gpu.idle.temperature,
                  gpu.temperature_gpu_max == kNotReported ? 80 : gpu.temperature_gpu_max - 12, busy);
  gpu.memory_temperature =
      interpolate(gpu.idle.memory_temperature,
                  gpu.temperature_memory_max == kNotReported ? 80 : gpu.temperature_memory_max - 12, busy);
  update_current_clocks(gpu);
  gpu.clock_event_reasons = any ? gpu.clock_event_reasons & ~kIdle : gpu.clock_event_reasons | kIdle;
}

Status check_instance(const Gpu& gpu, std::uint32_t gpu_instance, std::uint32_t compute_instance) {
  if (gpu_instance == kNoInstance) {
    return compute_instance == kNoInstance
               ? Status{}
               : fail(Code::kInvalidArgument, "a compute instance needs its GPU instance");
  }
  const GpuInstance* found = find_gpu_instance(gpu, gpu_instance);
  if (found == nullptr)
    return fail(Code::kNotFound, "no GPU instance " + std::to_string(gpu_instance), gpu.uuid);
  if (compute_instance != kNoInstance && find_compute_instance(*found, compute_instance) == nullptr) {
    return fail(Code::kNotFound, "no compute instance " + std::to_string(compute_instance), gpu.uuid);
  }
  return {};
}

template <class Field>
Status edit_driver(const StateFile& state, Field Driver::* field, Field value) {
  state.lock_for_edit()->driver.*field = value;
  return {};
}

}  // namespace

void raise_recovery_action(Machine& machine, std::uint32_t gpu, std::uint32_t action) {
  const auto severity = [](std::uint32_t a) {
    return a == kRebootNode ? 3 : a == kResetGpu ? 2 : a == kDrainAndReset ? 1 : 0;
  };
  if (severity(action) > severity(machine.gpus[gpu].recovery_action))
    set_recovery_action(machine, gpu, action);
}

Result<std::uint32_t> find_gpu(const StateFile& state, const std::string& name) {
  const ReadGuard machine = state.lock_for_read();
  if (const auto index = text::parse_unsigned(name); index && *index < machine->gpu_count)
    return static_cast<std::uint32_t>(*index);
  for (std::uint32_t i = 0; i < machine->gpu_count; ++i) {
    const Gpu& gpu = machine->gpus[i];
    const std::string address = address_text(gpu.pci);
    const std::string lower = text::lower(name);
    if (name == gpu.uuid || lower == address || lower == "0000" + address) return i;
  }
  return fail(Code::kNotFound,
              "no such GPU: an index from 0 to " + std::to_string(machine->gpu_count - 1) +
                  ", a UUID or a PCI address",
              name);
}

Status set_load(const StateFile& state, std::uint32_t gpu, const Load& load) {
  GPULET_TRY_ASSIGN(const auto cgroup, find_load_cgroup(load.cgroup, load.pid));
  return edit_gpu(state, gpu, [&](Machine& machine, Gpu& one) -> Status {
    if (load.percent > 100) return fail(Code::kInvalidArgument, "a load is from 0 to 100 percent");
    GPULET_TRY(check_instance(one, load.gpu_instance, load.compute_instance));
    const std::uint32_t pid = load.pid != 0 ? load.pid : kFirstGeneratedPid + gpu;
    remove_process(one, pid);
    release_memory(machine, gpu, pid);
    if (load.percent != 0) {
      const std::uint64_t room = one.memory_total - one.memory_reserved -
                                 std::min(one.memory_total - one.memory_reserved, memory_in_use(one));
      const std::uint64_t wanted = load.memory_mib != 0
                                       ? load.memory_mib << 20
                                       : (one.memory_total - one.memory_reserved) / 100 * load.percent;
      if (load.memory_mib != 0 && wanted > room) {
        return fail(Code::kInvalidArgument, "only " + std::to_string(room >> 20) + " MiB are free", one.uuid);
      }
      Process process{};
      process.pid = pid;
      process.gpu_instance = load.gpu_instance;
      process.compute_instance = load.compute_instance;
      process.sm_utilization = static_cast<std::uint8_t>(load.percent);
      process.memory_utilization = static_cast<std::uint8_t>(load.percent / 2);
      process.memory_bytes = std::min(wanted, room);
      if (load.pid == 0) set_text(process.name, "gpulet-sim load");
      const std::uint64_t bytes = charged_bytes(load.allocation, process.memory_bytes);
      if (!add_process(one, process)) return fail(Code::kFailedPrecondition, "too many processes", one.uuid);
      if (const auto charged = charge_memory(machine, gpu, pid, cgroup, bytes); !charged) {
        remove_process(one, pid);
        return charged;
      }
    }
    update_load_metrics(machine, gpu);
    return {};
  });
}

std::uint32_t recovery_action_of(std::uint64_t xid) {
  const auto is_in = [xid](const auto& list) {
    return std::find(std::begin(list), std::end(list), xid) != std::end(list);
  };
  if (is_in(kRebootingXids)) return kRebootNode;
  return is_in(kResettingXids) ? kResetGpu : kNone;
}

Status post_xid(const StateFile& state, std::uint32_t gpu, std::uint64_t code, std::uint32_t gpu_instance,
                std::uint32_t compute_instance) {
  return edit_gpu(state, gpu, [&](Machine& machine, Gpu& one) -> Status {
    GPULET_TRY(check_instance(one, gpu_instance, compute_instance));
    post_event(machine, gpu, kEventXid, code, gpu_instance, compute_instance);
    raise_recovery_action(machine, gpu, recovery_action_of(code));
    return {};
  });
}

Status set_temperature(const StateFile& state, std::uint32_t gpu, std::int32_t celsius) {
  return edit_gpu(state, gpu, [&](Machine& machine, Gpu& one) -> Status {
    if (celsius < 0 || celsius > kMaxCelsius)
      return fail(Code::kInvalidArgument, "a temperature is from 0 to 200 Celsius");
    one.temperature = celsius;
    const bool slow = one.temperature_slowdown != kNotReported && celsius >= one.temperature_slowdown;
    const bool hot = slow || (one.temperature_gpu_max != kNotReported && celsius >= one.temperature_gpu_max);
    one.clock_event_reasons &= ~(kSoftwareThermal | kHardwareThermal | kHardwareSlowdown);
    if (hot) one.clock_event_reasons |= kSoftwareThermal;
    if (slow) {
      one.clock_event_reasons |= kHardwareThermal | kHardwareSlowdown;
      const std::int32_t most = one.clocks.max[0];
      if (most != kNotReported)
        one.clocks.current[0] = one.clocks.current[1] =
            std::min(one.clocks.current[0], most / kSlowClockShare);
    }
    post_event(machine, gpu, kEventClock, one.clock_event_reasons);
    return {};
  });
}

Status lose_gpu(const StateFile& state, std::uint32_t gpu, bool with_event) {
  return edit_gpu(state, gpu, [&](Machine& machine, Gpu& one) -> Status {
    one.faults.lost = 1;
    if (with_event) post_event(machine, gpu, kEventXid, kFallenOffTheBus);
    raise_recovery_action(machine, gpu, kRebootNode);
    return {};
  });
}

Status hang_calls(const StateFile& state, std::optional<std::uint32_t> gpu) {
  if (!gpu) return edit_driver<std::uint8_t>(state, &Driver::hang, 1);
  return edit_gpu(state, *gpu, [](Machine&, Gpu& one) -> Status {
    one.faults.hang = 1;
    return {};
  });
}

Status slow_calls(const StateFile& state, std::optional<std::uint32_t> gpu, std::uint32_t delay_us) {
  if (!gpu) return edit_driver(state, &Driver::delay_us, delay_us);
  return edit_gpu(state, *gpu, [&](Machine&, Gpu& one) -> Status {
    one.faults.delay_us = delay_us;
    return {};
  });
}

Status fail_gpu(const StateFile& state, std::uint32_t gpu, std::uint32_t nvml_return) {
  return edit_gpu(state, gpu, [&](Machine&, Gpu& one) -> Status {
    one.faults.error = nvml_return;
    return {};
  });
}

Status fail_mig(const StateFile& state, std::uint32_t gpu, std::uint32_t nvml_return, std::uint32_t skip) {
  return edit_gpu(state, gpu, [&](Machine&, Gpu& one) -> Status {
    one.faults.mig_hang = 0;
    one.faults.mig_error = nvml_return;
    one.faults.mig_skip = nvml_return == 0 ? 0 : skip;
    return {};
  });
}

Status hang_mig(const StateFile& state, std::uint32_t gpu, std::uint32_t skip) {
  return edit_gpu(state, gpu, [&](Machine&, Gpu& one) -> Status {
    one.faults.mig_error = 0;
    one.faults.mig_hang = 1;
    one.faults.mig_skip = skip;
    return {};
  });
}

Status fail_init(const StateFile& state, std::uint32_t nvml_return) {
  return edit_driver(state, &Driver::init_error, nvml_return);
}

Status fail_event_wait(const StateFile& state, std::uint32_t nvml_return) {
  return edit_driver(state, &Driver::event_wait_error, nvml_return);
}

Status reset_gpu(const StateFile& state, std::uint32_t gpu, Clients clients) {
  return edit_gpu(state, gpu, [&](Machine& machine, Gpu& one) -> Status {
    if (clients == Clients::kRefuse) GPULET_TRY(check_unused(state, machine, gpu));
    const std::uint32_t before = one.recovery_action;
    GPULET_TRY(reset_gpu(machine, gpu));
    if (before != kNone) post_event(machine, gpu, kEventGpuRecoveryAction, kNone);
    return {};
  });
}

Status replace_gpu(const StateFile& state, std::uint32_t gpu) {
  return edit_gpu(state, gpu, [&](Machine& machine, Gpu&) -> Status {
    replace_gpu(machine, gpu);
    update_load_metrics(machine, gpu);
    return {};
  });
}

Status heal_faults(const StateFile& state, std::optional<std::uint32_t> gpu) {
  const auto heal_one = [](Machine& machine, std::uint32_t index) {
    Gpu& one = machine.gpus[index];
    const std::uint32_t before = one.recovery_action;
    heal_gpu(one);
    update_load_metrics(machine, index);
    if (before != kNone) post_event(machine, index, kEventGpuRecoveryAction, kNone);
  };
  if (gpu) {
    return edit_gpu(state, *gpu, [&](Machine& machine, Gpu&) -> Status {
      heal_one(machine, *gpu);
      clear_answers(machine, gpu);
      return {};
    });
  }
  const EditGuard machine = state.lock_for_edit();
  Driver& driver = machine->driver;
  driver.hang = 0;
  clear_answers(*machine, std::nullopt);
  driver.delay_us = driver.init_error = driver.event_wait_error = 0;
  for (std::uint32_t i = 0; i < machine->gpu_count; ++i) heal_one(*machine, i);
  return {};
}

Status unload_driver(const StateFile& state, Clients clients) {
  const EditGuard machine = state.lock_for_edit();
  if (clients == Clients::kRefuse) GPULET_TRY(check_unused(state, *machine, std::nullopt));
  sim::unload_driver(*machine);
  return {};
}

Status load_driver(const StateFile& state, const std::string& version) {
  const EditGuard machine = state.lock_for_edit();
  Driver& driver = machine->driver;
  const auto parts = text::split(version, '.');
  const bool whole = std::all_of(parts.begin(), parts.end(),
                                 [](const std::string& p) { return text::parse_unsigned(p).has_value(); });
  if (!version.empty() &&
      (!whole || parts.size() < 2 || parts.size() > 3 || version.size() >= sizeof(driver.version))) {
    return fail(Code::kInvalidArgument, "no driver version like 570.124.06", version);
  }
  if (!version.empty()) {
    set_text(driver.version, version);
    set_text(driver.nvml_version, std::to_string(driver.cuda_version / 1000) + "." + version);
  }
  sim::load_driver(*machine);
  return {};
}

namespace {

constexpr std::uint64_t kPageBytes = 65'536;
constexpr std::uint64_t kNanosecondsInMillisecond = 1'000'000;
// RetiredPage::cause.
constexpr std::uint32_t kSingleBitCause = 0;
constexpr std::uint32_t kDoubleBitCause = 1;
// NVML_GPU_FABRIC_STATE_*, NVML_GPU_FABRIC_HEALTH_SUMMARY_*, and of the mask _DEGRADED_BW, _TRUE.
constexpr std::uint8_t kFabricInProgress = 2;
constexpr std::uint8_t kFabricHealthy = 1;
constexpr std::uint8_t kFabricUnhealthy = 2;
constexpr std::uint8_t kFabricLimited = 3;
constexpr std::uint32_t kDegradedBandwidth = 1;
constexpr std::uint32_t kUnknownError = 999;  // NVML_ERROR_UNKNOWN

// The page is retired at the next reset. Pages beyond the size of the list are dropped.
void retire_page(Gpu& gpu, std::uint32_t cause) {
  gpu.retired_pages_pending = 1;
  if (gpu.retired_page_count >= kMaxRetiredPages) return;
  const std::uint64_t number = gpu.retired_page_count++;
  gpu.retired_pages[number] = RetiredPage{(number + 1) * kPageBytes, monotonic_ns() / 1000, cause, 0};
}

NvLink* far_end(Machine& machine, const Gpu& gpu, const NvLink& link) {
  if (link.remote != kRemoteGpu || link.remote_link >= kMaxLinks) return nullptr;
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
    Gpu& other = machine.gpus[i];
    if (&other != &gpu && address_text(other.pci) == address_text(link.remote_pci))
      return &other.links[link.remote_link];
  }
  return nullptr;
}

}  // namespace

Status count_ecc_errors(const StateFile& state, std::uint32_t gpu, Ecc kind, std::uint64_t count,
                        EccLocation place) {
  return edit_gpu(state, gpu, [&](Machine& machine, Gpu& one) -> Status {
    if (one.ecc_supported == 0 || one.ecc_current == 0)
      return fail(Code::kUnsupported, "ECC is off", one.uuid);
    const std::size_t type = kind == Ecc::kCorrected ? 0 : 1;
    for (EccCounts& counts : one.ecc[type]) counts.by_location[static_cast<std::size_t>(place)] += count;
    const bool retires = kind == Ecc::kUncorrected && place == EccLocation::kDram;
    if (retires && one.retired_pages_supported != 0) retire_page(one, kDoubleBitCause);
    post_event(machine, gpu, kind == Ecc::kCorrected ? kEventSingleBitEcc : kEventDoubleBitEcc, count);
    return {};
  });
}

Status exceed_sram_threshold(const StateFile& state, std::uint32_t gpu) {
  return edit_gpu(state, gpu, [](Machine&, Gpu& one) -> Status {
    if (one.ecc_supported == 0 || one.ecc_current == 0 || one.remapped_rows.supported == 0)
      return fail(Code::kUnsupported, "this GPU has no such threshold", one.uuid);
    one.sram_threshold = 1;
    return {};
  });
}

Status retire_pages(const StateFile& state, std::uint32_t gpu, Retire cause, std::uint32_t count) {
  return edit_gpu(state, gpu, [&](Machine&, Gpu& one) -> Status {
    if (one.retired_pages_supported == 0)
      return fail(Code::kUnsupported, "this GPU remaps rows and retires no pages", one.uuid);
    if (count > kMaxRetiredPages - one.retired_page_count) {
      return fail(
          Code::kInvalidArgument,
          "only " + std::to_string(kMaxRetiredPages - one.retired_page_count) + " more can be retired",
          one.uuid);
    }
    for (std::uint32_t i = 0; i < count; ++i)
      retire_page(one, cause == Retire::kDoubleBit ? kDoubleBitCause : kSingleBitCause);
    return {};
  });
}

Status remap_row(const StateFile& state, std::uint32_t gpu, Remap kind) {
  return edit_gpu(state, gpu, [&](Machine& machine, Gpu& one) -> Status {
    RemappedRows& rows = one.remapped_rows;
    if (rows.supported == 0)
      return fail(Code::kUnsupported, "this GPU retires pages and remaps no rows", one.uuid);
    switch (kind) {
      case Remap::kCorrectable:
        ++rows.correctable;
        break;
      case Remap::kUncorrectable:
        ++rows.uncorrectable;
        break;
      case Remap::kPending:
        ++rows.uncorrectable;
        rows.pending = 1;
        raise_recovery_action(machine, gpu, kDrainAndReset);
        break;
      case Remap::kFailed:
        rows.failed = 1;
        raise_recovery_action(machine, gpu, kResetGpu);
        break;
    }
    return {};
  });
}

Status change_nvlink(const StateFile& state, std::uint32_t gpu, std::uint32_t link, LinkChange change,
                     std::uint64_t count) {
  return edit_gpu(state, gpu, [&](Machine& machine, Gpu& one) -> Status {
    if (link >= kMaxLinks || one.links[link].present == 0)
      return fail(Code::kNotFound, "no NVLink " + std::to_string(link), one.uuid);
    NvLink& here = one.links[link];
    if (change == LinkChange::kErrors) {
      here.crc_flit_errors += count;
      here.replay_errors += count;
      return {};
    }
    for (Gpu& gpu : machine.gpus) set_links_load(gpu, gpu.links_load, monotonic_ns());
    const std::uint8_t active = change == LinkChange::kUp ? 1 : 0;
    here.active = active;
    if (active == 0) here.recovery_errors += count;
    if (NvLink* there = far_end(machine, one, here)) there->active = active;
    return {};
  });
}

Status add_pcie_replays(const StateFile& state, std::uint32_t gpu, std::uint32_t count) {
  return edit_gpu(state, gpu, [&](Machine&, Gpu& one) -> Status {
    one.pcie_replays += count;
    return {};
  });
}

Status set_pcie_width(const StateFile& state, std::uint32_t gpu, std::uint32_t lanes) {
  return edit_gpu(state, gpu, [&](Machine&, Gpu& one) -> Status {
    if (one.pcie_width_max == kNotReported)
      return fail(Code::kUnsupported, "this GPU reports no PCIe width", one.uuid);
    if (lanes < 1 || lanes > static_cast<std::uint32_t>(one.pcie_width_max)) {
      return fail(Code::kInvalidArgument, "it has 1 to " + std::to_string(one.pcie_width_max) + " lanes",
                  one.uuid);
    }
    one.pcie_width = static_cast<std::int32_t>(lanes);
    return {};
  });
}

Status add_violation(const StateFile& state, std::uint32_t gpu, Violation kind, std::uint32_t milliseconds) {
  return edit_gpu(state, gpu, [&](Machine&, Gpu& one) -> Status {
    (kind == Violation::kThermal ? one.violation_thermal_ns : one.violation_power_ns) +=
        milliseconds * kNanosecondsInMillisecond;
    return {};
  });
}

Status change_fabric(const StateFile& state, std::uint32_t gpu, FabricChange change) {
  return edit_gpu(state, gpu, [&](Machine&, Gpu& one) -> Status {
    Fabric& fabric = one.fabric;
    if (fabric.state == 0) return fail(Code::kUnsupported, "this GPU belongs to no fabric", one.uuid);
    fabric.state = change == FabricChange::kJoining ? kFabricInProgress : kFabricCompleted;
    fabric.status = change == FabricChange::kFailed ? kUnknownError : 0;
    fabric.health_mask = change == FabricChange::kDegraded ? kDegradedBandwidth : 0;
    fabric.health_summary = change == FabricChange::kDegraded ? kFabricLimited
                            : change == FabricChange::kFailed ? kFabricUnhealthy
                                                              : kFabricHealthy;
    return {};
  });
}

Status corrupt_inforom(const StateFile& state, std::uint32_t gpu) {
  return edit_gpu(state, gpu, [](Machine&, Gpu& one) -> Status {
    if (one.inforom_image[0] == '\0') return fail(Code::kUnsupported, "this GPU has no InfoROM", one.uuid);
    one.faults.inforom = 1;
    return {};
  });
}

}  // namespace gpulet::sim::control

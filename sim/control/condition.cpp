// What only polls show of a GPU: its memory, its links, its bus, its clocks, its fabric.
#include "sim/control/edit.h"
#include "sim/root/texts.h"

namespace gpulet::sim::control {
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

// It is out of use after the next reset. More than the list holds are lost.
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

Status ecc(const StateFile& state, std::uint32_t gpu, Ecc kind, std::uint64_t count, EccPlace place) {
  return edit_gpu(state, gpu, [&](Machine& machine, Gpu& one) -> Status {
    if (one.ecc_supported == 0 || one.ecc_current == 0)
      return fail(Code::kUnsupported, "ECC is off", one.uuid);
    const std::size_t type = kind == Ecc::kCorrected ? 0 : 1;
    for (EccCounts& counts : one.ecc[type]) counts.by_location[static_cast<std::size_t>(place)] += count;
    const bool retires = kind == Ecc::kUncorrected && place == EccPlace::kDram;
    if (retires && one.retired_pages_supported != 0) retire_page(one, kDoubleBitCause);
    post_event(machine, gpu, kind == Ecc::kCorrected ? kEventSingleBitEcc : kEventDoubleBitEcc, count);
    return {};
  });
}

Status sram_threshold(const StateFile& state, std::uint32_t gpu) {
  return edit_gpu(state, gpu, [](Machine&, Gpu& one) -> Status {
    if (one.ecc_supported == 0 || one.ecc_current == 0 || one.remapped_rows.supported == 0)
      return fail(Code::kUnsupported, "this GPU has no such threshold", one.uuid);
    one.sram_threshold = 1;
    return {};
  });
}

Status retire(const StateFile& state, std::uint32_t gpu, Retire cause, std::uint32_t count) {
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

Status remap(const StateFile& state, std::uint32_t gpu, Remap kind) {
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

Status nvlink(const StateFile& state, std::uint32_t gpu, std::uint32_t link, LinkChange change,
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
    const std::uint8_t active = change == LinkChange::kUp ? 1 : 0;
    here.active = active;
    if (active == 0) here.recovery_errors += count;
    if (NvLink* there = far_end(machine, one, here)) there->active = active;
    return {};
  });
}

Status pcie_replays(const StateFile& state, std::uint32_t gpu, std::uint32_t count) {
  return edit_gpu(state, gpu, [&](Machine&, Gpu& one) -> Status {
    one.pcie_replays += count;
    return {};
  });
}

Status pcie_width(const StateFile& state, std::uint32_t gpu, std::uint32_t lanes) {
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

Status violation(const StateFile& state, std::uint32_t gpu, Violation kind, std::uint32_t milliseconds) {
  return edit_gpu(state, gpu, [&](Machine&, Gpu& one) -> Status {
    (kind == Violation::kThermal ? one.violation_thermal_ns : one.violation_power_ns) +=
        milliseconds * kNanosecondsInMillisecond;
    return {};
  });
}

Status fabric(const StateFile& state, std::uint32_t gpu, FabricChange change) {
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

Status inforom(const StateFile& state, std::uint32_t gpu) {
  return edit_gpu(state, gpu, [](Machine&, Gpu& one) -> Status {
    if (one.inforom_image[0] == '\0') return fail(Code::kUnsupported, "this GPU has no InfoROM", one.uuid);
    one.faults.inforom = 1;
    return {};
  });
}

}  // namespace gpulet::sim::control

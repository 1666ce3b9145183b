// Health readings of one GPU, apart from events and the recovery action (session.h).
//
// Every reading is optional. kUnsupported, with the function's name and the driver's message, means
// that this GPU or this driver never has it. All other errors and threads are those of Session.
// Source: nvml.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "nvml/session.h"

namespace gpulet::nvml {

// Ampere and later; not while the GPU has GPU instances.
struct RowRemap {
  std::uint64_t correctable = 0, uncorrectable = 0;  // rows, by the kind of error
  bool pending = false;                              // a reset is pending
  bool failed = false;                               // a remapping failed since manufacture
};
// Up to Turing.
struct RetiredPages {
  std::uint64_t single_bit = 0, double_bit = 0;
  bool pending = false;  // a reset is pending
};
// NVML_MEMORY_LOCATION_*.
enum class MemoryLocation { kL1Cache, kL2Cache, kDram, kRegisters, kTexture, kSharedMemory, kCbu, kSram };
inline constexpr std::size_t kMemoryLocations = static_cast<std::size_t>(MemoryLocation::kSram) + 1;
// Volatile uncorrected errors: since the driver was loaded or the GPU was reset.
struct UncorrectedEcc {
  std::array<std::optional<std::uint64_t>, kMemoryLocations> at{};  // nullopt: not counted there
  std::optional<bool> sram_threshold_exceeded;                      // Ampere and later
};
struct NvLinkHealth {
  unsigned index = 0;
  bool up = false;
  // CRC, replay and recovery errors; from NVLink 5 on, packets received with errors and recoveries.
  // nullopt where the GPU counts none of them.
  std::optional<std::uint64_t> errors;
};
struct PcieHealth {
  std::optional<std::uint64_t> replays;
  std::optional<unsigned> width, full_width;  // lanes: current, and the maximum of GPU and slot
};
// How long the clocks were throttled.
struct Violations {
  std::chrono::nanoseconds thermal{}, power{};
};
// Registration with the NVLink fabric, which CUDA needs on NVSwitch machines.
enum class FabricRegistration { kNone, kNotStarted, kInProgress, kDone, kFailed };
enum class FabricSummary { kHealthy, kUnhealthy, kLimited };
// nvmlGpuFabricInfo_v3_t::healthMask. All flags are false where the driver does not report it.
struct FabricHealth {
  FabricRegistration registration = FabricRegistration::kNone;
  std::optional<FabricSummary> summary{};  // only drivers with the third version of the struct
  bool degraded_bandwidth = false;
  bool route_recovery = false;
  bool route_unhealthy = false;
  bool access_timeout_recovery = false;
  // NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_*: 0 and 1 mean no fault.
  unsigned wrong_configuration = 0;
};

class Health {
 public:
  // `session` must outlive this object.
  Health(const Session& session, Device gpu) : session_(session), gpu_(gpu) {}

  Result<RowRemap> row_remap() const;
  Result<RetiredPages> retired_pages() const;
  // Also kUnsupported while ECC is off.
  Result<UncorrectedEcc> uncorrected_ecc() const;
  // The GPU's links by index, connected or not. kUnsupported for a GPU without NVLink.
  Result<std::vector<NvLinkHealth>> nvlinks() const;
  // kUnsupported if the GPU has none of these readings.
  Result<PcieHealth> pcie() const;
  Result<Violations> violations() const;
  Result<FabricHealth> fabric_health() const;
  // Whether the checksums match. Reads the card's flash memory.
  Result<bool> inforom_valid() const;
  // Millijoules since the driver was loaded.
  Result<std::uint64_t> energy_consumption() const;

 private:
  template <class Function, class... Arguments>
  Status invoke(Function function, const char* name, Arguments... arguments) const;
  Result<std::uint64_t> violation_time(unsigned policy, unsigned field) const;
  Result<std::uint64_t> count_retired_pages(unsigned cause) const;
  Status count_link_errors(std::vector<NvLinkHealth>& links) const;

  const Session& session_;
  Device gpu_;
};

}  // namespace gpulet::nvml

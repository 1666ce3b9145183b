// What the driver can be asked about the health of one GPU, beside events and the recovery action
// (session.h).
//
// Every reading is optional. kUnsupported with the function's name and the driver's words: this GPU or this
// driver does not have it, and never will. All other errors and threads as Session's.
// Source: nvml.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "nvml/session.h"

namespace gpulet::nvml {

// Ampere and later; not while it has GPU instances.
struct RowRemap {
  std::uint64_t correctable = 0, uncorrectable = 0;  // rows, by what they were remapped for
  bool pending = false;                              // waits for a reset
  bool failed = false;                               // some time in the past
};
// Until Turing.
struct RetiredPages {
  std::uint64_t single_bit = 0, double_bit = 0;
  bool pending = false;  // waits for a reset
};
// NVML_MEMORY_LOCATION_*.
enum class MemoryLocation { kL1Cache, kL2Cache, kDram, kRegisters, kTexture, kSharedMemory, kCbu, kSram };
inline constexpr std::size_t kMemoryLocations = static_cast<std::size_t>(MemoryLocation::kSram) + 1;
// Volatile uncorrected errors: since the driver was loaded or the GPU was reset.
struct UncorrectedEcc {
  std::array<std::optional<std::uint64_t>, kMemoryLocations> at{};  // nullopt: it does not count there
  std::optional<bool> sram_threshold_exceeded;                      // Ampere and later
};
struct NvLinkHealth {
  unsigned index = 0;
  bool up = false;
  // CRC, replay and recovery, from NVLink 5 on packets received with errors and recoveries; nullopt where it
  // counts none of them.
  std::optional<std::uint64_t> errors;
};
struct PcieHealth {
  std::optional<std::uint64_t> replays;
  std::optional<unsigned> width, full_width;  // lanes: now; that GPU and slot both have
};
// How long clocks were held down.
struct Violations {
  std::chrono::nanoseconds thermal{}, power{};
};
// Its registration with the NVLink fabric, which CUDA waits for on NVSwitch machines.
enum class FabricRegistration { kNone, kNotStarted, kInProgress, kDone, kFailed };
enum class FabricSummary { kHealthy, kUnhealthy, kLimited };
// nvmlGpuFabricInfo_v3_t::healthMask, what is wrong: all false where the driver does not tell.
struct FabricHealth {
  FabricRegistration registration = FabricRegistration::kNone;
  std::optional<FabricSummary> summary{};  // drivers since the third version of the struct
  bool degraded_bandwidth = false;
  bool route_recovery = false;
  bool route_unhealthy = false;
  bool access_timeout_recovery = false;
  // NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_*: 0 and 1 for nothing wrong.
  unsigned wrong_configuration = 0;
};

class Health {
 public:
  // `session` outlives it.
  Health(const Session& session, Device gpu) : session_(session), gpu_(gpu) {}

  Result<RowRemap> row_remap() const;
  Result<RetiredPages> retired_pages() const;
  // kUnsupported also while ECC is off.
  Result<UncorrectedEcc> uncorrected_ecc() const;
  // The links that the GPU has, by index, connected or not. kUnsupported for a GPU without.
  Result<std::vector<NvLinkHealth>> nvlinks() const;
  // kUnsupported when it has nothing of it.
  Result<PcieHealth> pcie() const;
  Result<Violations> violations() const;
  Result<FabricHealth> fabric() const;
  // Whether its checksums are right. Reads the card's flash.
  Result<bool> inforom_valid() const;
  // Millijoules since the driver was loaded.
  Result<std::uint64_t> energy() const;

 private:
  template <class Function, class... Arguments>
  Status ask(Function function, const char* name, Arguments... arguments) const;
  Result<std::uint64_t> violation(unsigned policy, unsigned field) const;
  Result<std::uint64_t> retired(unsigned cause) const;
  Status count_link_errors(std::vector<NvLinkHealth>& links) const;

  const Session& session_;
  Device gpu_;
};

}  // namespace gpulet::nvml

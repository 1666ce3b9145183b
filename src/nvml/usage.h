// Utilisation readings of a GPU or MIG device: the values behind the metrics.
//
// Each method is one NVML call, so that a sampler pays only for what it needs. kUnsupported, with
// the function's name, means that this GPU or this driver does not have the reading. All other
// errors and threads are those of Session.
// Source: nvml.h.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "nvml/session.h"

namespace gpulet::nvml {

// nvmlClockType_t.
enum class Clock { kGraphics, kSm, kMemory, kVideo };
// nvmlTemperatureThresholds_t.
enum class TemperatureLimit { kShutdown, kSlowdown, kMemoryMax, kGpuMax };
struct Utilization {
  unsigned gpu = 0, memory = 0;  // percent of the driver's last sampling period
};
struct MemoryUse {
  Bytes total, free, used;
  std::optional<Bytes> reserved;  // reserved by the driver; included in `used` before driver 510 or so
};
struct PcieThroughput {
  std::uint64_t transmitted = 0, received = 0;  // KB/s
};
struct PowerLimits {
  MilliWatts minimum, maximum;
};
// Bits of clock_events(). Source: nvml.h, nvmlClocksEventReason*.
inline constexpr std::uint64_t kClocksIdle = 0x1;
inline constexpr std::uint64_t kClocksSetting = 0x2;
inline constexpr std::uint64_t kClocksPowerCap = 0x4;
inline constexpr std::uint64_t kClocksHwSlowdown = 0x8;
inline constexpr std::uint64_t kClocksSyncBoost = 0x10;
inline constexpr std::uint64_t kClocksSwThermal = 0x20;
inline constexpr std::uint64_t kClocksHwThermal = 0x40;
inline constexpr std::uint64_t kClocksHwPowerBrake = 0x80;
inline constexpr std::uint64_t kClocksDisplay = 0x100;

// nvmlGpuP2PStatus_t.
enum class PeerToPeer {
  kOk,
  kChipsetNotSupported,
  kGpuNotSupported,
  kTopologyNotSupported,
  kDisabledByRegkey,
  kNotSupported,
  kUnknown
};

// NVML_FI_DEV_*: field values, many of which one call reads.
enum class FieldId : unsigned {
  kEccCurrent = 1,
  kEccPending,
  kEccSingleVolatile,
  kEccDoubleVolatile,
  kEccSingleAggregate,
  kEccDoubleAggregate,
  kRetiredSingle = 29,
  kRetiredDouble,
  kRetiredPending,
  kNvLinkCrcFlit = 38,
  kNvLinkCrcData = 45,
  kNvLinkReplay = 52,
  kNvLinkRecovery = 59,
  kViolationPower = 74,  // nanoseconds, as the next seven
  kViolationThermal,
  kViolationSyncBoost,
  kViolationBoardLimit,
  kViolationLowUtilization,
  kViolationReliability,
  kViolationAppClocks,
  kViolationBaseClocks,
  kMemoryTemperature,        // Celsius
  kEnergy,                   // millijoules since the driver was loaded
  kNvLinkTransmitted = 138,  // KiB of data, all links; restarts with the driver
  kNvLinkReceived,
  kRemappedCorrectable = 142,
  kRemappedUncorrectable,
  kRemappedPending,
  kRemappedFailure,
  kNvLinkEcc = 160,     // data errors, all links
  kPowerInstant = 186,  // milliwatts
};

// A process and the device memory that it uses.
struct ProcessMemory {
  Process process;
  std::optional<Bytes> memory;  // nullopt: not reported by the driver
  friend bool operator==(const ProcessMemory&, const ProcessMemory&) = default;
};
// Utilisation of a GPU by one process, in one sampling period of the driver that ended at
// `when_us`.
struct ProcessUtilization {
  unsigned pid = 0;
  std::uint64_t when_us = 0;                              // the driver's clock: CPU time since the epoch
  unsigned sm = 0, memory = 0, encoder = 0, decoder = 0;  // percent
  friend bool operator==(const ProcessUtilization&, const ProcessUtilization&) = default;
};

class Usage {
 public:
  // `session` must outlive this object. On a MIG device only memory() and process_memory() work.
  Usage(const Session& session, Device device) : session_(session), device_(device) {}

  Result<unsigned> clock(Clock clock) const;  // MHz
  Result<unsigned> max_clock(Clock clock) const;
  Result<unsigned> application_clock(Clock clock) const;
  Result<unsigned> memory_bus_width() const;   // bits
  Result<std::uint64_t> clock_events() const;  // bits: reasons for the current clocks
  Result<unsigned> performance_state() const;  // 0 is the highest performance
  Result<unsigned> temperature() const;        // Celsius
  Result<unsigned> temperature_limit(TemperatureLimit limit) const;
  Result<unsigned> fan() const;  // percent
  Result<MilliWatts> power() const;
  Result<MilliWatts> power_limit() const;  // as requested
  Result<MilliWatts> enforced_power_limit() const;
  Result<MilliWatts> default_power_limit() const;
  Result<PowerLimits> power_limits() const;
  Result<Utilization> utilization() const;  // kUnsupported in MIG mode, as are the next two
  Result<unsigned> encoder() const;         // percent
  Result<unsigned> decoder() const;
  Result<MemoryUse> memory() const;
  Result<MemoryUse> bar1() const;
  Result<unsigned> pcie_generation() const;
  Result<unsigned> max_pcie_generation() const;
  // The driver counts for 20 ms in each direction, so this call takes twice that long.
  Result<PcieThroughput> pcie_throughput() const;
  // Whether a licence of NVIDIA's vGPU software is active; false if there is nothing to license.
  Result<bool> licensed() const;
  // Whether this GPU can read the other GPU's memory. kOk for the same GPU.
  Result<PeerToPeer> peer_to_peer(Device other) const;

  // kUnsupported if the card does not have the text.
  Result<std::string> vbios() const;
  enum class Inforom { kOem, kEcc, kPower, kImage };
  Result<std::string> inforom(Inforom part) const;

  // Reads `ids` in one call. Fields that this GPU or driver does not have are missing from the
  // result.
  Result<std::map<FieldId, std::uint64_t>> fields(const std::set<FieldId>& ids) const;

  // Processes with a compute, MPS or graphics context, each once, by pid; for a MIG device only its
  // own. Errors: kUnsupported where the driver does not list compute processes: who uses the GPU is unknown.
  Result<std::vector<ProcessMemory>> process_memory() const;
  // The driver's samples after `since_us` (0: all), by pid and time; may be empty. kUnsupported in
  // MIG mode.
  Result<std::vector<ProcessUtilization>> process_utilization(std::uint64_t since_us) const;

 private:
  template <class Function, class... Arguments>
  Status invoke(Function function, const char* name, Arguments... arguments) const;
  template <class Function>
  Result<unsigned> query_unsigned(Function function, const char* name) const;
  template <class Function>
  Result<MilliWatts> query_milliwatts(Function function, const char* name) const;
  template <class Function>
  Result<unsigned> query_engine(Function function, const char* name) const;

  const Session& session_;
  Device device_;
};

}  // namespace gpulet::nvml

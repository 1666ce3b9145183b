// What the driver can be asked about how a GPU or MIG device is used: the numbers behind the metrics.
//
// Each call is one of NVML's, so that whoever samples asks for what is wanted and no more. kUnsupported with
// the function's name: this GPU or this driver does not have it. All other errors and threads as Session's.
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
  std::optional<Bytes> reserved;  // what the driver keeps; before 510 or so it is in `used`
};
struct PcieThroughput {
  std::uint64_t transmitted = 0, received = 0;  // KB/s
};
struct PowerLimits {
  MilliWatts least, most;
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

// NVML_FI_DEV_*: numbers of which one call gives many.
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
  kViolationPower = 74,  // nanoseconds, as the seven that follow
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
  kPowerInstant = 186,  // milliwatts
};

// A process and how much of the device's memory it holds.
struct ProcessMemory {
  Process process;
  std::optional<Bytes> memory;  // nullopt: the driver does not say
  friend bool operator==(const ProcessMemory&, const ProcessMemory&) = default;
};
// How busy a process kept a GPU in one sampling period of the driver that ended at `when_us`.
struct ProcessUtilization {
  unsigned pid = 0;
  std::uint64_t when_us = 0;                              // the driver's clock: CPU time since the epoch
  unsigned sm = 0, memory = 0, encoder = 0, decoder = 0;  // percent
  friend bool operator==(const ProcessUtilization&, const ProcessUtilization&) = default;
};

class Usage {
 public:
  // `session` outlives it. Only memory() and processes() can be asked of a MIG device.
  Usage(const Session& session, Device device) : session_(session), device_(device) {}

  Result<unsigned> clock(Clock clock) const;  // MHz
  Result<unsigned> max_clock(Clock clock) const;
  Result<unsigned> application_clock(Clock clock) const;
  Result<unsigned> memory_bus_width() const;   // bits
  Result<std::uint64_t> clock_events() const;  // why clocks are what they are
  Result<unsigned> performance_state() const;  // 0 is the fastest
  Result<unsigned> temperature() const;        // Celsius
  Result<unsigned> temperature_limit(TemperatureLimit limit) const;
  Result<unsigned> fan() const;  // percent
  Result<MilliWatts> power() const;
  Result<MilliWatts> power_limit() const;  // as was asked for
  Result<MilliWatts> enforced_power_limit() const;
  Result<MilliWatts> default_power_limit() const;
  Result<PowerLimits> power_limits() const;
  Result<Utilization> utilization() const;  // kUnsupported in MIG mode, as the next two
  Result<unsigned> encoder() const;         // percent
  Result<unsigned> decoder() const;
  Result<MemoryUse> memory() const;
  Result<MemoryUse> bar1() const;
  Result<unsigned> pcie_generation() const;
  Result<unsigned> max_pcie_generation() const;
  // The driver counts for 20 ms each way: twice that long in this call.
  Result<PcieThroughput> pcie_throughput() const;
  // Whether a licence of NVIDIA's vGPU software is in force; false where there is nothing to license.
  Result<bool> licensed() const;
  // Reads from the other GPU's memory. kInvalidArgument of a GPU with itself.
  Result<PeerToPeer> peer_to_peer(Device other) const;

  // Texts of the card: kUnsupported where it has none.
  Result<std::string> vbios() const;
  enum class Inforom { kOem, kEcc, kPower, kImage };
  Result<std::string> inforom(Inforom part) const;

  // What the driver has of `ids`, in one call. Those that this GPU or driver does not have are not in the
  // answer.
  Result<std::map<FieldId, std::uint64_t>> fields(const std::set<FieldId>& ids) const;

  // Every process with a compute, MPS or graphics context, each once, by pid: of a MIG device its own.
  Result<std::vector<ProcessMemory>> processes() const;
  // The samples that the driver took after `since_us` (0: all that it keeps), by pid and time; empty when
  // none. kUnsupported in MIG mode.
  Result<std::vector<ProcessUtilization>> process_utilization(std::uint64_t since_us) const;

 private:
  template <class Function, class... Arguments>
  Status ask(Function function, const char* name, Arguments... arguments) const;
  template <class Function>
  Result<unsigned> number(Function function, const char* name) const;
  template <class Function>
  Result<MilliWatts> milliwatts(Function function, const char* name) const;
  template <class Function>
  Result<unsigned> engine(Function function, const char* name) const;

  const Session& session_;
  Device device_;
};

}  // namespace gpulet::nvml

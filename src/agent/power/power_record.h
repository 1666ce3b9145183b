// What the agent has changed of the GPUs' power limits and clocks, in a file of the state directory, so that
// the next agent or `gpulet cleanup` restores what was there before, also after a crash: written before a
// value is set, and again once it is restored. And what is to be done about one GPU. Pure, but for the store.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/driver/power_control.h"
#include "base/result.h"
#include "base/types.h"
#include "partition/power_plan.h"

namespace gpulet::agent {

// Its name in gpulet.stateDir.
inline constexpr const char* kPowerFile = "power.json";
// A file that cannot be read is renamed to this.
inline constexpr const char* kBrokenPowerSuffix = ".broken";
inline constexpr std::size_t kMaxPowerFileBytes = 256u << 10;
inline constexpr std::size_t kMaxPowerGpus = 256;  // in the file

// Of one GPU.
struct PowerRecord {
  std::optional<MilliWatts> before{};  // the limit that the agent found; nullopt: it set none
  // The limits that it set: the last, and while it is replaced, the next; or what the driver made of it.
  std::vector<MilliWatts> set{};
  bool graphics = false, memory = false;  // it locked these clocks
  bool is_empty() const { return !before && !graphics && !memory; }
  friend bool operator==(const PowerRecord&, const PowerRecord&) = default;
};
using PowerRecords = std::map<DeviceUuid, PowerRecord>;

// Equal records have equal bytes, with a newline at the end.
std::string power_records_json(const PowerRecords& records);
// Reads back exactly that. Errors: kInvalidArgument for anything else.
Result<PowerRecords> parse_power_records(std::string_view json);

// A missing file is empty. Errors: those of reading and parse_power_records(), about the path.
Result<PowerRecords> load_power_records(const std::string& path);
// Without records there is no file. Blocks for a few file operations. Errors: those of the file.
Status save_power_records(const std::string& path, const PowerRecords& records);

// What the agent has last set of a GPU, in this process.
struct PowerApplied {
  std::uint64_t session = 0;  // PowerReading::session
  partition::ResolvedPower power{};
};

struct PowerStep {
  PowerWrites writes{};
  PowerRecord record{};  // in force before the writes
  PowerRecord after{};   // once they have succeeded
  std::string drift{};   // another program's limit, which is left alone: one line
};
// `wanted`: nothing in it means that what was there before is restored. Another program's limit is replaced
// only where `applied` differs from what is wanted, or the session does; the driver's default is nobody's:
// the driver was loaded again or the GPU was reset. `is_record_lost`: what was there before may be an earlier
// agent's: the default counts as that.
PowerStep plan_power_step(const PowerRecord& record, const partition::ResolvedPower& wanted,
                          const PowerReading& reading, const std::optional<PowerApplied>& applied,
                          bool is_record_lost = false);

}  // namespace gpulet::agent

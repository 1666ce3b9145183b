// `gpulet.preflight`, and the results of this boot: a file of gpulet.stateDir, text, safe to lose: idle GPUs
// are checked again then.
//
//   gpulet-preflight 1
//   boot 4c6f…
//   gpu GPU-5a… passed
//   started GPU-7c…
//   end
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "base/types.h"
#include "preflight/preflight_report.h"

namespace gpulet::preflight {

inline constexpr std::array<std::string_view, 2> kOccasionNames = {"boot", "return"};

struct Policy {
  bool enabled = false;
  bool at_boot = true;    // before a GPU is first offered after the boot of the node
  bool on_return = true;  // before a GPU that a fault withdrew is offered again, after a reset too
  std::vector<Check> checks = {Check::kMemory, Check::kCompute, Check::kHostCopy, Check::kPeerCopy};
  unsigned memory_mib = 4096;                          // of each GPU
  Duration timeout = std::chrono::seconds(30);         // of one run on a GPU
  unsigned parallel = 2;                               // GPUs at a time
  Duration retry_interval = std::chrono::minutes(10);  // of a GPU that a preflight has withdrawn
  friend bool operator==(const Policy&, const Policy&) = default;
};

struct BootRecord {
  std::string boot_id;
  std::map<DeviceUuid, Verdict::Kind> gpus;  // the last result of each, in this boot
  // Their run has begun, and an agent that finds them here has not seen it end: it may have ended the agent,
  // which has its memory in common with it.
  std::set<DeviceUuid> started{};
  friend bool operator==(const BootRecord&, const BootRecord&) = default;
};
inline constexpr std::size_t kMaxBootRecordBytes = 64u << 10;
inline constexpr std::size_t kMaxBootRecordGpus = 256;
inline std::string boot_record_path(const std::string& state_dir) { return state_dir + "/gpu-preflight"; }

std::string format_boot_record(const BootRecord& record);
// Errors: kInvalidArgument with the line number. Any order of lines, each GPU once.
Result<BootRecord> parse_boot_record(std::string_view text);
// Empty for a file that does not exist. Errors: those of read_file and parse_boot_record.
Result<BootRecord> read_boot_record(const std::string& path);
// Atomic, readable by its owner only. Blocks.
Status write_boot_record(const std::string& path, const BootRecord& record);

}  // namespace gpulet::preflight

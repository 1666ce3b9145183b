// What the repair of a node's GPUs remembers over a restart and a reboot: how often each GPU was reset, a
// reset in progress, and the last request for a reboot. A file of gpulet.stateDir, text, safe to lose: counts
// start over then.
//
//   gpulet-repair 1
//   resetting 4c6f… 1763712000123 GPU-5a…,GPU-7c…
//   gpu GPU-5a… 1763712000123,1763712600456
//   reboot 4c6f… 1763712000123 GPU-5a…
//   end
//
// resetting, reboot: the boot id, when it began, the GPUs. gpu: the times of its attempts, oldest first.
// Times are wall-clock milliseconds since 1970.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "base/types.h"

namespace gpulet::repair {

inline constexpr std::size_t kMaxRecordBytes = 512u << 10;
inline constexpr std::size_t kMaxRecordGpus = 256;
// Of one GPU: as many as gpulet.repair.reset.maxAttempts may ask for. The newest are kept.
inline constexpr std::size_t kMaxRecordAttempts = 100;

struct Record {
  struct Reset {
    std::string boot_id;
    WallTime since{};
    std::vector<DeviceUuid> gpus;
    friend bool operator==(const Reset&, const Reset&) = default;
  };
  struct Reboot {
    std::string boot_id;  // of the boot that is to end
    WallTime since{};
    std::vector<DeviceUuid> gpus{};  // those with the faults
    friend bool operator==(const Reboot&, const Reboot&) = default;
  };
  std::optional<Reset> resetting;
  std::map<DeviceUuid, std::vector<WallTime>> attempts;  // oldest first; none is empty
  std::optional<Reboot> reboot;                          // the last request, fulfilled or not
  friend bool operator==(const Record&, const Record&) = default;

  void add_attempt(const DeviceUuid& gpu, WallTime at);
  bool is_empty() const { return !resetting && attempts.empty() && !reboot; }
};

inline std::string record_path(const std::string& state_dir) { return state_dir + "/gpu-repair"; }

std::string format_record(const Record& record);
// Errors: kInvalidArgument with the line number.
Result<Record> parse_record(std::string_view text);
// Empty for a file that does not exist. Errors: those of read_file and parse_record.
Result<Record> read_record(const std::string& path);
// Atomic, readable by its owner only; an empty record removes the file. Blocks.
Status write_record(const std::string& path, const Record& record);

}  // namespace gpulet::repair

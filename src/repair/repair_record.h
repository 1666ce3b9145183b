// What the repair of a node's GPUs remembers over a restart and a reboot: how often each GPU was reset, a
// reset in progress, and the last request for a reboot. A file of gpulet.stateDir, text, safe to lose: counts
// start over then.
//
//   gpulet-repair 1
//   resetting 4c6f… 1763712000123 GPU-5a…,GPU-7c…
//   gpu GPU-5a… 2 1763712000123
//   reboot 4c6f… 1763712000123
//   end
//
// resetting, reboot: the boot id, when it began. gpu: attempts, the time of the last. Times are wall-clock
// milliseconds since 1970.
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

inline constexpr std::size_t kMaxRecordBytes = 64u << 10;
inline constexpr std::size_t kMaxRecordGpus = 256;
inline constexpr unsigned kMaxRecordAttempts = 1'000'000;

struct Record {
  struct Reset {
    std::string boot_id;
    WallTime since{};
    std::vector<DeviceUuid> gpus;
    friend bool operator==(const Reset&, const Reset&) = default;
  };
  struct Attempts {
    unsigned count = 0;
    WallTime last{};
    friend bool operator==(const Attempts&, const Attempts&) = default;
  };
  struct Reboot {
    std::string boot_id;  // of the boot that is to end
    WallTime since{};
    friend bool operator==(const Reboot&, const Reboot&) = default;
  };
  std::optional<Reset> resetting;
  std::map<DeviceUuid, Attempts> attempts;
  std::optional<Reboot> reboot;  // the last request, fulfilled or not
  friend bool operator==(const Record&, const Record&) = default;

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

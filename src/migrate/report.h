// What `gpulet migrate check` says: what runs, what becomes of each setting, what will differ, what is to be
// decided by hand, what to do in order, and the way back. Plain values; cli/migrate_report.h writes them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "migrate/facts.h"

namespace gpulet::migrate {

enum class Fate {
  kCarries,   // means the same here
  kNeedless,  // is not needed here, or has no effect here, and nothing is lost by it
  kDiffers,   // is read otherwise: on purpose, and said where
  kLost,      // has no counterpart
  kWrong,     // would be refused
};
std::string_view key(Fate fate);  // "carries": in JSON
std::string_view title(Fate fate);

struct Setting {
  std::string of;  // whose: Program::where(), or the file
  std::string name,
      value;  // "MIG_STRATEGY", "--mig-strategy", "flags.migStrategy"; no value where none is told
  Fate fate = Fate::kCarries;
  std::string note{};
  std::string variable{};  // how `gpulet agent` is told the same: "MIG_STRATEGY=mixed"; empty: not by one
};

struct Difference {
  std::string what, page;  // of the repository: "docs/adr/0004-a-fault-marks-the-whole-gpu-and-heals.md"
};

struct Found {
  Part part = Part::kDevicePlugin;
  std::string where, what;  // what: the image, the chart, a file's meaning
};

struct Report {
  std::string place;
  std::vector<Found> found{};
  std::vector<Setting> settings{};
  std::vector<Difference> differences{};
  std::vector<std::string> decide{};  // what a person must decide first, one line each
  std::vector<std::string> next{}, back{};
  std::vector<std::string> not_read{};

  // Whether all carries over and all was read.
  bool clear() const { return decide.empty() && not_read.empty(); }
};

}  // namespace gpulet::migrate

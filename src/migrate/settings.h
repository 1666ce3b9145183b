// What becomes of the settings of each program: flags, variables, config files and counters, judged by the
// very code that will read them (config/load.h in drop-in mode, metrics/counters.h). Pure.
#pragma once

#include <vector>

#include "migrate/facts.h"
#include "migrate/report.h"

namespace gpulet::migrate {

// What was met on the way, for what depends on it.
struct Met {
  bool dormant = false;       // resources, rename or devices of a config file
  bool unknown_keys = false;  // of a config file
  bool mps = false, time_slicing = false;
  bool cdi = false;  // a strategy cdi-*
};

struct JudgedSettings {
  std::vector<Setting> settings{};
  std::vector<std::string> decide{};
  Met met{};
};

JudgedSettings judge_settings(const Facts& facts);

}  // namespace gpulet::migrate

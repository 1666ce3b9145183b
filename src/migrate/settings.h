// What becomes of the settings of NVIDIA's programs, and how gpulet differs from them on purpose. Pure.
#pragma once

#include <vector>

#include "migrate/facts.h"
#include "migrate/report.h"

namespace gpulet::migrate {

// Evaluates the settings of each program: flags, variables, config files and counters, with the code that
// will read them (config/load.h in drop-in mode, metrics/counters.h). Pure.

// Traits of the configs that later steps depend on.
struct ConfigTraits {
  bool dormant = false;       // resources, rename or devices of a config file
  bool unknown_keys = false;  // of a config file
  bool mps = false, time_slicing = false;
  bool cdi = false;  // a strategy cdi-*
};

struct SettingsReport {
  std::vector<MigratedSetting> settings{};
  std::vector<std::string> decisions{};
  ConfigTraits traits{};
};

SettingsReport evaluate_settings(const Facts& facts);

// The deliberate differences between gpulet and NVIDIA's programs that apply to what was found, each with
// its page in docs/adr. Pure.

std::vector<Difference> find_differences(const Facts& facts, const ConfigTraits& met);

}  // namespace gpulet::migrate

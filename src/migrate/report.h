// The report of `gpulet migrate check`: what runs, what becomes of each setting, what will differ,
// decisions, next steps, and the way back. Plain values; the CLI prints them. What becomes of the settings is
// in report_settings.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "migrate/facts.h"

namespace gpulet::migrate {

enum class Outcome {
  kCarries,   // means the same here
  kNeedless,  // not needed, or without effect, and nothing is lost
  kDiffers,   // interpreted differently, on purpose and documented
  kLost,      // has no counterpart
  kWrong,     // would be rejected
};
std::string_view json_key(Outcome outcome);  // "carries": in JSON
std::string_view display_title(Outcome outcome);

struct MigratedSetting {
  std::string source;  // Program::location(), or the file
  std::string name,
      value;  // "MIG_STRATEGY", "--mig-strategy", "flags.migStrategy"; the value may be withheld
  Outcome outcome = Outcome::kCarries;
  std::string note{};
  std::string variable{};  // the agent's variable: "MIG_STRATEGY=mixed"; empty: none
};

struct Difference {
  std::string what, page;  // in the repository: "docs/adr/0004-withdraw-the-whole-gpu-on-a-fault.md"
};

struct FoundComponent {
  Component component = Component::kDevicePlugin;
  std::string location, description;  // the image, the chart, or what a file means
};

struct Report {
  std::string location;
  std::vector<FoundComponent> found{};
  std::vector<MigratedSetting> settings{};
  std::vector<Difference> differences{};
  std::vector<std::string> decisions{};  // decisions for the user, one line each
  std::vector<std::string> next_steps{}, rollback_steps{};
  std::vector<std::string> unread{};

  // Whether everything carries over and everything was read.
  bool is_clear() const { return decisions.empty() && unread.empty(); }
};

// The next steps in order, and the way back: commands with the names of the objects found. Pure.

struct MigrationSteps {
  std::vector<std::string> next{}, rollback{}, decisions{};
};
// `settings`: evaluated settings, which give the agent's variables.
MigrationSteps plan_steps(const Facts& facts, const std::vector<MigratedSetting>& settings);

// Builds the report of `gpulet migrate check` from the facts. Pure, any thread; the same facts give the same
// report.

Report build_report(const Facts& facts);

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

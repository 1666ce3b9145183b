// What to do next, in order, and the way back: commands for what was found, with the objects' own names.
// Pure.
#pragma once

#include <string>
#include <vector>

#include "migrate/facts.h"
#include "migrate/report.h"

namespace gpulet::migrate {

struct Steps {
  std::vector<std::string> next{}, back{}, decide{};
};
// `settings` as judged: the variables that the agent is to be given come out of them.
Steps steps_of(const Facts& facts, const std::vector<Setting>& settings);

}  // namespace gpulet::migrate

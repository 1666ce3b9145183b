// The flags of one of NVIDIA's programs, as Go reads them: "--name=value", "--name value", "-name", a boolean
// without a value, several values of one name. Which take a value is what the tables of settings know.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "migrate/facts.h"

namespace gpulet::migrate {

using Flags = std::map<std::string, std::vector<std::string>, std::less<>>;  // without dashes

struct GivenFlags {
  Flags flags;
  std::vector<std::string> words;  // what is no flag: a subcommand
};

GivenFlags read_flags(Part part, const std::vector<std::string>& arguments);

// What may be secret, or is no setting of anybody's that we know, is not to be printed: whether this
// variable's value may be.
bool known_variable(Part part, std::string_view name);

}  // namespace gpulet::migrate

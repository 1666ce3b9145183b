// One setting's value out of a text (flag, environment) or a node of the file, and whether it will do. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/schema.h"
#include "config/yaml.h"

namespace gpulet::config {

// A value in the form of the environment and the command line, where it may have been given several times:
// the last one counts, or all of them for a list. Errors: kInvalidArgument, a text that is not of the
// setting's kind.
Result<Value> from_text(const Setting& setting, const std::vector<std::string>& given);

// A value in the form of the file. Errors: kInvalidArgument, "expected …, found …". Precondition: node is not
// null.
Result<Value> from_node(const Setting& setting, const yaml::Node& node);

// What is wrong with a value of the right kind, in one line: none of the choices, out of range, no
// host:port….
std::optional<std::string> value_error(const Setting& setting, const Value& value);

}  // namespace gpulet::config

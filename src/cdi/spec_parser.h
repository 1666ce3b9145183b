// Parses CDI documents strictly and reports every problem with line and field. The rules are those
// of CDI's schema (schema.json, defs.json) and Go library, which every engine uses: names, kinds,
// versions and what each needs, types of all fields, no unknown fields.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cdi/spec.h"
#include "config/yaml.h"

namespace gpulet::cdi {

// The characters of a CDI name: "nvidia.com/gpu=0" is vendor/class=device. Source: CDI's parser.go.
// Vendor and class: letters, digits, '_', '-' and '.'; a letter first, and a letter or digit last. Errors:
// kInvalidArgument.
Status check_vendor(std::string_view vendor);
Status check_class(std::string_view device_class);
// Device: letters, digits, '_', '-', '.' and ':'; a letter or digit first and last. Errors: kInvalidArgument.
Status check_device_name(std::string_view name);

// "nvidia.com/gpu=0".
std::string qualified_name(std::string_view kind, std::string_view device);

struct SpecProblem {
  std::string file;
  config::yaml::Position position;  // line 0: the whole file
  std::string field;                // "devices[0].containerEdits.deviceNodes[1].path"
  std::string message;
  // "nvidia.yaml:12:7: devices[0].name: …".
  std::string problem_text() const;
};

struct ReadSpec {
  std::optional<Spec> spec;  // if there is no problem
  std::vector<SpecProblem> problems;
};

// JSON or YAML, at most config::yaml::kMaxTextBytes.
ReadSpec read_spec(std::string_view text, const std::string& file);

}  // namespace gpulet::cdi

// CDI documents of whoever wrote them: read strictly, with every mistake by its line and field. The rules are
// those of the CDI's schema (schema.json, defs.json) and of its Go library, which every engine uses: names,
// kinds, versions and what each needs, types of all fields, no field that it does not know.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cdi/spec.h"
#include "config/yaml.h"

namespace gpulet::cdi {

struct SpecProblem {
  std::string file;
  config::yaml::Position position;  // line 0: of the whole file
  std::string field;                // "devices[0].containerEdits.deviceNodes[1].path"
  std::string message;
  // "nvidia.yaml:12:7: devices[0].name: …".
  std::string text() const;
};

struct ReadSpec {
  std::optional<Spec> spec;  // when there is no problem
  std::vector<SpecProblem> problems;
};

// JSON or YAML. At most config::yaml::kMaxTextBytes.
ReadSpec read_spec(std::string_view text, const std::string& file);

}  // namespace gpulet::cdi

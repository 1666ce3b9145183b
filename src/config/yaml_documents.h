// A text of several YAML documents, as kubectl reads it: a file of manifests. Limits, positions and errors
// are those of config/yaml.h, for the whole text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "config/yaml.h"

namespace gpulet::config::yaml {

inline constexpr std::size_t kMaxDocuments = 1000;

// Every document that is not empty, in order; none has `second`. Errors: those of parse_yaml;
// kInvalidArgument for more than kMaxDocuments.
Result<std::vector<Document>> parse_documents(std::string_view text, const std::string& file);

}  // namespace gpulet::config::yaml

#include "scheduler/task.h"

#include <algorithm>

#include "base/text.h"

namespace gpulet::scheduler {

Result<ModelId> Models::id(std::string_view name) {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found == names_.end()) {
    if (names_.size() == kMaxModels) {
      return fail(Code::kInvalidArgument, "model '" + std::string(name) + "' is one more than the " +
                                              std::to_string(kMaxModels) + " that are kept apart");
    }
    names_.emplace_back(name);
    return static_cast<ModelId>(names_.size() - 1);
  }
  return static_cast<ModelId>(found - names_.begin());
}

Result<ModelSet> Models::set(std::string_view names) {
  ModelSet models;
  for (const std::string& part : text::split(names, '|')) {
    const std::string_view name = text::trim(part);
    if (name.empty()) {
      return fail(Code::kInvalidArgument,
                  "'" + std::string(names) + "' has an empty model in it; write A|B, or nothing for any");
    }
    GPULET_TRY_ASSIGN(const ModelId model, id(name));
    models.bits |= std::uint64_t{1} << model;
  }
  return models;
}

}  // namespace gpulet::scheduler

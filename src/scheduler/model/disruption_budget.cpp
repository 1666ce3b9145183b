#include "scheduler/model/disruption_budget.h"

#include <algorithm>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace gpulet::scheduler {
namespace {

using nlohmann::json;

// The value of a label in "key=value\n" lines; nullopt without the label.
std::optional<std::string_view> find_label(std::string_view labels, std::string_view key) {
  while (!labels.empty()) {
    const auto line = labels.substr(0, labels.find('\n'));
    labels.remove_prefix(std::min(line.size() + 1, labels.size()));
    if (line.size() > key.size() && line[key.size()] == '=' && line.starts_with(key))
      return line.substr(key.size() + 1);
  }
  return std::nullopt;
}

bool is_met(const LabelRequirement& requirement, std::string_view labels) {
  const auto value = find_label(labels, requirement.key);
  const auto listed = [&] {
    return std::ranges::find(requirement.values, *value) != requirement.values.end();
  };
  switch (requirement.op) {
    case LabelOperator::kIn:
      return value && listed();
    case LabelOperator::kNotIn:
      return !value || !listed();
    case LabelOperator::kExists:
      return value.has_value();
    case LabelOperator::kDoesNotExist:
      return !value;
  }
  return false;
}

std::optional<LabelOperator> parse_operator(const std::string& name) {
  if (name == "In") return LabelOperator::kIn;
  if (name == "NotIn") return LabelOperator::kNotIn;
  if (name == "Exists") return LabelOperator::kExists;
  if (name == "DoesNotExist") return LabelOperator::kDoesNotExist;
  return std::nullopt;
}

std::vector<LabelRequirement> read_selector(const json& selector) {
  std::vector<LabelRequirement> requirements;
  if (const auto& labels = json_member(selector, "matchLabels"); labels.is_object()) {
    for (const auto& [key, value] : labels.items())
      requirements.push_back({.key = key, .op = LabelOperator::kIn, .values = {json_text(value)}});
  }
  if (const auto& expressions = json_member(selector, "matchExpressions"); expressions.is_array()) {
    for (const auto& one : expressions) {
      const auto op = parse_operator(json_text(json_member(one, "operator")));
      if (!op) return {};
      LabelRequirement requirement{.key = json_text(json_member(one, "key")), .op = *op, .values = {}};
      if (const auto& values = json_member(one, "values"); values.is_array()) {
        for (const auto& value : values) requirement.values.push_back(json_text(value));
      }
      requirements.push_back(std::move(requirement));
    }
  }
  if (requirements.size() > kMaxBudgetRequirements) return {};
  return requirements;
}

}  // namespace

bool DisruptionBudget::matches_pod(std::string_view pod_name_space, std::string_view labels) const {
  return pod_name_space == name_space && !selector.empty() && !labels.empty() &&
         std::ranges::all_of(selector, [&](const auto& requirement) { return is_met(requirement, labels); });
}

bool DisruptionBudget::counts_as_disrupted(std::string_view pod_name) const {
  return std::ranges::binary_search(disrupted, pod_name);
}

Result<DisruptionBudget> parse_disruption_budget(std::string_view text) {
  if (text.size() > kMaxBudgetBytes)
    return fail(Code::kInvalidArgument, "not a PodDisruptionBudget: larger than 4 MiB");
  const auto object = parse_json(text);
  const auto& metadata = json_member(object, "metadata");
  DisruptionBudget budget{.name_space = json_text(json_member(metadata, "namespace")),
                          .name = json_text(json_member(metadata, "name")),
                          .selector = read_selector(json_member(json_member(object, "spec"), "selector")),
                          .disrupted = {}};
  if (budget.name.empty())
    return fail(Code::kInvalidArgument, "not a PodDisruptionBudget: metadata.name is missing");
  const auto& status = json_member(object, "status");
  if (const auto& allowed = json_member(status, "disruptionsAllowed"); allowed.is_number_integer())
    budget.allowed = std::max<std::int64_t>(allowed.get<std::int64_t>(), 0);
  if (const auto& disrupted = json_member(status, "disruptedPods"); disrupted.is_object()) {
    for (const auto& [pod, when] : disrupted.items()) budget.disrupted.push_back(pod);
    std::ranges::sort(budget.disrupted);
  }
  return budget;
}

}  // namespace gpulet::scheduler

// PodDisruptionBudgets, as far as preemption asks them. Pure. Source: Kubernetes API policy/v1,
// PodDisruptionBudget; API machinery, LabelSelector.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::scheduler {

inline constexpr const char* kDisruptionBudgetsPath = "/apis/policy/v1/poddisruptionbudgets";
inline constexpr std::size_t kMaxBudgetBytes = 4u << 20;  // the API server stores 1.5 MiB
inline constexpr std::size_t kMaxBudgetRequirements = 256;

// One requirement of a label selector, all of which must hold.
enum class LabelOperator { kIn, kNotIn, kExists, kDoesNotExist };
struct LabelRequirement {
  std::string key;
  LabelOperator op = LabelOperator::kIn;
  std::vector<std::string> values;  // of kIn and kNotIn
  friend bool operator==(const LabelRequirement&, const LabelRequirement&) = default;
};

struct DisruptionBudget {
  std::string name_space, name;
  // Empty: matches no Pod, as for kube-scheduler.
  std::vector<LabelRequirement> selector;
  std::int64_t allowed = 0;            // status.disruptionsAllowed
  std::vector<std::string> disrupted;  // Pods that the API server counted already, sorted
  // `labels`: as of a PodRequest.
  bool matches_pod(std::string_view pod_name_space, std::string_view labels) const;
  bool counts_as_disrupted(std::string_view pod_name) const;
};

// Parses an object of the API server. A selector with an unknown operator or too many requirements matches no
// Pod, as an invalid one does for kube-scheduler. Errors: kInvalidArgument for invalid JSON, more than
// kMaxBudgetBytes or a missing name.
Result<DisruptionBudget> parse_disruption_budget(std::string_view json);

}  // namespace gpulet::scheduler

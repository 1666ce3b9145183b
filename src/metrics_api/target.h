// What a request's target asks for. Pure: whatever the bytes are.
// Source: Kubernetes custom metrics API, design proposal "custom-metrics-api"; API concepts, "Resource URIs".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "base/result.h"

namespace gpulet::metrics_api {

inline constexpr std::string_view kGroup = "custom.metrics.k8s.io";
inline constexpr std::string_view kVersions[] = {"v1beta2", "v1beta1"};  // the better first

struct Health {
  bool ready = false;  // /readyz: whether requests can be answered; else whether the process works
};
struct Groups {};  // /apis
struct Group {};   // /apis/GROUP
struct Resources {
  std::string version;
};
// /apis/GROUP/VERSION/namespaces/NAMESPACE/pods/POD/METRIC
struct PodMetric {
  std::string version, name_space;
  std::string pod;  // "*": those of the selector, or all
  std::string metric;
  std::string selector;  // of labels, as Kubernetes writes them; empty: every Pod
  bool all() const { return pod == "*"; }
};
struct Unknown {};
using Target = std::variant<Health, Groups, Group, Resources, PodMetric, Unknown>;

// Errors: kInvalidArgument for escapes that are none, a name that cannot be one, and a selection that is not
// served: by the metric's labels, which these metrics do not have, by fields, as a watch.
Result<Target> parse_target(std::string_view target);

// The path without its query, as authorization sees it.
std::string_view path_of(std::string_view target);

// "%41" and, in a query, "+" undone; nullopt for what is no escape.
std::optional<std::string> unescaped(std::string_view text, bool query);

}  // namespace gpulet::metrics_api

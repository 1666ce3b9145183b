// A Pod's own labels on its metrics: those that a list of patterns allows, under names that Prometheus takes.
// Pure.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace gpulet::metrics {

// Regular expressions of which one must be found in a label's key. Empty: all are allowed, as in
// dcgm-exporter.
class LabelPatterns {
 public:
  LabelPatterns() = default;
  // Errors: kInvalidArgument: which pattern is none, and why.
  static Result<LabelPatterns> parse(const std::vector<std::string>& patterns, const std::string& about);
  bool allow(const std::string& key) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

// "app.kubernetes.io/name" is app_kubernetes_io_name. Sorted by name; of two keys that become one the first
// stands.
std::vector<std::pair<std::string, std::string>> to_labels(const std::map<std::string, std::string>& labels,
                                                           const LabelPatterns& patterns);

}  // namespace gpulet::metrics

// The labels of a node, from what the driver and the configuration say, each with the reason for it. Pure.
//
// Which model nvidia.com/gpu.… speaks of on a node with several: one with a GPU that is not cut up comes
// before one without, as in NVIDIA's program; then the one of most GPUs, then of most memory, then by name.
// It does not depend on the order in which the driver counts. Every model has gpulet.io/model.<model>.… as
// well. Source: facts/device-plugin 1.10; labels/rules.h has each label's rule.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "config/config.h"
#include "inventory/snapshot.h"
#include "labels/rules.h"

namespace gpulet::labels {

struct Label {
  std::string value;               // as Kubernetes takes it
  const Rule* rule = nullptr;      // never null
  std::string about;               // whom it speaks of: "GPU 0-7"; empty for the node
  std::optional<std::string> was;  // before it was cut or cleaned, where that changed it
  friend bool operator==(const Label&, const Label&) = default;
};
using Labels = std::map<std::string, Label>;  // by key

struct Input {
  const inventory::Snapshot& snapshot;
  const config::Config& config;
  // The Node's own, for rules of gpulet.partition that go by them.
  const std::map<std::string, std::string>& node_labels;
  std::optional<std::string> machine;     // content of flags.gfd.machineTypeFile; nullopt: cannot be read
  std::optional<std::int64_t> timestamp;  // of nvidia.com/gfd.timestamp; nullopt: without
};

// None for a node without GPUs. A GPU that cannot be read counts with what was learned of it before; one of
// which nothing was ever learned does not count. Cost: that of partition::plan() and topology::build().
Labels labels_of(const Input& input);

// Only keys and values.
std::map<std::string, std::string> plain(const Labels& labels);

// "key=value" lines, by key: what NFD reads from its folder features.d.
std::string features_text(const std::map<std::string, std::string>& labels);

}  // namespace gpulet::labels

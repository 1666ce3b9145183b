// The table of node labels, the form of label keys and values, and the labels of a node. docs/labels.md and
// `gpulet labels --explain` show the table. Sources: k8s-device-plugin v0.20.0's feature discovery for
// nvidia.com/…; gpulet.io/… is gpulet's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "config/config.h"
#include "inventory/snapshot.h"

namespace gpulet::labels {

struct LabelRule {
  std::string_view key;     // a part in angle brackets is variable: "nvidia.com/mig-<profile>.count"
  std::string_view rule;    // the meaning of the value, one line
  std::string_view source;  // the source of the value
};

// In the order of the documentation; keys are unique.
std::span<const LabelRule> label_rules();

// The rule of a key; null if gpulet does not write it.
const LabelRule* find_rule(std::string_view key);

inline constexpr std::string_view kGpuletPrefix = "gpulet.io/";

// Kubernetes' form of labels. Source: Kubernetes, "Labels and Selectors", syntax and character set. NVIDIA's
// feature discovery drops the same characters but cuts nothing, so the API server rejects its long names.

// Limit of a value and of a key's part after the '/'.
inline constexpr std::size_t kMaxLabelLength = 63;

bool is_valid_value(std::string_view value);
// "nvidia.com/gpu.product": a DNS subdomain, a '/', and a name.
bool is_valid_key(std::string_view key);

// Makes `raw` + `suffix` a valid value: drops all but letters, digits, '-', '_', '.' and blanks; turns runs
// of blanks into one '-'; cuts `raw` so that the whole fits kMaxLabelLength; strips both ends to letters and
// digits. Valid values stay unchanged. Precondition: `suffix` is at most 48 bytes of letters, digits, '-',
// '_' and '.', and ends with a letter or a digit.
std::string sanitise_value(std::string_view raw, std::string_view suffix = {});

// Makes `raw` a part of a key of at most `most` bytes, as sanitise_value(). A cut text ends with six
// hexadecimal digits of its hash, so that two long texts stay different. "unnamed" if nothing is left.
// Precondition: most >= 16.
std::string sanitise_key_part(std::string_view raw, std::size_t most);

// The labels of a node from the snapshot and the configuration, each with its reason. Pure.
//
// On a node with several models, nvidia.com/gpu.… describes one: a model with a GPU without MIG devices
// before one without, as in NVIDIA's program; then the one with the most GPUs, the most memory, by name. The
// driver's order does not matter. Every model has gpulet.io/model.<model>.….

struct Label {
  std::string value;                    // valid in Kubernetes
  const LabelRule* rule = nullptr;      // never null
  std::string subject;                  // the described GPUs: "GPU 0-7"; empty: the node
  std::optional<std::string> original;  // the text before sanitising, if that changed it
  friend bool operator==(const Label&, const Label&) = default;
};
using Labels = std::map<std::string, Label>;  // by key

struct LabelInput {
  const inventory::Snapshot& snapshot;  // marked by partition::mark_excluded_gpus
  const config::Config& config;
  // The Node's labels, for conditions of gpulet.partition.
  const std::map<std::string, std::string>& node_labels;
  std::optional<std::string> machine;     // content of flags.gfd.machineTypeFile; nullopt: unreadable
  std::optional<std::int64_t> timestamp;  // nvidia.com/gfd.timestamp; nullopt: no such label
};

// Empty for a node without GPUs. They describe what is offered: a GPU that a rule excludes does not count,
// nor do its MIG devices. An unreadable GPU counts with its last known properties; a GPU that was never read
// does not count, nor do the MIG devices of a GPU with a rule dynamicMig, which come and go with claims.
// Cost: that of partition::plan_resources() and topology::build().
Labels build_labels(const LabelInput& input);

// Keys and values only.
std::map<std::string, std::string> plain_labels(const Labels& labels);

// "key=value" lines by key, for NFD's directory features.d.
std::string features_text(const std::map<std::string, std::string>& labels);

}  // namespace gpulet::labels

// Every label that a node can have of us, with its rule: what docs/labels.md lists and `gpulet labels
// --explain` says. Source: facts/device-plugin 1.10 for nvidia.com/…, as k8s-device-plugin v0.20.0's feature
// discovery has it; the rest, gpulet.io/…, is ours.
#pragma once

#include <span>
#include <string_view>

namespace gpulet::labels {

struct Rule {
  std::string_view key;     // a part in angle brackets stands for any: "nvidia.com/mig-<profile>.count"
  std::string_view rule;    // what the value says, one line
  std::string_view source;  // where it comes from
};

// In the order in which they are listed; each key once.
std::span<const Rule> rules();

// The rule of a label; null for a key that is none of ours.
const Rule* rule_of(std::string_view key);

inline constexpr std::string_view kOwnPrefix = "gpulet.io/";

}  // namespace gpulet::labels

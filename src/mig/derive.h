// The layouts that a GPU itself offers, for nodes without a file of layouts: the names are those of
// mig-parted's own default and generated files, so that a node's label goes on to work, and the counts the
// driver's.
//   all-disabled, all-enabled       no instances
//   all-<profile>                   as many of it as fit; a '+' is a '.', as a label's value has none
//   all-balanced                    2 of 1g, 1 of 2g and, with seven slices, 1 of 3g
// Source: mig-parted v0.15.0, pkg/mig/builder and deployments/systemd/config-default.yaml.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "mig/layout.h"
#include "mig/state.h"

namespace gpulet::mig {

struct NamedLayout {
  std::string name;
  Layout layout;
  friend bool operator==(const NamedLayout&, const NamedLayout&) = default;
};

// Of one GPU, by name; only all-disabled where it has no MIG. Each fits on it.
std::vector<NamedLayout> derive(const State& gpu);

// Of each GPU the one of that name; nullopt for a GPU that has none such, as one without the profile. Errors:
// kNotFound, no GPU has one, with the nearest names.
Result<std::vector<std::optional<Layout>>> derived(std::string_view name, std::span<const State> gpus);

}  // namespace gpulet::mig

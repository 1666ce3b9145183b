// How GPUs and MIG devices are offered, as their labels say it: read from the plan that the kubelet's offers
// are made of (partition/resources.h), so that both tell the same. Pure.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/config.h"
#include "inventory/snapshot.h"
#include "labels/models.h"

namespace gpulet::labels {

struct Way {
  unsigned replicas = 1;  // shares of one device
  config::SharingStrategy sharing = config::SharingStrategy::kNone;
  bool renamed = false;  // offered under another name than unshared
  friend auto operator<=>(const Way&, const Way&) = default;
};
std::string name(config::SharingStrategy sharing);  // "none", "time-slicing", "mps"

class Sharing {
 public:
  // `snapshot` and `config` outlive it.
  Sharing(const inventory::Snapshot& snapshot, const config::Config& config,
          const std::map<std::string, std::string>& node_labels);

  // flags.migStrategy; where gpulet.partition cuts GPUs up, single if all of the node is one kind of MIG
  // device under the name of whole GPUs, else mixed.
  config::MigStrategy strategy() const { return strategy_; }
  bool uses_mps() const { return uses_mps_; }

  // Where devices are offered in several ways, the way of most of them; of as many, the one of fewest shares.
  // A device that is not offered counts as unshared. Of GPUs only those that are not cut up count; 0 shares
  // where all are.
  Way of_whole(const std::vector<const inventory::Gpu*>& gpus) const;
  Way of_mig(const std::vector<Profile::Device>& devices) const;

 private:
  using Key = std::pair<std::size_t, std::optional<std::size_t>>;  // as partition::Device::gpu, ::mig
  Way way_of(const Key& key) const;
  std::size_t place(const inventory::Gpu* gpu) const;

  const inventory::Snapshot& snapshot_;
  std::map<Key, Way> offered_;
  config::MigStrategy strategy_;
  bool uses_mps_ = false;
};

}  // namespace gpulet::labels

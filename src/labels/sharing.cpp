#include "labels/sharing.h"

#include <algorithm>
#include <set>

#include "partition/names.h"
#include "partition/resources.h"

namespace gpulet::labels {
namespace {

using inventory::Gpu;

// The name without sharing. Without a strategy of its own a GPU that is cut up by rule is mixed.
ResourceName unshared_name(const Gpu& gpu, const std::optional<std::size_t>& mig,
                           const config::Config& config) {
  if (!mig) return partition::gpu_resource(gpu, config);
  const auto strategy = config.flags.mig_strategy == config::MigStrategy::kSingle
                            ? config::MigStrategy::kSingle
                            : config::MigStrategy::kMixed;
  return partition::mig_resource(gpu.mig_devices[*mig], config, strategy).value_or(ResourceName());
}

Way most_common(const std::map<Way, std::size_t>& counts) {
  Way found;
  std::size_t most = 0;
  for (const auto& [way, count] : counts) {  // by Way: the fewest shares first
    if (count <= most) continue;
    found = way;
    most = count;
  }
  return found;
}

}  // namespace

std::string name(config::SharingStrategy sharing) {
  switch (sharing) {
    case config::SharingStrategy::kNone:
      break;
    case config::SharingStrategy::kTimeSlicing:
      return "time-slicing";
    case config::SharingStrategy::kMps:
      return "mps";
  }
  return "none";
}

Sharing::Sharing(const inventory::Snapshot& snapshot, const config::Config& config,
                 const std::map<std::string, std::string>& node_labels)
    : snapshot_(snapshot), strategy_(config.flags.mig_strategy) {
  const auto plan = partition::plan(snapshot, config, {.labels = node_labels, .withdrawn = {}});
  bool cut = false, alike = std::ranges::all_of(snapshot.gpus, &Gpu::mig_enabled);
  std::set<std::string> profiles;
  for (const auto& resource : plan.resources) {
    uses_mps_ = uses_mps_ || resource.sharing == config::SharingStrategy::kMps;
    for (const auto& device : resource.devices) {
      const Gpu& gpu = snapshot.gpus[device.gpu];
      const bool own_name = resource.name == unshared_name(gpu, device.mig, config);
      const auto [at, first] = offered_.try_emplace({device.gpu, device.mig}, Way{0, resource.sharing, true});
      ++at->second.replicas;
      if (own_name) at->second.renamed = false;
      if (!device.mig) continue;
      cut = true;
      profiles.insert(gpu.mig_devices[*device.mig].profile);
      alike = alike && resource.name == partition::gpu_resource(gpu, config);
    }
  }
  if (config.gpulet.partition.empty() || !cut) return;
  strategy_ = alike && profiles.size() == 1 ? config::MigStrategy::kSingle : config::MigStrategy::kMixed;
}

Way Sharing::way_of(const Key& key) const {
  const auto found = offered_.find(key);
  return found == offered_.end() ? Way() : found->second;
}

std::size_t Sharing::place(const Gpu* gpu) const {
  return static_cast<std::size_t>(gpu - snapshot_.gpus.data());
}

Way Sharing::of_whole(const std::vector<const Gpu*>& gpus) const {
  std::map<Way, std::size_t> counts;
  for (const Gpu* gpu : gpus) {
    if (!gpu->mig_enabled) ++counts[way_of({place(gpu), std::nullopt})];
  }
  if (counts.empty()) return {.replicas = 0};
  return most_common(counts);
}

Way Sharing::of_mig(const std::vector<Profile::Device>& devices) const {
  std::map<Way, std::size_t> counts;
  for (const auto& [gpu, mig] : devices) {
    ++counts[way_of({place(gpu), static_cast<std::size_t>(mig - gpu->mig_devices.data())})];
  }
  return most_common(counts);
}

}  // namespace gpulet::labels

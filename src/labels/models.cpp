#include "labels/models.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "labels/labels.h"
#include "partition/limit_means.h"
#include "partition/resources.h"
#include "partition/rules.h"

namespace gpulet::labels {
namespace {

using inventory::Gpu;
using inventory::MigDevice;

// Longer than every known model name, and short enough for the rest of the key.
constexpr std::size_t kMaxModelKey = 40;
constexpr std::size_t kMaxProfileKey = 32;

template <class Value>
void take_least(Value& into, const Value& value) {
  if (value != Value{} && (into == Value{} || value < into)) into = value;
}

Model model_of(std::vector<const Gpu*> gpus) {
  Model model;
  // Names with the same key are one model.
  model.name = (*std::ranges::min_element(gpus, {}, &Gpu::model))->model;
  model.key = sanitise_key_part(model.name, kMaxModelKey);
  std::tuple<unsigned, unsigned, std::string> compute;
  for (const Gpu* gpu : gpus) {
    take_least(model.memory.value, gpu->memory.value);
    take_least(model.bandwidth, gpu->memory_bandwidth);
    if (gpu->compute_major != 0) {
      take_least(compute, std::tuple(gpu->compute_major, gpu->compute_minor, gpu->architecture));
    }
  }
  std::tie(model.compute_major, model.compute_minor, model.architecture) = compute;
  model.gpus = std::move(gpus);
  return model;
}

bool comes_before(const Model& a, const Model& b) {
  const auto rank = [](const Model& model) {
    const bool whole = std::ranges::any_of(model.gpus, [](const Gpu* gpu) { return !gpu->mig_enabled; });
    return std::tuple(whole, model.gpus.size(), model.memory.value);
  };
  const auto rank_a = rank(a), rank_b = rank(b);
  return rank_a != rank_b ? rank_a > rank_b : a.name < b.name;
}

auto attributes(const MigDevice& mig) {
  return std::tuple(mig.memory.value, mig.multiprocessors, mig.gpu_slices, mig.compute_slices,
                    mig.copy_engines, mig.decoders, mig.encoders, mig.jpegs, mig.ofas);
}

}  // namespace

std::vector<Model> group_by_model(const inventory::Snapshot& snapshot) {
  std::map<std::string, std::vector<const Gpu*>> by_key;
  for (const auto& gpu : snapshot.gpus) {
    if (gpu.model.empty() || partition::is_display_adapter(gpu) || !gpu.excluded.empty()) continue;
    by_key[sanitise_key_part(gpu.model, kMaxModelKey)].push_back(&gpu);
  }
  std::vector<Model> models;
  for (auto& [key, gpus] : by_key) models.push_back(model_of(std::move(gpus)));
  std::ranges::sort(models, comes_before);
  return models;
}

std::vector<const Gpu*> Profile::profile_gpus() const {
  std::vector<const Gpu*> found;
  for (const auto& [gpu, mig] : devices) {
    if (std::ranges::count(found, gpu) == 0) found.push_back(gpu);
  }
  return found;
}

const MigDevice& Profile::smallest_device() const {
  return *std::ranges::min_element(devices, {}, [](const Device& device) {
            return attributes(*device.second);
          })->second;
}

std::vector<Profile> group_by_profile(const std::vector<Model>& models) {
  std::map<std::string, Profile> profiles;
  std::map<std::string, std::size_t> most;
  for (const auto& model : models) {
    std::map<std::string, std::size_t> counts;
    for (const Gpu* gpu : model.gpus) {
      for (const auto& mig : gpu->mig_devices) {
        std::string name = mig.profile;
        std::ranges::replace(name, '+', '.');
        name = sanitise_key_part(name, kMaxProfileKey);
        profiles[name].devices.emplace_back(gpu, &mig);
        ++counts[name];
      }
    }
    for (const auto& [name, count] : counts) {
      if (count <= most[name]) continue;
      most[name] = count;
      profiles[name].model = model.name;
    }
  }
  std::vector<Profile> all;
  for (auto& [name, profile] : profiles) {
    profile.name = name;
    all.push_back(std::move(profile));
  }
  return all;
}

std::string gpu_range_text(std::vector<const Gpu*> gpus) {
  std::ranges::sort(gpus, {}, &Gpu::index);
  std::string text = "GPU ";
  for (std::size_t i = 0; i < gpus.size();) {
    std::size_t last = i;
    while (last + 1 < gpus.size() && gpus[last + 1]->index == gpus[last]->index + 1) ++last;
    text += (i > 0 ? "," : "") + std::to_string(gpus[i]->index);
    if (last > i) text += "-" + std::to_string(gpus[last]->index);
    i = last + 1;
  }
  return text;
}

namespace {

using inventory::Gpu;

// The name without sharing. A GPU with MIG by rule counts as mixed unless the rule has a strategy.
ResourceName unshared_name(const Gpu& gpu, const std::optional<std::size_t>& mig,
                           const config::Config& config) {
  if (!mig) return partition::gpu_resource_name(gpu, config);
  const auto strategy = config.flags.mig_strategy == config::MigStrategy::kSingle
                            ? config::MigStrategy::kSingle
                            : config::MigStrategy::kMixed;
  return partition::mig_resource_name(gpu.mig_devices[*mig], config, strategy).value_or(ResourceName());
}

SharingMode most_common(const std::map<SharingMode, std::size_t>& counts) {
  SharingMode found;
  std::size_t most = 0;
  for (const auto& [way, count] : counts) {  // by Way: the fewest shares first
    if (count <= most) continue;
    found = way;
    most = count;
  }
  return found;
}

}  // namespace

std::string sharing_name(config::SharingStrategy sharing) {
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

SharingView::SharingView(const inventory::Snapshot& snapshot, const config::Config& config,
                         const std::map<std::string, std::string>& node_labels)
    : snapshot_(snapshot), strategy_(config.flags.mig_strategy) {
  const auto plan = partition::plan_resources(snapshot, config, {.labels = node_labels, .withdrawn = {}});
  bool cut = false, alike = std::ranges::all_of(snapshot.gpus, [&](const Gpu& gpu) {
                      return gpu.mig_enabled || !gpu.excluded.empty();
                    });
  std::set<std::string> profiles;
  std::vector<const partition::Resource*> resources;
  for (const auto& resource : plan.resources) {
    resources.push_back(&resource);
    uses_mps_ = uses_mps_ || resource.sharing == config::SharingStrategy::kMps;
    for (const auto& device : resource.devices) {
      const Gpu& gpu = snapshot.gpus[device.gpu];
      const bool own_name = resource.name == unshared_name(gpu, device.mig, config);
      const auto [at, first] =
          modes_.try_emplace({device.gpu, device.mig}, SharingMode{0, resource.sharing, true});
      ++at->second.replicas;
      if (own_name) at->second.renamed = false;
      if (!device.mig) continue;
      cut = true;
      profiles.insert(gpu.mig_devices[*device.mig].profile);
      alike = alike && resource.name == partition::gpu_resource_name(gpu, config);
    }
  }
  const auto of_claims = partition::planned_claim_shares(snapshot, config, node_labels);
  resources.push_back(&of_claims);
  limit_grade_ = fraction::grade_of_node(partition::common_limit_means(resources, snapshot, config)).grade;
  if (config.gpulet.partition.empty() || !cut) return;
  strategy_ = alike && profiles.size() == 1 ? config::MigStrategy::kSingle : config::MigStrategy::kMixed;
}

SharingMode SharingView::mode_of(const Key& key) const {
  const auto found = modes_.find(key);
  return found == modes_.end() ? SharingMode() : found->second;
}

std::size_t SharingView::gpu_index(const Gpu* gpu) const {
  return static_cast<std::size_t>(gpu - snapshot_.gpus.data());
}

SharingView::Key SharingView::key_of(const Profile::Device& device) const {
  const auto& [gpu, mig] = device;
  return {gpu_index(gpu), static_cast<std::size_t>(mig - gpu->mig_devices.data())};
}

bool SharingView::offers_gpu(const Gpu* gpu) const { return modes_.contains({gpu_index(gpu), std::nullopt}); }

bool SharingView::offers_mig_device(const Profile::Device& device) const {
  return modes_.contains(key_of(device));
}

SharingMode SharingView::mode_of_gpus(const std::vector<const Gpu*>& gpus) const {
  std::map<SharingMode, std::size_t> counts;
  for (const Gpu* gpu : gpus) {
    if (!gpu->mig_enabled) ++counts[mode_of({gpu_index(gpu), std::nullopt})];
  }
  if (counts.empty()) return {.replicas = 0};
  return most_common(counts);
}

SharingMode SharingView::mode_of_mig_devices(const std::vector<Profile::Device>& devices) const {
  std::map<SharingMode, std::size_t> counts;
  for (const auto& device : devices) ++counts[mode_of(key_of(device))];
  return most_common(counts);
}

}  // namespace gpulet::labels

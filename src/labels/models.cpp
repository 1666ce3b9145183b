#include "labels/models.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "labels/sanitise.h"
#include "partition/selection.h"

namespace gpulet::labels {
namespace {

using inventory::Gpu;
using inventory::MigDevice;

// Long enough for every name that there is; what follows it in a key still fits.
constexpr std::size_t kMaxModelKey = 40;
constexpr std::size_t kMaxProfileKey = 32;

template <class Value>
void take_least(Value& into, const Value& value) {
  if (value != Value{} && (into == Value{} || value < into)) into = value;
}

Model model_of(std::vector<const Gpu*> gpus) {
  Model model;
  // Names that come to the same key are one model.
  model.name = (*std::ranges::min_element(gpus, {}, &Gpu::model))->model;
  model.key = clean_key_part(model.name, kMaxModelKey);
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

std::vector<Model> models_of(const inventory::Snapshot& snapshot) {
  std::map<std::string, std::vector<const Gpu*>> by_key;
  for (const auto& gpu : snapshot.gpus) {
    if (gpu.model.empty() || partition::display_adapter(gpu)) continue;
    by_key[clean_key_part(gpu.model, kMaxModelKey)].push_back(&gpu);
  }
  std::vector<Model> models;
  for (auto& [key, gpus] : by_key) models.push_back(model_of(std::move(gpus)));
  std::ranges::sort(models, comes_before);
  return models;
}

std::vector<const Gpu*> Profile::gpus() const {
  std::vector<const Gpu*> found;
  for (const auto& [gpu, mig] : devices) {
    if (std::ranges::count(found, gpu) == 0) found.push_back(gpu);
  }
  return found;
}

const MigDevice& Profile::least() const {
  return *std::ranges::min_element(devices, {}, [](const Device& device) {
            return attributes(*device.second);
          })->second;
}

std::vector<Profile> profiles_of(const std::vector<Model>& models) {
  std::map<std::string, Profile> profiles;
  std::map<std::string, std::size_t> most;
  for (const auto& model : models) {
    std::map<std::string, std::size_t> counts;
    for (const Gpu* gpu : model.gpus) {
      for (const auto& mig : gpu->mig_devices) {
        std::string name = mig.profile;
        std::ranges::replace(name, '+', '.');
        name = clean_key_part(name, kMaxProfileKey);
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

std::string name_indices(std::vector<const Gpu*> gpus) {
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

}  // namespace gpulet::labels

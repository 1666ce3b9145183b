#include "labels/labels.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/text.h"
#include "labels/models.h"
#include "labels/sanitise.h"
#include "labels/sharing.h"
#include "topology/topology.h"

namespace gpulet::labels {
namespace {

using inventory::Gpu;
using inventory::MigDevice;

constexpr const char* kGpu = "nvidia.com/gpu.";
constexpr std::uint32_t kGraphicsClass = 0x030000, kComputeClass = 0x030200;

// GB/s down to two digits: boards of one model whose clocks differ a little are one class.
std::string bandwidth_class(std::uint64_t bytes_per_second) {
  std::uint64_t value = bytes_per_second / 1'000'000'000, unit = 1;
  while (value / unit >= 100) unit *= 10;
  return std::to_string(value / unit * unit);
}

std::string number(std::uint64_t value) { return std::to_string(value); }

class Builder {
 public:
  explicit Builder(const Input& input)
      : input_(input),
        models_(models_of(input.snapshot)),
        sharing_(input.snapshot, input.config, input.node_labels) {}

  Labels labels() && {
    if (models_.empty()) return {};
    add_node();
    add_versions();
    add_gpus();
    if (sharing_.strategy() != config::MigStrategy::kNone) {
      add("nvidia.com/mig.strategy",
          sharing_.strategy() == config::MigStrategy::kSingle ? "single" : "mixed");
    }
    if (sharing_.strategy() == config::MigStrategy::kSingle) add_single();
    if (sharing_.strategy() == config::MigStrategy::kMixed) add_mixed();
    if (input_.config.gpulet.labels.own) add_own();
    return std::move(labels_);
  }

 private:
  // A later one of the same key takes the place of the one before.
  void add(const std::string& key, const std::string& raw, std::string about = {},
           const std::string& suffix = {}) {
    Label label{clean_value(raw, suffix), rule_of(key), std::move(about), std::nullopt};
    if (label.value != raw + suffix) label.was = raw + suffix;
    labels_.insert_or_assign(key, std::move(label));
  }

  std::vector<const Gpu*> all() const {
    std::vector<const Gpu*> gpus;
    for (const auto& model : models_) gpus.insert(gpus.end(), model.gpus.begin(), model.gpus.end());
    return gpus;
  }

  void add_node() {
    if (input_.timestamp) add("nvidia.com/gfd.timestamp", std::to_string(*input_.timestamp));
    add("nvidia.com/gpu.machine",
        input_.machine ? std::string(text::trim(*input_.machine)) : std::string("unknown"));
    add("nvidia.com/mps.capable", sharing_.uses_mps() ? "true" : "false");
    std::set<std::uint32_t> classes;
    std::set<inventory::VgpuHost> hosts;
    std::set<std::pair<std::string, std::uint32_t>> fabrics;
    bool capable = false;
    for (const Gpu* gpu : all()) {
      capable = capable || gpu->mig_capable;
      classes.insert(gpu->pci_class);
      if (gpu->vgpu) hosts.insert(*gpu->vgpu);
      if (gpu->fabric) fabrics.emplace(gpu->fabric->cluster_uuid, gpu->fabric->clique_id);
    }
    add("nvidia.com/mig.capable", capable ? "true" : "false");
    const std::uint32_t one = classes.size() == 1 ? *classes.begin() : 0;
    add("nvidia.com/gpu.mode",
        one == kGraphicsClass ? "graphics" : (one == kComputeClass ? "compute" : "unknown"));
    if (!hosts.empty()) {
      add("nvidia.com/vgpu.present", "true");
      add("nvidia.com/vgpu.host-driver-version", hosts.begin()->driver_version);
      add("nvidia.com/vgpu.host-driver-branch", hosts.begin()->driver_branch);
    }
    if (fabrics.size() == 1) {
      add("nvidia.com/gpu.clique", fabrics.begin()->first + "." + std::to_string(fabrics.begin()->second));
    }
  }

  void add_versions() {
    const auto& driver = input_.snapshot.driver;
    add("nvidia.com/cuda.driver-version.full", driver.version);
    auto parts = text::split(driver.version, '.');
    if (parts.size() == 2) parts.emplace_back();
    if (parts.size() == 3) {
      const char* names[] = {"major", "minor", "revision"};
      const char* older[] = {"major", "minor", "rev"};
      for (std::size_t i = 0; i < 3; ++i) {
        add(std::string("nvidia.com/cuda.driver-version.") + names[i], parts[i]);
        add(std::string("nvidia.com/cuda.driver.") + older[i], parts[i]);
      }
    }
    if (driver.cuda_version == 0) return;
    const auto major = number(driver.cuda_version / 1000), minor = number(driver.cuda_version % 1000 / 10);
    add("nvidia.com/cuda.runtime-version.full", major + "." + minor);
    for (const char* name : {"nvidia.com/cuda.runtime-version.", "nvidia.com/cuda.runtime."}) {
      add(std::string(name) + "major", major);
      add(std::string(name) + "minor", minor);
    }
  }

  // What every resource has: its product, how many there are, and how each is shared.
  void add_resource(const std::string& prefix, const std::string& model, const std::string& mig,
                    std::size_t count, const Way& way, const std::string& about) {
    const bool suffixed = way.replicas > 1 && !way.renamed;
    add(prefix + "product", model, about, mig + (suffixed ? "-SHARED" : ""));
    add(prefix + "count", number(count), about);
    add(prefix + "replicas", number(way.replicas), about);
    add(prefix + "sharing-strategy", name(way.sharing), about);
  }

  // The chosen model's GPUs.
  void add_gpus() {
    const Model& model = models_.front();
    std::string about = name_indices(model.gpus);
    if (models_.size() > 1) about += ", of " + number(models_.size()) + " models the first";
    add_resource(kGpu, model.name, "", model.gpus.size(), sharing_.of_whole(model.gpus), about);
    if (model.memory.mebibytes() != 0)
      add(std::string(kGpu) + "memory", number(model.memory.mebibytes()), about);
    if (model.compute_major == 0) return;
    add(std::string(kGpu) + "family", model.architecture, about);
    add(std::string(kGpu) + "compute.major", number(model.compute_major), about);
    add(std::string(kGpu) + "compute.minor", number(model.compute_minor), about);
  }

  void add_attributes(const std::string& prefix, const MigDevice& mig, const std::string& about) {
    const std::pair<const char*, std::uint64_t> attributes[] = {
        {"memory", mig.memory.mebibytes()}, {"multiprocessors", mig.multiprocessors},
        {"slices.gi", mig.gpu_slices},      {"slices.ci", mig.compute_slices},
        {"engines.copy", mig.copy_engines}, {"engines.decoder", mig.decoders},
        {"engines.encoder", mig.encoders},  {"engines.jpeg", mig.jpegs},
        {"engines.ofa", mig.ofas}};
    for (const auto& [attribute, value] : attributes) add(prefix + attribute, number(value), about);
  }

  void add_profile(const std::string& prefix, const Profile& profile) {
    const auto about = number(profile.devices.size()) + " of " + name_indices(profile.gpus());
    add_resource(prefix, profile.model, "-MIG-" + profile.name, profile.devices.size(),
                 sharing_.of_mig(profile.devices), about);
    add_attributes(prefix, profile.least(), about);
  }

  // With GPUs that are cut up, only a node whose MIG devices are all alike is one of this strategy.
  void add_single() {
    const auto gpus = all();
    std::vector<const Gpu*> cut, whole, empty;
    for (const Gpu* gpu : gpus) {
      (gpu->mig_enabled ? cut : whole).push_back(gpu);
      if (gpu->mig_enabled && gpu->mig_devices.empty()) empty.push_back(gpu);
    }
    if (cut.empty()) return;
    const auto profiles = profiles_of(models_);
    if (whole.empty() && empty.empty() && profiles.size() == 1) return add_profile(kGpu, profiles.front());
    const std::string why = !empty.empty()   ? name_indices(empty) + " without a MIG device"
                            : !whole.empty() ? name_indices(whole) + " not cut up"
                                             : number(profiles.size()) + " profiles";
    const auto model = std::ranges::find_if(models_, [](const Model& one) {
      return std::ranges::any_of(one.gpus, [](const Gpu* gpu) { return gpu->mig_enabled; });
    });
    add(std::string(kGpu) + "product", model->name, why, "-MIG-INVALID");
    for (const char* zero : {"count", "replicas", "memory"}) add(kGpu + std::string(zero), "0", why);
    add(std::string(kGpu) + "sharing-strategy", "", why);
  }

  void add_mixed() {
    for (const auto& profile : profiles_of(models_)) {
      add_profile("nvidia.com/mig-" + profile.name + ".", profile);
    }
  }

  void add_own() {
    add("gpulet.io/gpu.models", number(models_.size()));
    if (models_.front().bandwidth != 0) {
      add("gpulet.io/gpu.memory-bandwidth", bandwidth_class(models_.front().bandwidth),
          name_indices(models_.front().gpus));
    }
    add("gpulet.io/gpu.nvlink-domain", number(nvlink_domain()));
    for (const auto& model : models_) {
      const std::string prefix = "gpulet.io/model." + model.key + ".", about = name_indices(model.gpus);
      add(prefix + "count", number(model.gpus.size()), about);
      if (model.memory.mebibytes() != 0) add(prefix + "memory", number(model.memory.mebibytes()), about);
      if (model.compute_major != 0) {
        add(prefix + "compute", number(model.compute_major) + "." + number(model.compute_minor), about);
      }
      if (model.bandwidth != 0) add(prefix + "memory-bandwidth", bandwidth_class(model.bandwidth), about);
    }
  }

  std::size_t nvlink_domain() const {
    const auto topology = topology::build(input_.snapshot);
    std::vector<bool> seen(topology.size, false);
    std::size_t most = 1;
    for (std::size_t start = 0; start < topology.size; ++start) {
      std::vector<std::size_t> domain;
      if (!seen[start]) domain.push_back(start);
      for (std::size_t i = 0; i < domain.size(); ++i) {
        seen[domain[i]] = true;
        for (std::size_t to = 0; to < topology.size; ++to) {
          if (to == domain[i] || seen[to] || topology.between(domain[i], to).nvlinks() == 0) continue;
          seen[to] = true;
          domain.push_back(to);
        }
      }
      most = std::max(most, domain.size());
    }
    return most;
  }

  const Input& input_;
  std::vector<Model> models_;
  Sharing sharing_;
  Labels labels_;
};

}  // namespace

Labels labels_of(const Input& input) { return Builder(input).labels(); }

std::map<std::string, std::string> plain(const Labels& labels) {
  std::map<std::string, std::string> values;
  for (const auto& [key, label] : labels) values.emplace(key, label.value);
  return values;
}

std::string features_text(const std::map<std::string, std::string>& labels) {
  std::string text;
  for (const auto& [key, value] : labels) text += key + "=" + value + "\n";
  return text;
}

}  // namespace gpulet::labels

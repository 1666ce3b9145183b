#include "labels/labels.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <variant>
#include <vector>

#include "base/dns_name.h"
#include "base/text.h"
#include "labels/models.h"
#include "partition/rules.h"
#include "topology/topology.h"

namespace gpulet::labels {
namespace {

constexpr std::string_view kName = "nvmlDeviceGetName";
constexpr std::string_view kDriver = "nvmlSystemGetDriverVersion";
constexpr std::string_view kCuda = "nvmlSystemGetCudaDriverVersion_v2";
constexpr std::string_view kCompute = "nvmlDeviceGetCudaComputeCapability";
constexpr std::string_view kMode = "nvmlDeviceGetMigMode";
constexpr std::string_view kOffered = "flags.migStrategy, sharing and gpulet.partition";
constexpr std::string_view kInstances = "nvmlDeviceGetMigDeviceHandleByIndex";
constexpr std::string_view kAttributes = "nvmlDeviceGetAttributes_v2";
constexpr std::string_view kVirtualization = "nvmlDeviceGetVirtualizationMode, /sys/bus/pci/devices/*/config";
constexpr std::string_view kCapability = "the vendor's capability in /sys/bus/pci/devices/*/config";
constexpr std::string_view kMemory = "nvmlDeviceGetMemoryInfo";
constexpr std::string_view kBandwidth = "nvmlDeviceGetMemoryBusWidth, nvmlDeviceGetMaxClockInfo";
constexpr std::string_view kLinks = "nvmlDeviceGetNvLinkState, …RemotePciInfo_v2";

constexpr LabelRule kRules[] = {
    {"nvidia.com/gfd.timestamp",
     "Unix time when the labels were first written with this configuration; absent with noTimestamp",
     "the clock"},
    {"nvidia.com/cuda.driver-version.full", "driver version", kDriver},
    {"nvidia.com/cuda.driver-version.major", "first number; this and the next two only for X.Y or X.Y.Z",
     kDriver},
    {"nvidia.com/cuda.driver-version.minor", "second number", kDriver},
    {"nvidia.com/cuda.driver-version.revision", "third number; empty if there are two", kDriver},
    {"nvidia.com/cuda.driver.major", "old name of cuda.driver-version.major", kDriver},
    {"nvidia.com/cuda.driver.minor", "old name of cuda.driver-version.minor", kDriver},
    {"nvidia.com/cuda.driver.rev", "old name of cuda.driver-version.revision", kDriver},
    {"nvidia.com/cuda.runtime-version.full", "newest CUDA version that the driver supports", kCuda},
    {"nvidia.com/cuda.runtime-version.major", "first number", kCuda},
    {"nvidia.com/cuda.runtime-version.minor", "second number", kCuda},
    {"nvidia.com/cuda.runtime.major", "old name of cuda.runtime-version.major", kCuda},
    {"nvidia.com/cuda.runtime.minor", "old name of cuda.runtime-version.minor", kCuda},
    {"nvidia.com/gpu.machine", "machine name, sanitised; unknown if the file is unreadable",
     "flags.gfd.machineTypeFile"},
    {"nvidia.com/gpu.mode", "graphics or compute, by the PCI class of all GPUs; unknown for others or a mix",
     "/sys/bus/pci/devices/*/class"},
    {"nvidia.com/mig.capable", "true if any GPU supports MIG", kMode},
    {"nvidia.com/mig.strategy", "single or mixed; absent with none", kOffered},
    {"nvidia.com/mps.capable", "true if any resource is shared with MPS", kOffered},
    {"nvidia.com/gpu.clique", "cluster.clique of the NVLink fabric, if all GPUs in one have the same",
     "nvmlDeviceGetGpuFabricInfoV"},
    {"nvidia.com/gpu.product",
     "the model, sanitised; in strategy single with -MIG- and the profile, or -MIG-INVALID if no device is "
     "offered; -SHARED if "
     "shared "
     "under its own name",
     kName},
    {"nvidia.com/gpu.count", "number of GPUs of the model; in strategy single of MIG devices, 0 if invalid",
     "nvmlDeviceGetCount_v2"},
    {"nvidia.com/gpu.replicas",
     "shares of each; 1: unshared; 0 if all GPUs of the model have MIG devices, or invalid", kOffered},
    {"nvidia.com/gpu.sharing-strategy", "none, time-slicing or mps; empty if invalid", kOffered},
    {"nvidia.com/gpu.memory", "MiB of one; 0 if invalid", kMemory},
    {"nvidia.com/gpu.family", "architecture, by compute capability", kCompute},
    {"nvidia.com/gpu.compute.major", "first number of the compute capability", kCompute},
    {"nvidia.com/gpu.compute.minor", "second number of the compute capability", kCompute},
    {"nvidia.com/gpu.multiprocessors",
     "multiprocessors of a MIG device in strategy single; also the labels below", kAttributes},
    {"nvidia.com/gpu.slices.gi", "slices of the GPU instance", kAttributes},
    {"nvidia.com/gpu.slices.ci", "slices of the compute instance", kAttributes},
    {"nvidia.com/gpu.engines.copy", "copy engines", kAttributes},
    {"nvidia.com/gpu.engines.decoder", "video decoders", kAttributes},
    {"nvidia.com/gpu.engines.encoder", "video encoders", kAttributes},
    {"nvidia.com/gpu.engines.jpeg", "JPEG decoders", kAttributes},
    {"nvidia.com/gpu.engines.ofa", "optical flow accelerators", kAttributes},
    {"nvidia.com/mig-<profile>.product", "in strategy mixed: the model, then -MIG- and the profile", kName},
    {"nvidia.com/mig-<profile>.count", "MIG devices of the profile", kInstances},
    {"nvidia.com/mig-<profile>.replicas", "shares of each; 1: unshared", kOffered},
    {"nvidia.com/mig-<profile>.sharing-strategy", "none, time-slicing or mps", kOffered},
    {"nvidia.com/mig-<profile>.memory", "MiB of one", kAttributes},
    {"nvidia.com/mig-<profile>.multiprocessors", "multiprocessors of one", kAttributes},
    {"nvidia.com/mig-<profile>.slices.gi", "slices of the GPU instance", kAttributes},
    {"nvidia.com/mig-<profile>.slices.ci", "slices of the compute instance", kAttributes},
    {"nvidia.com/mig-<profile>.engines.copy", "copy engines", kAttributes},
    {"nvidia.com/mig-<profile>.engines.decoder", "video decoders", kAttributes},
    {"nvidia.com/mig-<profile>.engines.encoder", "video encoders", kAttributes},
    {"nvidia.com/mig-<profile>.engines.jpeg", "JPEG decoders", kAttributes},
    {"nvidia.com/mig-<profile>.engines.ofa", "optical flow accelerators", kAttributes},
    {"nvidia.com/vgpu.present", "whether a GPU is a vGPU of a hypervisor; absent where that cannot be read",
     kVirtualization},
    {"nvidia.com/vgpu.host-driver-version", "driver version of the hypervisor", kCapability},
    {"nvidia.com/vgpu.host-driver-branch", "driver branch of the hypervisor", kCapability},
    {"gpulet.io/gpu.models", "number of GPU models in the node", kName},
    {"gpulet.io/gpu.memory-bandwidth",
     "memory bandwidth class of the model: GB/s at the maximum clock, rounded down to two digits",
     kBandwidth},
    {"gpulet.io/gpu.nvlink-domain",
     "largest number of GPUs in this node connected by NVLink, directly or not; 1 without NVLink", kLinks},
    {"gpulet.io/gpu.memory-limit",
     "grade of memory limits on shared GPUs: kernel, mps or audited",
     "sharing, gpulet.partition and gpulet.fraction"},
    {"gpulet.io/model.<model>.count", "number of GPUs of the model", "nvmlDeviceGetCount_v2"},
    {"gpulet.io/model.<model>.memory", "MiB of one", kMemory},
    {"gpulet.io/model.<model>.compute", "compute capability, such as 9.0", kCompute},
    {"gpulet.io/model.<model>.memory-bandwidth", "as gpu.memory-bandwidth, for this model", kBandwidth},
};

bool matches_key(std::string_view pattern, std::string_view key) {
  const auto open = pattern.find('<');
  if (open == std::string_view::npos) return pattern == key;
  const auto before = pattern.substr(0, open), after = pattern.substr(pattern.find('>') + 1);
  return key.size() > before.size() + after.size() && key.starts_with(before) && key.ends_with(after);
}

}  // namespace

std::span<const LabelRule> label_rules() { return kRules; }

const LabelRule* find_rule(std::string_view key) {
  // No pattern is a suffix of another, so the first match is the only one.
  const auto found =
      std::ranges::find_if(kRules, [&](const LabelRule& rule) { return matches_key(rule.key, key); });
  return found == std::end(kRules) ? nullptr : found;
}

namespace {

constexpr std::size_t kHashDigits = 6;
constexpr const char* kUnnamed = "unnamed";

// Independent of the locale.
bool letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}
bool allowed(char c) { return letter_or_digit(c) || c == '-' || c == '_' || c == '.'; }

std::string_view without_ends(std::string_view text) {
  while (!text.empty() && !letter_or_digit(text.front())) text.remove_prefix(1);
  while (!text.empty() && !letter_or_digit(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

bool is_valid_value(std::string_view value) {
  if (value.empty()) return true;
  return value.size() <= kMaxLabelLength && letter_or_digit(value.front()) && letter_or_digit(value.back()) &&
         std::ranges::all_of(value, allowed);
}

bool is_valid_key(std::string_view key) { return is_qualified_name(key); }

std::string sanitise_value(std::string_view raw, std::string_view suffix) {
  const std::string kept = label_characters(raw);
  const auto cut = without_ends(std::string_view(kept).substr(0, kMaxLabelLength - suffix.size()));
  return std::string(without_ends(std::string(cut) + std::string(suffix)));
}

std::string sanitise_key_part(std::string_view raw, std::size_t most) {
  const std::string kept = label_characters(raw);
  if (kept.empty()) return kUnnamed;
  if (kept.size() <= most) return kept;
  const auto digits = hex_text(fnv1a_32(kept), kHashDigits);
  const auto cut = without_ends(std::string_view(kept).substr(0, most - kHashDigits - 1));
  return std::string(cut) + "-" + digits;
}

namespace {

using inventory::Gpu;
using inventory::MigDevice;

constexpr const char* kGpu = "nvidia.com/gpu.";
constexpr std::uint32_t kGraphicsClass = 0x030000, kComputeClass = 0x030200;

// GB/s rounded down to two digits, so that boards of one model with slightly different clocks are one class.
std::string bandwidth_class(std::uint64_t bytes_per_second) {
  std::uint64_t value = bytes_per_second / 1'000'000'000, unit = 1;
  while (value / unit >= 100) unit *= 10;
  return std::to_string(value / unit * unit);
}

std::string decimal_text(std::uint64_t value) { return std::to_string(value); }

class LabelBuilder {
 public:
  explicit LabelBuilder(const LabelInput& input)
      : input_(input),
        models_(group_by_model(input.snapshot)),
        sharing_(input.snapshot, input.config, input.node_labels) {}

  Labels build() && {
    if (models_.empty()) return {};
    add_node();
    add_versions();
    add_gpus();
    if (sharing_.strategy() != config::MigStrategy::kNone) {
      add_label("nvidia.com/mig.strategy",
                sharing_.strategy() == config::MigStrategy::kSingle ? "single" : "mixed");
    }
    if (sharing_.strategy() == config::MigStrategy::kSingle) add_single();
    if (sharing_.strategy() == config::MigStrategy::kMixed) add_mixed();
    if (input_.config.gpulet.labels.extended) add_extended();
    return std::move(labels_);
  }

 private:
  // Replaces an earlier label with the same key.
  void add_label(const std::string& key, const std::string& raw, std::string about = {},
                 const std::string& suffix = {}) {
    Label label{sanitise_value(raw, suffix), find_rule(key), std::move(about), std::nullopt};
    if (label.value != raw + suffix) label.original = raw + suffix;
    labels_.insert_or_assign(key, std::move(label));
  }

  std::vector<const Gpu*> all_gpus() const {
    std::vector<const Gpu*> gpus;
    for (const auto& model : models_) gpus.insert(gpus.end(), model.gpus.begin(), model.gpus.end());
    return gpus;
  }

  void add_node() {
    if (input_.timestamp) add_label("nvidia.com/gfd.timestamp", std::to_string(*input_.timestamp));
    add_label("nvidia.com/gpu.machine",
              input_.machine ? std::string(text::trim(*input_.machine)) : std::string("unknown"));
    add_label("nvidia.com/mps.capable", sharing_.uses_mps() ? "true" : "false");
    std::set<std::uint32_t> classes;
    std::set<inventory::VgpuHost> hosts;
    std::set<std::pair<std::string, std::uint32_t>> fabrics;
    bool capable = false, vgpu_known = true;
    for (const Gpu* gpu : all_gpus()) {
      vgpu_known = vgpu_known && gpu->vgpu_known;
      capable = capable || gpu->mig_capable;
      classes.insert(gpu->pci_class);
      if (gpu->vgpu) hosts.insert(*gpu->vgpu);
      if (gpu->fabric) fabrics.emplace(gpu->fabric->cluster_uuid, gpu->fabric->clique_id);
    }
    add_label("nvidia.com/mig.capable", capable ? "true" : "false");
    const std::uint32_t one = classes.size() == 1 ? *classes.begin() : 0;
    add_label("nvidia.com/gpu.mode",
              one == kGraphicsClass ? "graphics" : (one == kComputeClass ? "compute" : "unknown"));
    if (!hosts.empty()) {
      add_label("nvidia.com/vgpu.present", "true");
      add_label("nvidia.com/vgpu.host-driver-version", hosts.begin()->driver_version);
      add_label("nvidia.com/vgpu.host-driver-branch", hosts.begin()->driver_branch);
    } else if (vgpu_known) {
      add_label("nvidia.com/vgpu.present", "false");
    }
    if (fabrics.size() == 1) {
      add_label("nvidia.com/gpu.clique",
                fabrics.begin()->first + "." + std::to_string(fabrics.begin()->second));
    }
  }

  void add_versions() {
    const auto& driver = input_.snapshot.driver;
    add_label("nvidia.com/cuda.driver-version.full", driver.version);
    auto parts = text::split(driver.version, '.');
    if (parts.size() == 2) parts.emplace_back();
    if (parts.size() == 3) {
      const char* names[] = {"major", "minor", "revision"};
      const char* older[] = {"major", "minor", "rev"};
      for (std::size_t i = 0; i < 3; ++i) {
        add_label(std::string("nvidia.com/cuda.driver-version.") + names[i], parts[i]);
        add_label(std::string("nvidia.com/cuda.driver.") + older[i], parts[i]);
      }
    }
    if (driver.cuda_version == 0) return;
    const auto major = decimal_text(driver.cuda_version / 1000),
               minor = decimal_text(driver.cuda_version % 1000 / 10);
    add_label("nvidia.com/cuda.runtime-version.full", major + "." + minor);
    for (const char* name : {"nvidia.com/cuda.runtime-version.", "nvidia.com/cuda.runtime."}) {
      add_label(std::string(name) + "major", major);
      add_label(std::string(name) + "minor", minor);
    }
  }

  // Product, count and sharing, which every resource has.
  void add_resource(const std::string& prefix, const std::string& model, const std::string& mig,
                    std::size_t count, const SharingMode& way, const std::string& about) {
    const bool suffixed = way.replicas > 1 && !way.renamed;
    add_label(prefix + "product", model, about, mig + (suffixed ? "-SHARED" : ""));
    add_label(prefix + "count", decimal_text(count), about);
    add_label(prefix + "replicas", decimal_text(way.replicas), about);
    add_label(prefix + "sharing-strategy", sharing_name(way.sharing), about);
  }

  // The GPUs of the first model.
  void add_gpus() {
    const Model& model = models_.front();
    std::string about = gpu_range_text(model.gpus);
    if (models_.size() > 1) about += ", of " + decimal_text(models_.size()) + " models the first";
    add_gpus_of_model(model, model.gpus, about);
  }

  void add_gpus_of_model(const Model& model, const std::vector<const Gpu*>& gpus, const std::string& about) {
    add_resource(kGpu, model.name, "", gpus.size(), sharing_.mode_of_gpus(gpus), about);
    if (model.memory.mebibytes() != 0)
      add_label(std::string(kGpu) + "memory", decimal_text(model.memory.mebibytes()), about);
    if (model.compute_major == 0) return;
    add_label(std::string(kGpu) + "family", model.architecture, about);
    add_label(std::string(kGpu) + "compute.major", decimal_text(model.compute_major), about);
    add_label(std::string(kGpu) + "compute.minor", decimal_text(model.compute_minor), about);
  }

  void add_attributes(const std::string& prefix, const MigDevice& mig, const std::string& about) {
    const std::pair<const char*, std::uint64_t> attributes[] = {
        {"memory", mig.memory.mebibytes()}, {"multiprocessors", mig.multiprocessors},
        {"slices.gi", mig.gpu_slices},      {"slices.ci", mig.compute_slices},
        {"engines.copy", mig.copy_engines}, {"engines.decoder", mig.decoders},
        {"engines.encoder", mig.encoders},  {"engines.jpeg", mig.jpegs},
        {"engines.ofa", mig.ofas}};
    for (const auto& [attribute, value] : attributes)
      add_label(prefix + attribute, decimal_text(value), about);
  }

  void add_profile(const std::string& prefix, const Profile& profile) {
    const auto about = decimal_text(profile.devices.size()) + " of " + gpu_range_text(profile.profile_gpus());
    add_resource(prefix, profile.model, "-MIG-" + profile.name, profile.devices.size(),
                 sharing_.mode_of_mig_devices(profile.devices), about);
    add_attributes(prefix, profile.smallest_device(), about);
  }

  // With strategy single the plugin offers one kind of device: where GPUs differ, the kind that most of them
  // have (partition/resources.h). The labels describe what it offers; if that is nothing, the product is
  // MIG-INVALID and the counts are 0, as NVIDIA's are for any node whose GPUs differ.
  void add_single() {
    const auto gpus = all_gpus();
    std::vector<const Gpu*> cut, whole, empty;
    for (const Gpu* gpu : gpus) {
      (gpu->mig_enabled ? cut : whole).push_back(gpu);
      if (gpu->mig_enabled && gpu->mig_devices.empty()) empty.push_back(gpu);
    }
    if (cut.empty()) return;
    const auto profiles = group_by_profile(models_);
    for (Profile offered : profiles) {
      std::erase_if(offered.devices, [&](const auto& one) { return !sharing_.offers_mig_device(one); });
      if (!offered.devices.empty()) return add_profile(kGpu, offered);
    }
    for (const Model& model : models_) {
      auto offered = model.gpus;
      std::erase_if(offered, [&](const Gpu* gpu) { return !sharing_.offers_gpu(gpu); });
      if (!offered.empty())
        return add_gpus_of_model(model, offered, gpu_range_text(offered) + ", others are partitioned");
    }
    const std::string why = !empty.empty()   ? gpu_range_text(empty) + " without a MIG device"
                            : !whole.empty() ? gpu_range_text(whole) + " not cut up"
                                             : decimal_text(profiles.size()) + " profiles";
    const auto model = std::ranges::find_if(models_, [](const Model& one) {
      return std::ranges::any_of(one.gpus, [](const Gpu* gpu) { return gpu->mig_enabled; });
    });
    add_label(std::string(kGpu) + "product", model->name, why, "-MIG-INVALID");
    for (const char* zero : {"count", "replicas", "memory"}) add_label(kGpu + std::string(zero), "0", why);
    add_label(std::string(kGpu) + "sharing-strategy", "", why);
  }

  void add_mixed() {
    for (const auto& profile : group_by_profile(models_)) {
      add_profile("nvidia.com/mig-" + profile.name + ".", profile);
    }
  }

  void add_extended() {
    add_label("gpulet.io/gpu.models", decimal_text(models_.size()));
    if (models_.front().bandwidth != 0) {
      add_label("gpulet.io/gpu.memory-bandwidth", bandwidth_class(models_.front().bandwidth),
                gpu_range_text(models_.front().gpus));
    }
    add_label("gpulet.io/gpu.nvlink-domain", decimal_text(nvlink_domain()));
    if (sharing_.limit_grade() != fraction::LimitGrade::kNone)
      add_label("gpulet.io/gpu.memory-limit", std::string(fraction::limit_grade_name(sharing_.limit_grade())));
    for (const auto& model : models_) {
      const std::string prefix = "gpulet.io/model." + model.key + ".", about = gpu_range_text(model.gpus);
      add_label(prefix + "count", decimal_text(model.gpus.size()), about);
      if (model.memory.mebibytes() != 0)
        add_label(prefix + "memory", decimal_text(model.memory.mebibytes()), about);
      if (model.compute_major != 0) {
        add_label(prefix + "compute",
                  decimal_text(model.compute_major) + "." + decimal_text(model.compute_minor), about);
      }
      if (model.bandwidth != 0)
        add_label(prefix + "memory-bandwidth", bandwidth_class(model.bandwidth), about);
    }
  }

  bool is_excluded(std::size_t gpu) const { return !input_.snapshot.gpus[gpu].excluded.empty(); }

  std::size_t nvlink_domain() const {
    const auto topology = topology::build_topology(input_.snapshot);
    std::vector<bool> seen(topology.size, false);
    std::size_t most = 1;
    for (std::size_t start = 0; start < topology.size; ++start) {
      std::vector<std::size_t> domain;
      if (!seen[start] && !is_excluded(start)) domain.push_back(start);
      for (std::size_t i = 0; i < domain.size(); ++i) {
        seen[domain[i]] = true;
        for (std::size_t to = 0; to < topology.size; ++to) {
          if (to == domain[i] || seen[to] || is_excluded(to) ||
              topology.pair_between(domain[i], to).nvlinks() == 0)
            continue;
          seen[to] = true;
          domain.push_back(to);
        }
      }
      most = std::max(most, domain.size());
    }
    return most;
  }

  const LabelInput& input_;
  std::vector<Model> models_;
  SharingView sharing_;
  Labels labels_;
};

}  // namespace

Labels build_labels(const LabelInput& input) {
  const bool some_are_dynamic = std::ranges::any_of(input.config.gpulet.partition, [](const auto& rule) {
    return std::holds_alternative<config::DynamicMig>(rule.mode);
  });
  if (!some_are_dynamic) return LabelBuilder(input).build();
  // What is made for a claim goes with it: each would write the Node twice.
  auto lasting = input.snapshot;
  const auto selection = partition::select_rules(lasting, input.config, input.node_labels);
  for (std::size_t i = 0; i < lasting.gpus.size(); ++i) {
    if (!selection.dynamic_profiles[i].empty()) lasting.gpus[i].mig_devices.clear();
  }
  return LabelBuilder({lasting, input.config, input.node_labels, input.machine, input.timestamp}).build();
}

std::map<std::string, std::string> plain_labels(const Labels& labels) {
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

#include "dra/device_pool.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "base/dns_name.h"
#include "base/text.h"
#include "k8s/objects.h"

namespace gpulet::dra {
namespace {

using inventory::Gpu;
using inventory::GpuValue;
using inventory::MigDevice;

std::string attribute_text(std::string text) {
  return k8s::truncate_utf8(std::move(text), kMaxAttributeBytes);  // the API's limit
}

// NVIDIA's DRA driver writes architectures and brands as go-nvlib does.
std::string architecture_text(const std::string& family) {
  std::string text = family;
  bool first = true;
  for (char& c : text) {
    if (first && c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    first = c == '-' || c == ' ';
    if (c == '-') c = ' ';
  }
  return text.empty() ? "Unknown" : text;
}

std::string brand_text(const std::string& brand) {
  static const std::map<std::string, std::string> kBrands = {
      {"NVIDIA", "Nvidia"},
      {"NVIDIA Virtual Applications", "NvidiaVApps"},
      {"NVIDIA Virtual PC", "NvidiaVPC"},
      {"NVIDIA Virtual Compute Server", "NvidiaVCS"},
      {"NVIDIA RTX Virtual Workstation", "NvidiaVWS"},
      {"NVIDIA Cloud Gaming", "NvidiaCloudGaming"},
      {"Quadro RTX", "QuadroRTX"},
      {"NVIDIA RTX", "NvidiaRTX"},
      {"GeForce RTX", "GeForceRTX"},
      {"Titan RTX", "TitanRTX"},
      {"", "Unknown"},
  };
  const auto found = kBrands.find(brand);
  return found == kBrands.end() ? brand : found->second;
}

Version cuda_version(unsigned cuda) {
  constexpr unsigned kMajor = 1000, kMinor = 10;
  return semantic_version(std::to_string(cuda / kMajor) + "." + std::to_string(cuda % kMajor / kMinor));
}

class PoolBuilder {
 public:
  explicit PoolBuilder(const PoolInput& input) : input_(input) {}

  void add_gpu(const Gpu& gpu) {
    if (gpu.uuid.empty()) return add_note("GPU " + std::to_string(gpu.index), "has no UUID");
    if (const auto withdrawn = input_.withdrawn.find(gpu.uuid); withdrawn != input_.withdrawn.end()) {
      return add_note(gpu.uuid.str(), withdrawn->second);
    }
    if (!gpu.excluded.empty()) return add_note(gpu.uuid.str(), gpu.excluded);
    if (!has_device_name(gpu)) {
      return add_note(gpu.uuid.str(), "has no name: the number of its device node is unknown");
    }
    if (gpu.mig_enabled) return add_mig_devices(gpu);
    PoolDevice offered{{.name = gpu_device_name(gpu)}, DeviceType::kGpu, gpu.uuid, gpu.uuid};
    auto& attributes = offered.device.attributes;
    attributes = common_attributes(gpu, offered.type);
    attributes["uuid"] = gpu.uuid.str();
    if (gpu.numa_node && *gpu.numa_node >= 0) {
      attributes[kNumaNodeAttribute] = static_cast<std::int64_t>(*gpu.numa_node);
    }
    offered.device.capacity["memory"] = gpu.memory.value;
    add_taints(gpu.uuid, offered);
    add_device(std::move(offered));
  }

  DevicePool take_pool() { return std::move(pool_); }

 private:
  void add_mig_devices(const Gpu& gpu) {
    if (gpu.mig_devices.empty()) return add_note(gpu.uuid.str(), "has MIG on and no MIG device");
    std::vector<const MigDevice*> ordered;
    for (const auto& mig : gpu.mig_devices) ordered.push_back(&mig);
    std::ranges::stable_sort(ordered, {}, [](const MigDevice* mig) {
      return std::tie(mig->placement_start, mig->gpu_instance, mig->compute_instance);
    });
    for (const auto* mig : ordered) add_mig_device(gpu, *mig);
  }

  void add_mig_device(const Gpu& gpu, const MigDevice& mig) {
    if (mig.uuid.empty()) return add_note(gpu.uuid.str(), "has a MIG device without a UUID");
    if (mig.profile.empty() || !mig.gpu_instance_profile) {
      return add_note(mig.uuid.str(), "has no name: the driver does not report its profile and placement");
    }
    if (mig.compute_slices != mig.gpu_slices) {
      return add_note(mig.uuid.str(), "is only a part of its GPU instance (" + mig.profile + ")");
    }
    PoolDevice offered{{.name = mig_device_name(gpu, mig)}, DeviceType::kMig, mig.uuid, gpu.uuid};
    auto& attributes = offered.device.attributes;
    attributes = common_attributes(gpu, offered.type);
    attributes["uuid"] = mig.uuid.str();
    attributes["parentUUID"] = gpu.uuid.str();
    attributes["profile"] = attribute_text(mig.profile);
    auto& capacity = offered.device.capacity;
    capacity = {{"multiprocessors", mig.multiprocessors},
                {"copyEngines", mig.copy_engines},
                {"decoders", mig.decoders},
                {"encoders", mig.encoders},
                {"jpegEngines", mig.jpegs},
                {"ofaEngines", mig.ofas},
                {"memory", mig.memory.value}};
    for (unsigned i = 0; i < std::min(mig.placement_size, kMaxMemorySlices); ++i) {
      capacity["memorySlice" + std::to_string(mig.placement_start + i)] = 1;
    }
    add_taints(gpu.uuid, offered);
    add_taints(mig.uuid, offered);
    add_device(std::move(offered));
  }

  // Those that every device of either type has.
  std::map<std::string, Attribute> common_attributes(const Gpu& gpu, DeviceType type) const {
    const auto& driver = input_.snapshot->driver;
    std::map<std::string, Attribute> attributes = {
        {"type", std::string(enum_name(type))},
        {"productName", attribute_text(gpu.model)},
        {"brand", attribute_text(brand_text(gpu.brand))},
        {"architecture", attribute_text(architecture_text(gpu.architecture))},
        {"cudaComputeCapability",
         semantic_version(std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor))},
        {"driverVersion", semantic_version(driver.version)},
        {"cudaDriverVersion", cuda_version(driver.cuda_version)},
        {kPciBusIdAttribute, gpu.pci.sysfs_text()},
    };
    if (const auto root = input_.pcie_roots.find(gpu.pci); root != input_.pcie_roots.end()) {
      attributes[kPcieRootAttribute] = attribute_text(root->second);
    }
    return attributes;
  }

  void add_taints(const DeviceUuid& uuid, PoolDevice& offered) const {
    const auto found = input_.taints.find(uuid);
    if (found == input_.taints.end()) return;
    auto& taints = offered.device.taints;
    for (const auto& taint : found->second) {
      if (std::ranges::find(taints, taint) == taints.end() && taints.size() < kMaxTaints) {
        taints.push_back(taint);
      }
    }
  }

  // One name twice would make the whole pool invalid.
  void add_device(PoolDevice offered) {
    const std::string& name = offered.device.name;
    if (!is_dns_label(name)) return add_note(offered.uuid.str(), "has no valid name: \"" + name + "\"");
    if (!names_.insert(name).second) {
      return add_note(offered.uuid.str(), "has the name of another device: " + name);
    }
    pool_.devices.push_back(std::move(offered));
  }

  void add_note(const std::string& about, const std::string& message) {
    pool_.notes.push_back(about + " is not offered by claims: it " + message);
  }

  // With 32 attributes and capacities in all. Every GPU has at most 8.
  static constexpr unsigned kMaxMemorySlices = 8;

  const PoolInput& input_;
  DevicePool pool_;
  std::set<std::string> names_;
};

}  // namespace

const PoolDevice* DevicePool::find(std::string_view name) const {
  const auto found =
      std::ranges::find_if(devices, [&](const PoolDevice& offered) { return offered.device.name == name; });
  return found == devices.end() ? nullptr : &*found;
}

DevicePool make_device_pool(const PoolInput& input) {
  std::vector<const Gpu*> ordered;
  for (const auto& gpu : input.snapshot->gpus) ordered.push_back(&gpu);
  std::ranges::stable_sort(ordered, {}, [](const Gpu* gpu) { return std::tie(gpu->pci, gpu->uuid); });
  PoolBuilder builder(input);
  for (const auto* gpu : ordered) builder.add_gpu(*gpu);
  return builder.take_pool();
}

bool has_device_name(const Gpu& gpu) {
  return !gpu.uuid.empty() && !(gpu.unreadable && gpu.not_read.contains(GpuValue::kMinor));
}

std::string gpu_device_name(const Gpu& gpu) { return "gpu-" + std::to_string(gpu.minor); }

std::string mig_device_name(const Gpu& gpu, const MigDevice& mig) {
  std::string profile;
  for (const char c : text::lower(mig.profile)) {
    if (c != '.') profile += c == '+' ? '-' : c;
  }
  return gpu_device_name(gpu) + "-mig-" + profile + "-" + std::to_string(*mig.gpu_instance_profile) + "-" +
         std::to_string(mig.placement_start);
}

std::optional<std::string> pcie_root_of_link(std::string_view link) {
  constexpr std::string_view kBefore = "/devices/";
  constexpr std::string_view kRoot = "pci";
  const auto at = link.find(kBefore);
  if (at == std::string_view::npos) return std::nullopt;
  link.remove_prefix(at + kBefore.size());
  const auto root = link.substr(0, link.find('/'));
  if (!root.starts_with(kRoot) || root.size() == link.size()) return std::nullopt;
  return std::string(root);
}

}  // namespace gpulet::dra

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

using Counters = std::map<std::string, std::uint64_t>;

// Under the names of NVIDIA's DRA driver.
Counters partition_counters(const mig::Profile& profile, const mig::Placement& placement) {
  Counters counters = {{"multiprocessors", profile.multiprocessors},
                       {"copy-engines", profile.copy_engines},
                       {"decoders", profile.engines.decoders},
                       {"encoders", profile.engines.encoders},
                       {"jpeg-engines", profile.engines.jpegs},
                       {"ofa-engines", profile.engines.ofas},
                       {"memory", profile.memory.value}};
  for (unsigned i = 0; i < placement.size; ++i)
    counters["memory-slice-" + std::to_string(placement.start + i)] = 1;
  return counters;
}

// What the partitions of one GPU are decided from.
struct GpuPartitions {
  GpuPartitions(const Gpu& gpu, const DynamicGpu& dynamic) {
    for (const auto& profile : dynamic.profiles) add_profile(profile, dynamic);
    // Placements that leave the most to others first, smaller profiles before larger ones.
    std::map<Partition, std::size_t> overlaps;
    for (const auto& [partition, profile] : allowed) {
      overlaps[partition] = static_cast<std::size_t>(
          std::ranges::count_if(allowed, [&](const auto& other) { return partition.overlaps(other.first); }));
    }
    std::ranges::sort(allowed, {}, [&](const auto& entry) {
      const auto& partition = entry.first;
      return std::tuple(partition.placement.size, entry.second->slices, partition.profile,
                        overlaps.at(partition), partition.placement.start);
    });
    for (const auto& mig : gpu.mig_devices) add_present(mig, dynamic);
  }

  void add_profile(const mig::Profile& profile, const DynamicGpu& dynamic) {
    const bool is_allowed = std::ranges::count(dynamic.allowed, profile.name) != 0;
    for (const auto& placement : profile.placements) {
      for (const auto& [name, value] : partition_counters(profile, placement)) {
        auto& counter = counters[name];
        counter = std::max(counter, value);
      }
      if (is_allowed) allowed.emplace_back(Partition{profile.name, profile.id, placement}, &profile);
    }
  }

  void add_present(const MigDevice& mig, const DynamicGpu& dynamic) {
    if (dynamic.removed.contains(mig.uuid)) return;
    const auto profile = std::ranges::find(dynamic.profiles, mig.gpu_instance_profile,
                                           [](const auto& one) { return std::optional(one.id); });
    if (profile == dynamic.profiles.end()) {
      unknown = mig.uuid.str();
      return;
    }
    const Partition partition{profile->name, profile->id, {mig.placement_start, mig.placement_size}};
    const bool is_whole = mig.compute_slices == mig.gpu_slices;
    if (is_whole) there.emplace(partition, mig.uuid);
    if (dynamic.made.contains(partition)) return;
    if (is_whole) foreign.insert(partition);
    if (std::ranges::count(taken, partition) != 0) return;  // another device of the same GPU instance
    taken.push_back(partition);
    for (const auto& [name, value] : partition_counters(*profile, partition.placement)) {
      auto& counter = counters[name];
      counter -= std::min(counter, value);
    }
  }

  // What the partitions that are held take.
  static Counters held_counters(const DynamicGpu& dynamic) {
    Counters held;
    for (const auto& partition : dynamic.held) {
      const auto profile = std::ranges::find(dynamic.profiles, partition.profile_id, &mig::Profile::id);
      if (profile == dynamic.profiles.end()) continue;
      for (const auto& [name, value] : partition_counters(*profile, partition.placement)) held[name] += value;
    }
    return held;
  }
  bool fits_beside(const Counters& wanted, const Counters& held) const {
    return std::ranges::all_of(wanted, [&](const auto& counter) {
      const auto& [name, value] = counter;
      const auto taken_of = held.find(name);
      const auto total = counters.find(name);
      return taken_of == held.end() || (total != counters.end() && value + taken_of->second <= total->second);
    });
  }

  const Partition* find_overlap(const Partition& partition) const {
    const auto found =
        std::ranges::find_if(taken, [&](const Partition& other) { return partition.overlaps(other); });
    return found == taken.end() ? nullptr : &*found;
  }

  std::vector<std::pair<Partition, const mig::Profile*>> allowed;
  Counters counters;                      // of the GPU, without what other programs have
  std::map<Partition, DeviceUuid> there;  // those that exist, with one device of all slices
  std::set<Partition> foreign;            // of these, those of other programs
  std::vector<Partition> taken;           // GPU instances of other programs
  std::string unknown;                    // a MIG device without a placement
};

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
    if (const auto dynamic = input_.dynamic.find(gpu.uuid);
        gpu.mig_enabled && dynamic != input_.dynamic.end())
      return add_partitions(gpu, dynamic->second);
    if (gpu.mig_enabled) return add_mig_devices(gpu);
    PoolDevice offered{{.name = gpu_device_name(gpu)}, DeviceType::kGpu, gpu.uuid, gpu.uuid};
    auto& attributes = offered.device.attributes;
    attributes = common_attributes(gpu, offered.type);
    attributes["uuid"] = gpu.uuid.str();
    if (gpu.numa_node && *gpu.numa_node >= 0) {
      attributes[kNumaNodeAttribute] = static_cast<std::int64_t>(*gpu.numa_node);
    }
    offered.device.capacity[kMemoryCapacity] = gpu.memory.value;
    if (const auto shares = input_.shares.find(gpu.uuid); shares != input_.shares.end())
      share_device(shares->second, offered);
    add_taints(gpu.uuid, offered);
    add_device(std::move(offered));
  }

  DevicePool take_pool() { return std::move(pool_); }

 private:
  // Source: NVIDIA's DRA driver, cmd/gpu-kubelet-plugin/consumable_shares.go. The API server refuses a policy
  // whose limits are not whole steps, or whose smallest amount and a step exceed the capacity.
  void share_device(const config::ConsumableShares& shares, PoolDevice& offered) {
    constexpr std::uint64_t kStep = mebibytes(1).value;
    auto& device = offered.device;
    const std::uint64_t memory = device.capacity.at(kMemoryCapacity) / kStep * kStep;
    const bool is_by_memory = shares.limit == config::ShareLimit::kMemory;
    if (is_by_memory && memory < 2 * kStep)
      return add_note(offered.uuid.str() + " in shares", "has no known memory");
    device.allows_multiple = true;
    device.capacity[kMemoryCapacity] = memory;
    if (memory != 0)
      device.policies[kMemoryCapacity] = {.standard = is_by_memory ? memory : 0,
                                          .min = is_by_memory ? kStep : 0,
                                          .max = memory,
                                          .step = kStep};
    if (shares.limit != config::ShareLimit::kCount) return;
    device.capacity[kSharesCapacity] = shares.count;
    device.policies[kSharesCapacity] = {
        .standard = 1, .min = 1, .max = shares.count, .step = shares.count > 1 ? 1u : 0u};
  }

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
    auto offered = make_mig_device(gpu, mig);
    offered.device.attributes["uuid"] = mig.uuid.str();
    for (unsigned i = 0; i < std::min(mig.placement_size, kMaxMemorySlices); ++i) {
      offered.device.capacity["memorySlice" + std::to_string(mig.placement_start + i)] = 1;
    }
    add_device(std::move(offered));
  }

  PoolDevice make_mig_device(const Gpu& gpu, const MigDevice& mig) const {
    PoolDevice offered{{.name = mig_device_name(gpu, mig)}, DeviceType::kMig, mig.uuid, gpu.uuid};
    auto& attributes = offered.device.attributes;
    attributes = common_attributes(gpu, offered.type);
    attributes["parentUUID"] = gpu.uuid.str();
    attributes["profile"] = attribute_text(mig.profile);
    offered.device.capacity = {{"multiprocessors", mig.multiprocessors},
                               {"copyEngines", mig.copy_engines},
                               {"decoders", mig.decoders},
                               {"encoders", mig.encoders},
                               {"jpegEngines", mig.jpegs},
                               {"ofaEngines", mig.ofas},
                               {"memory", mig.memory.value}};
    add_taints(gpu.uuid, offered);
    if (!mig.uuid.empty()) add_taints(mig.uuid, offered);
    return offered;
  }

  void add_partitions(const Gpu& gpu, const DynamicGpu& dynamic) {
    if (dynamic.profiles.empty())
      return add_note(gpu.uuid.str(), "has MIG on, and its profiles are not known yet");
    GpuPartitions partitions(gpu, dynamic);
    if (!partitions.unknown.empty()) {
      return add_note(gpu.uuid.str(),
                      "has the MIG device " + partitions.unknown + ", whose placement is unknown");
    }
    for (const auto& name : dynamic.allowed) {
      if (std::ranges::find(dynamic.profiles, name, &mig::Profile::name) == dynamic.profiles.end())
        add_note(gpu.uuid.str() + " as " + name, "has no such MIG profile");
    }
    pool_.counter_sets.push_back({counter_set_name(gpu), partitions.counters});
    const auto held = GpuPartitions::held_counters(dynamic);
    for (const auto& [partition, profile] : partitions.allowed) {
      MigDevice mig;
      mig.profile = profile->name;
      mig.memory = profile->memory;
      mig.gpu_instance_profile = profile->id;
      mig.placement_start = partition.placement.start;
      mig.multiprocessors = profile->multiprocessors;
      mig.copy_engines = profile->copy_engines;
      mig.decoders = profile->engines.decoders;
      mig.encoders = profile->engines.encoders;
      mig.jpegs = profile->engines.jpegs;
      mig.ofas = profile->engines.ofas;
      const auto there = partitions.there.find(partition);
      if (there != partitions.there.end()) mig.uuid = there->second;
      auto offered = make_mig_device(gpu, mig);
      offered.partition = partition;
      if (!partitions.foreign.contains(partition)) {
        if (const auto* taken = partitions.find_overlap(partition)) {
          pool_.taken[offered.device.name] =
              "the MIG device " + partition_text(*taken) + " of another program is in its place";
          continue;
        }
        auto counters = partition_counters(*profile, partition.placement);
        std::erase_if(counters, [](const auto& counter) { return counter.second == 0; });
        auto& taints = offered.device.taints;
        if (!partitions.fits_beside(counters, held) && taints.size() < kMaxTaints)
          taints.push_back({std::string(kInstanceHeldTaint), "true", TaintEffect::kNoSchedule});
        offered.device.consumes = {{counter_set_name(gpu), std::move(counters)}};
      }
      add_device(std::move(offered));
    }
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

DevicePool select_devices(const DevicePool& pool,
                          const std::function<bool(const DeviceUuid& gpu)>& is_selected) {
  DevicePool selected;
  for (const auto& offered : pool.devices) {
    if (is_selected(offered.gpu_uuid)) selected.devices.push_back(offered);
  }
  for (const auto& set : pool.counter_sets) {
    const bool is_used = std::ranges::any_of(selected.devices, [&](const PoolDevice& offered) {
      return std::ranges::count(offered.device.consumes, set.name, &CounterUse::set) != 0;
    });
    if (is_used) selected.counter_sets.push_back(set);
  }
  return selected;
}

bool has_device_name(const Gpu& gpu) {
  return !gpu.uuid.empty() && !(gpu.unreadable && gpu.not_read.contains(GpuValue::kMinor));
}

std::string gpu_device_name(const Gpu& gpu) { return "gpu-" + std::to_string(gpu.minor); }

std::string counter_set_name(const Gpu& gpu) { return gpu_device_name(gpu) + "-counter-set"; }

std::string partition_text(const Partition& partition) {
  return partition.profile + " " + mig::placement_text(partition.placement);
}

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

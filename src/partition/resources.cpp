#include "partition/resources.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <variant>

#include "base/device_id.h"
#include "partition/rules.h"

namespace gpulet::partition {
namespace {

constexpr const char* kGpu = "nvidia.com/gpu";

const config::ResourcePattern* first_match(std::span<const config::ResourcePattern> patterns,
                                           std::string_view text) {
  const auto found =
      std::ranges::find_if(patterns, [&](const auto& p) { return matches_pattern(p.pattern, text); });
  return found == patterns.end() ? nullptr : &*found;
}

}  // namespace

bool matches_pattern(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0;
  // Where to continue if the text after the last '*' did not match: that '*' then consumes one more
  // character.
  std::size_t star = std::string_view::npos, taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

ResourceName gpu_resource_name(const inventory::Gpu& gpu, const config::Config& config) {
  const auto* pattern = first_match(config.gpu_resources, gpu.model);
  return pattern ? pattern->name : ResourceName(kGpu);
}

std::optional<ResourceName> mig_resource_name(const inventory::MigDevice& device,
                                              const config::Config& config, config::MigStrategy strategy) {
  if (const auto* pattern = first_match(config.mig_resources, device.profile)) return pattern->name;
  if (strategy == config::MigStrategy::kSingle) return ResourceName(kGpu);
  if (device.compute_slices != device.gpu_slices) return std::nullopt;
  std::string profile = device.profile;
  std::ranges::replace(profile, '+', '.');
  return ResourceName("nvidia.com/mig-" + profile);
}

namespace {

using inventory::Gpu;

inventory::Health health_of(const Gpu& gpu) {
  if (gpu.health.healthy && gpu.unreadable) return {false, "cannot be read: " + gpu.unreadable->message()};
  return gpu.health;
}

}  // namespace

std::string display_name(const Gpu& gpu) {
  return "GPU " + std::to_string(gpu.index) + " (" + gpu.uuid.str() + ")";
}

std::string display_name(const Gpu& gpu, const inventory::MigDevice& mig) {
  return "MIG device " + std::to_string(gpu.index) + ":" + std::to_string(mig.index) +
         (mig.uuid.empty() ? "" : " (" + mig.uuid.str() + ")");
}

bool is_unknown(const Gpu& gpu) { return gpu.unreadable.has_value() && gpu.model.empty(); }

Device make_gpu_device(const inventory::Snapshot& snapshot, std::size_t index) {
  const auto& gpu = snapshot.gpus[index];
  Device device;
  device.id = DeviceId(gpu.uuid.str());
  device.gpu = index;
  device.numa_node = gpu.numa_node;
  device.health = health_of(gpu);
  // Offered whole although it is partitioned (strategy none): a fault of a part is a fault of the GPU.
  for (const auto& mig : gpu.mig_devices) {
    if (device.health.healthy && gpu.mig_enabled && !mig.health.healthy) device.health = mig.health;
  }
  return device;
}

Device make_mig_device(const inventory::Snapshot& snapshot, std::size_t gpu_index, std::size_t mig_index) {
  const auto& gpu = snapshot.gpus[gpu_index];
  const auto& mig = gpu.mig_devices[mig_index];
  Device device;
  device.id = DeviceId(mig.uuid.str());
  device.gpu = gpu_index;
  device.mig = mig_index;
  device.numa_node = gpu.numa_node;
  device.health = mig.health.healthy ? health_of(gpu) : mig.health;
  return device;
}

Device make_replica(const Device& device, unsigned n) {
  Device replica = device;
  replica.id = make_share_id(device.id.str(), n);
  replica.replica = n;
  return replica;
}

void sort_devices(std::vector<Device>& devices) {
  std::ranges::sort(devices, {}, [](const Device& d) { return std::tuple(d.gpu, d.mig, d.replica); });
}

namespace {

using config::SharingStrategy;

// Whether `ref` ("0", "0:1", "GPU-…", "MIG-…", "MIG-GPU-…/gi/ci") names the device.
bool refers_to(const std::string& ref, const Device& device, const inventory::Snapshot& snapshot) {
  const auto& gpu = snapshot.gpus[device.gpu];
  if (!device.mig) return ref == gpu.uuid.str() || ref == std::to_string(gpu.index);
  const auto& mig = gpu.mig_devices[*device.mig];
  return ref == mig.uuid.str() || ref == std::to_string(gpu.index) + ":" + std::to_string(mig.index) ||
         ref == "MIG-" + gpu.uuid.str() + "/" + std::to_string(mig.gpu_instance) + "/" +
                    std::to_string(mig.compute_instance);
}

// Positions in `devices` that the entry selects, none twice.
std::vector<std::size_t> select(const config::ReplicatedResource& entry, const std::vector<Device>& devices,
                                const inventory::Snapshot& snapshot, std::vector<Note>& notes) {
  std::vector<std::size_t> chosen;
  if (const auto* refs = std::get_if<config::DeviceRefs>(&entry.devices)) {
    for (const auto& ref : *refs) {
      const auto found =
          std::ranges::find_if(devices, [&](const Device& d) { return refers_to(ref, d, snapshot); });
      if (found == devices.end()) {
        notes.push_back({"sharing of " + entry.name.str() + ": it has no device " + ref});
        continue;
      }
      const auto position = static_cast<std::size_t>(found - devices.begin());
      if (std::ranges::count(chosen, position) == 0) chosen.push_back(position);
    }
    return chosen;
  }
  std::size_t count = devices.size();
  if (const auto* wanted = std::get_if<config::DeviceCount>(&entry.devices)) {
    if (wanted->count > count) {
      notes.push_back({"sharing of " + entry.name.str() + ": " + std::to_string(wanted->count) +
                       " devices are to be shared, but it has " + std::to_string(count)});
    }
    count = std::min<std::size_t>(count, wanted->count);
  }
  for (std::size_t i = 0; i < count; ++i) chosen.push_back(i);
  return chosen;
}

// Why a device cannot be shared in this way; empty if it can.
std::string obstacle(const Device& device, const config::ReplicatedResource& entry, SharingStrategy strategy,
                     const inventory::Snapshot& snapshot) {
  if (strategy != SharingStrategy::kMps) return {};
  const auto& gpu = snapshot.gpus[device.gpu];
  if (!device.mig && gpu.compute_major == 0) return {};  // unknown: the daemon will report it
  const unsigned most = device.mig ? max_mps_replicas(gpu.mig_devices[*device.mig]) : max_mps_replicas(gpu);
  if (entry.replicas <= most) return {};
  return "MPS serves at most " + std::to_string(most) + " clients on it, not " +
         std::to_string(entry.replicas);
}

class DeviceSharer {
 public:
  DeviceSharer(const inventory::Snapshot& snapshot, const config::Config& config, std::vector<Note>& notes)
      : snapshot_(snapshot), config_(config), notes_(notes) {}

  void share_resource(const ResourceName& name, const std::vector<Device>& devices) {
    std::vector<const config::ReplicatedResource*> entry_of(devices.size(), nullptr);
    for (const auto& entry : config_.sharing.resources) {
      if (entry.name != name || config_.sharing.strategy == SharingStrategy::kNone || entry.replicas < 2)
        continue;
      std::string last;
      for (const std::size_t i : select(entry, devices, snapshot_, notes_)) {
        if (entry_of[i]) continue;
        const std::string why = obstacle(devices[i], entry, config_.sharing.strategy, snapshot_);
        if (why.empty()) entry_of[i] = &entry;
        if (!why.empty() && why != last)
          notes_.push_back(
              {devices[i].id.str() + " of " + name.str() + ": " + why + "; it is offered unshared"});
        last = why;
      }
    }
    for (std::size_t i = 0; i < devices.size(); ++i) {
      entry_of[i] ? add_replicas(*entry_of[i], devices[i])
                  : resource_named(name).devices.push_back(devices[i]);
    }
  }

  std::vector<Resource> resources() {
    std::vector<Resource> out;
    for (auto& [name, made] : resources_) {
      sort_devices(made.devices);
      out.push_back(std::move(made));
    }
    return out;
  }

 private:
  Resource& resource_named(const ResourceName& name) {
    auto& made = resources_[name];
    made.name = name;
    return made;
  }

  void add_replicas(const config::ReplicatedResource& entry, const Device& device) {
    auto& shared = resource_named(entry.rename.value_or(entry.name));
    shared.sharing = config_.sharing.strategy;
    shared.replicas = std::max(shared.replicas, entry.replicas);
    shared.fail_requests_greater_than_one = config_.sharing.fail_requests_greater_than_one;
    if (shared.sharing == SharingStrategy::kMps) shared.mps_daemon = shared.name.str();
    for (unsigned n = 0; n < entry.replicas; ++n) shared.devices.push_back(make_replica(device, n));
  }

  const inventory::Snapshot& snapshot_;
  const config::Config& config_;
  std::vector<Note>& notes_;
  std::map<ResourceName, Resource> resources_;
};

}  // namespace

unsigned max_mps_replicas(const inventory::Gpu& gpu) {
  return std::pair(gpu.compute_major, gpu.compute_minor) < std::pair(7u, 5u) ? 16 : 48;
}

unsigned max_mps_replicas(const inventory::MigDevice& device) {
  return 48 * std::min(device.compute_slices, 7u) / 7;
}

std::vector<Resource> share_devices(const inventory::Snapshot& snapshot, const config::Config& config,
                                    const Unshared& unshared, std::vector<Note>& notes) {
  DeviceSharer sharer(snapshot, config, notes);
  for (const auto& [name, devices] : unshared) sharer.share_resource(name, devices);
  return sharer.resources();
}

namespace {

using config::MigStrategy;
using inventory::Gpu;
using inventory::Snapshot;

// The partitioning of a GPU, as strategy single compares it: "" whole, a profile, nullopt for several
// profiles.
std::optional<std::string> uniform_kind(const Gpu& gpu) {
  if (!gpu.mig_enabled) return "";
  const std::string& first = gpu.mig_devices.front().profile;
  for (const auto& mig : gpu.mig_devices) {
    if (mig.profile != first) return std::nullopt;
  }
  return first;
}

class ResourcePlanner {
 public:
  ResourcePlanner(const Snapshot& snapshot, const config::Config& config, const NodeFacts& facts)
      : snapshot_(snapshot),
        config_(config),
        facts_(facts),
        strategy_(config.flags.mig_strategy),
        selection_(select_rules(snapshot, config, facts.labels)),
        notes_(selection_.notes),
        remarks_(selection_.remarks) {}

  Plan plan_all() {
    std::vector<std::size_t> gpus = usable_gpus();
    std::vector<std::size_t> ruled;
    std::ranges::copy_if(gpus, std::back_inserter(ruled),
                         [&](auto i) { return selection_.rule[i].has_value(); });
    std::erase_if(gpus, [&](auto i) { return selection_.rule[i].has_value(); });
    if (strategy_ == MigStrategy::kSingle) gpus = keep_uniform_kind(std::move(gpus));
    for (const std::size_t index : gpus) add_gpu(index);
    std::map<ResourceName, Resource> resources;
    for (auto& resource : share_devices(snapshot_, config_, std::move(unshared_), notes_)) {
      resources.emplace(resource.name, std::move(resource));
    }
    // By rule, then by GPU: the earlier rule has precedence for a name.
    std::ranges::stable_sort(ruled, {}, [&](auto i) { return *selection_.rule[i]; });
    for (const std::size_t index : ruled) {
      const auto& rule = config_.gpulet.partition[*selection_.rule[index]];
      for (auto& made : plan_by_rule(snapshot_, index, rule, config_, migs_, notes_)) {
        add_resource(resources, std::move(made), snapshot_, rule, notes_);
      }
    }
    for (auto& [name, resource] : resources) mark_leaving(resource);
    Plan plan;
    for (auto& [name, resource] : resources) plan.resources.push_back(std::move(resource));
    plan.notes = std::move(notes_);
    plan.remarks = std::move(remarks_);
    return plan;
  }

 private:
  // A Pod keeps what it has of a GPU that leaves the device plugin, and no other gets it.
  void mark_leaving(Resource& resource) const {
    for (auto& device : resource.devices) {
      const auto found = facts_.offers.find(snapshot_.gpus[device.gpu].uuid);
      if (found != facts_.offers.end() && found->second.stage == OfferStage::kLeavingDevicePlugin)
        device.health = {false, found->second.reason};
    }
  }

  void add_note(std::string message) { notes_.push_back({std::move(message)}); }

  // GPUs that can be offered, by index.
  std::vector<std::size_t> usable_gpus() {
    std::vector<std::size_t> gpus;
    std::set<DeviceUuid> seen;
    for (std::size_t i = 0; i < snapshot_.gpus.size(); ++i) {
      const auto& gpu = snapshot_.gpus[i];
      if (gpu.uuid.empty()) {
        add_note("GPU " + std::to_string(gpu.index) + " does not say its UUID" +
                 (gpu.unreadable ? ": " + gpu.unreadable->message() : "") + ": it is not offered");
      } else if (is_display_adapter(gpu)) {
        add_note(display_name(gpu) + " is a display adapter: it is not offered");
      } else if (!seen.insert(gpu.uuid).second) {
        add_note(display_name(gpu) + " has the UUID of another: it is not offered");
      } else if (!selection_.excluded[i].empty()) {
        remarks_.push_back({display_name(gpu) + " " + selection_.excluded[i]});
      } else if (is_of_claims(facts_.offers, gpu.uuid)) {
        continue;
      } else if (const auto out = facts_.withdrawn.find(gpu.uuid); out != facts_.withdrawn.end()) {
        add_note(display_name(gpu) + " " + out->second + ": it is not offered");
      } else if (!selection_.rule[i] && strategy_ != MigStrategy::kNone && gpu.mig_enabled &&
                 gpu.mig_devices.empty()) {
        add_note(display_name(gpu) + " has MIG on and no instance: it is not offered");
      } else {
        gpus.push_back(i);
      }
    }
    return gpus;
  }

  // Strategy single means one kind of device on the whole node. Where GPUs differ, the kind that most of them
  // have is offered (whole GPUs, then the lowest index, where as many have each), so that one manually
  // partitioned GPU does not withdraw the node, and no Pod gets a slice instead of a GPU or vice versa.
  std::vector<std::size_t> keep_uniform_kind(std::vector<std::size_t> gpus) {
    std::map<std::string, std::size_t> count;
    std::vector<std::string> order = {""};
    for (const std::size_t i : gpus) {
      const auto kind = uniform_kind(snapshot_.gpus[i]);
      if (!kind || is_unknown(snapshot_.gpus[i])) continue;
      if (count[*kind]++ == 0 && !kind->empty()) order.push_back(*kind);
    }
    const std::string kept =
        *std::ranges::max_element(order, {}, [&](const auto& kind) { return count[kind]; });
    std::erase_if(gpus, [&](std::size_t i) {
      const auto& gpu = snapshot_.gpus[i];
      const auto kind = uniform_kind(gpu);
      if (kind == kept || is_unknown(gpu)) return false;
      add_note(display_name(gpu) +
               (kind && kind->empty() ? " is whole"
                : !kind               ? " has more than one MIG profile"
                                      : " has MIG profile " + *kind) +
               ", and others on the node " + (kept.empty() ? "are whole" : "have " + kept) +
               ": with MIG strategy single it is not offered");
      return true;
    });
    return gpus;
  }

  void add_gpu(std::size_t index) {
    const auto& gpu = snapshot_.gpus[index];
    if (strategy_ == MigStrategy::kNone || !gpu.mig_enabled) {
      unshared_[gpu_resource_name(gpu, config_)].push_back(make_gpu_device(snapshot_, index));
      return;
    }
    for (std::size_t j = 0; j < gpu.mig_devices.size(); ++j) {
      const auto& mig = gpu.mig_devices[j];
      const auto name = mig_resource_name(mig, config_, strategy_);
      if (mig.uuid.empty() || !migs_.insert(mig.uuid).second) {
        add_note("MIG device " + std::to_string(gpu.index) + ":" + std::to_string(mig.index) +
                 " has no UUID of its own: it is not offered");
      } else if (!name) {
        add_note(display_name(gpu, mig) + ": profile " + mig.profile +
                 " does not match any resource patterns: it is not offered");
      } else {
        unshared_[*name].push_back(make_mig_device(snapshot_, index, j));
      }
    }
  }

  const Snapshot& snapshot_;
  const config::Config& config_;
  const NodeFacts& facts_;
  MigStrategy strategy_;
  Selection selection_;
  Unshared unshared_;
  std::set<DeviceUuid> migs_;
  std::vector<Note> notes_, remarks_;
};

}  // namespace

Plan plan_resources(const Snapshot& snapshot, const config::Config& config, const NodeFacts& facts) {
  return ResourcePlanner(snapshot, config, facts).plan_all();
}

}  // namespace gpulet::partition

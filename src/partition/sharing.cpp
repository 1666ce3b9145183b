#include "partition/sharing.h"

#include <algorithm>
#include <variant>

#include "partition/devices.h"

namespace gpulet::partition {
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

// Why a device cannot be shared in this way; empty when it can.
std::string obstacle(const Device& device, const config::ReplicatedResource& entry, SharingStrategy strategy,
                     const inventory::Snapshot& snapshot) {
  if (strategy != SharingStrategy::kMps) return {};
  const auto& gpu = snapshot.gpus[device.gpu];
  if (!device.mig && gpu.compute_major == 0) return {};  // nobody knows: the daemon will tell
  const unsigned most = device.mig ? max_mps_replicas(gpu.mig_devices[*device.mig]) : max_mps_replicas(gpu);
  if (entry.replicas <= most) return {};
  return "MPS serves at most " + std::to_string(most) + " clients on it, not " +
         std::to_string(entry.replicas);
}

class Sharer {
 public:
  Sharer(const inventory::Snapshot& snapshot, const config::Config& config, std::vector<Note>& notes)
      : snapshot_(snapshot), config_(config), notes_(notes) {}

  void take(const ResourceName& name, const std::vector<Device>& devices) {
    std::vector<const config::ReplicatedResource*> entry_of(devices.size(), nullptr);
    for (const auto& entry : config_.sharing.resources) {
      if (entry.name != name || config_.sharing.strategy == SharingStrategy::kNone || entry.replicas < 2)
        continue;
      std::string told;
      for (const std::size_t i : select(entry, devices, snapshot_, notes_)) {
        if (entry_of[i]) continue;
        const std::string why = obstacle(devices[i], entry, config_.sharing.strategy, snapshot_);
        if (why.empty()) entry_of[i] = &entry;
        if (!why.empty() && why != told)
          notes_.push_back(
              {devices[i].id.str() + " of " + name.str() + ": " + why + "; it is offered unshared"});
        told = why;
      }
    }
    for (std::size_t i = 0; i < devices.size(); ++i) {
      entry_of[i] ? add_replicas(*entry_of[i], devices[i]) : resource(name).devices.push_back(devices[i]);
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
  Resource& resource(const ResourceName& name) {
    auto& made = resources_[name];
    made.name = name;
    return made;
  }

  void add_replicas(const config::ReplicatedResource& entry, const Device& device) {
    auto& shared = resource(entry.rename.value_or(entry.name));
    shared.sharing = config_.sharing.strategy;
    shared.replicas = std::max(shared.replicas, entry.replicas);
    shared.fail_requests_greater_than_one = config_.sharing.fail_requests_greater_than_one;
    if (shared.sharing == SharingStrategy::kMps) shared.mps_daemon = shared.name.str();
    for (unsigned n = 0; n < entry.replicas; ++n) shared.devices.push_back(replica_of(device, n));
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

std::vector<Resource> share(const inventory::Snapshot& snapshot, const config::Config& config,
                            const Unshared& unshared, std::vector<Note>& notes) {
  Sharer sharer(snapshot, config, notes);
  for (const auto& [name, devices] : unshared) sharer.take(name, devices);
  return sharer.resources();
}

}  // namespace gpulet::partition

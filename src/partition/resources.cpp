#include "partition/resources.h"

#include <algorithm>
#include <map>
#include <set>

#include "partition/names.h"
#include "partition/sharing.h"

namespace gpulet::partition {
namespace {

using config::MigStrategy;
using inventory::Gpu;
using inventory::Snapshot;

// A DGX Station's display adapter is no GPU for work. Source: go-nvlib, pkg/nvlib/device/api.go.
bool display_adapter(const Gpu& gpu) {
  return gpu.model == "DGX Display" || gpu.model == "NVIDIA DGX Display";
}

std::string name_of(const Gpu& gpu) {
  return "GPU " + std::to_string(gpu.index) + " (" + gpu.uuid.str() + ")";
}

// Nothing was ever learned of it: neither its model nor whether it is cut up.
bool unknown(const Gpu& gpu) { return gpu.unreadable.has_value() && gpu.model.empty(); }

inventory::Health health_of(const Gpu& gpu) {
  if (gpu.health.healthy && gpu.unreadable) return {false, "cannot be read: " + gpu.unreadable->message()};
  return gpu.health;
}

Device whole_gpu(const Snapshot& snapshot, std::size_t index) {
  const auto& gpu = snapshot.gpus[index];
  Device device;
  device.id = DeviceId(gpu.uuid.str());
  device.gpu = index;
  device.numa_node = gpu.numa_node;
  device.health = health_of(gpu);
  // Offered whole although it is cut up (strategy none): what breaks a part of it breaks it.
  for (const auto& mig : gpu.mig_devices) {
    if (device.health.healthy && gpu.mig_enabled && !mig.health.healthy) device.health = mig.health;
  }
  return device;
}

Device mig_device(const Snapshot& snapshot, std::size_t gpu_index, std::size_t mig_index) {
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

// What a GPU is cut into, as strategy single compares it: "" whole, a profile, nullopt for several profiles.
std::optional<std::string> uniform_kind(const Gpu& gpu) {
  if (!gpu.mig_enabled) return "";
  const std::string& first = gpu.mig_devices.front().profile;
  for (const auto& mig : gpu.mig_devices) {
    if (mig.profile != first) return std::nullopt;
  }
  return first;
}

class Planner {
 public:
  Planner(const Snapshot& snapshot, const config::Config& config)
      : snapshot_(snapshot), config_(config), strategy_(config.flags.mig_strategy) {}

  Plan run() {
    std::vector<std::size_t> gpus = usable();
    if (strategy_ == MigStrategy::kSingle) gpus = alike(std::move(gpus));
    for (const std::size_t index : gpus) add(index);
    Plan plan;
    plan.resources = share(snapshot_, config_, std::move(unshared_), notes_);
    plan.notes = std::move(notes_);
    return plan;
  }

 private:
  void note(std::string message) { notes_.push_back({std::move(message)}); }

  // GPUs that can be offered as something at all, by index.
  std::vector<std::size_t> usable() {
    std::vector<std::size_t> gpus;
    std::set<DeviceUuid> seen;
    for (std::size_t i = 0; i < snapshot_.gpus.size(); ++i) {
      const auto& gpu = snapshot_.gpus[i];
      if (gpu.uuid.empty()) {
        note("GPU " + std::to_string(gpu.index) + " does not say its UUID" +
             (gpu.unreadable ? ": " + gpu.unreadable->message() : "") + ": it is not offered");
      } else if (display_adapter(gpu)) {
        note(name_of(gpu) + " is a display adapter: it is not offered");
      } else if (!seen.insert(gpu.uuid).second) {
        note(name_of(gpu) + " has the UUID of another: it is not offered");
      } else if (strategy_ != MigStrategy::kNone && gpu.mig_enabled && gpu.mig_devices.empty()) {
        note(name_of(gpu) + " has MIG on and no instance: it is not offered");
      } else {
        gpus.push_back(i);
      }
    }
    return gpus;
  }

  // Strategy single means one kind of device on the whole node. Where GPUs differ, the kind that most of them
  // have is offered (whole GPUs, then the lowest index, where as many have each), so that one GPU that
  // somebody cut up does not take the node away, and no Pod gets a slice for a GPU or the other way round.
  std::vector<std::size_t> alike(std::vector<std::size_t> gpus) {
    std::map<std::string, std::size_t> count;
    std::vector<std::string> order = {""};
    for (const std::size_t i : gpus) {
      const auto kind = uniform_kind(snapshot_.gpus[i]);
      if (!kind || unknown(snapshot_.gpus[i])) continue;
      if (count[*kind]++ == 0 && !kind->empty()) order.push_back(*kind);
    }
    const std::string kept =
        *std::ranges::max_element(order, {}, [&](const auto& kind) { return count[kind]; });
    std::erase_if(gpus, [&](std::size_t i) {
      const auto& gpu = snapshot_.gpus[i];
      const auto kind = uniform_kind(gpu);
      if (kind == kept || unknown(gpu)) return false;
      note(name_of(gpu) +
           (kind && kind->empty() ? " is whole"
            : !kind               ? " has more than one MIG profile"
                                  : " has MIG profile " + *kind) +
           ", and others on the node " + (kept.empty() ? "are whole" : "have " + kept) +
           ": with MIG strategy single it is not offered");
      return true;
    });
    return gpus;
  }

  void add(std::size_t index) {
    const auto& gpu = snapshot_.gpus[index];
    if (strategy_ == MigStrategy::kNone || !gpu.mig_enabled) {
      unshared_[gpu_resource(gpu, config_)].push_back(whole_gpu(snapshot_, index));
      return;
    }
    for (std::size_t j = 0; j < gpu.mig_devices.size(); ++j) {
      const auto& mig = gpu.mig_devices[j];
      const auto name = mig_resource(mig, config_);
      if (mig.uuid.empty() || !migs_.insert(mig.uuid).second) {
        note("MIG device " + std::to_string(gpu.index) + ":" + std::to_string(mig.index) +
             " has no UUID of its own: it is not offered");
      } else if (!name) {
        note("MIG device " + std::to_string(gpu.index) + ":" + std::to_string(mig.index) + " (" +
             mig.uuid.str() + "): profile " + mig.profile +
             " does not match any resource patterns: it is not offered");
      } else {
        unshared_[*name].push_back(mig_device(snapshot_, index, j));
      }
    }
  }

  const Snapshot& snapshot_;
  const config::Config& config_;
  MigStrategy strategy_;
  Unshared unshared_;
  std::set<DeviceUuid> migs_;
  std::vector<Note> notes_;
};

}  // namespace

Plan plan(const Snapshot& snapshot, const config::Config& config) { return Planner(snapshot, config).run(); }

}  // namespace gpulet::partition

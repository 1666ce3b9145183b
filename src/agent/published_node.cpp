#include "agent/published_node.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "topology/topology.h"

namespace gpulet::agent {
namespace {

using scheduler::GpuNode;
using scheduler::NodeResource;
using scheduler::Unit;

scheduler::Sharing sharing_of(config::SharingStrategy strategy) {
  switch (strategy) {
    case config::SharingStrategy::kNone:
      return scheduler::Sharing::kNone;
    case config::SharingStrategy::kTimeSlicing:
      return scheduler::Sharing::kTimeSlicing;
    case config::SharingStrategy::kMps:
      return scheduler::Sharing::kMps;
  }
  return scheduler::Sharing::kNone;
}

void add_gpus(const inventory::Snapshot& snapshot, const health::View* view,
              const std::map<DeviceUuid, std::string>& loads, GpuNode& node) {
  for (const auto& gpu : snapshot.gpus) {
    const scheduler::GpuModel model{.name = gpu.model,
                                    .architecture = gpu.architecture,
                                    .compute_major = gpu.compute_major,
                                    .compute_minor = gpu.compute_minor,
                                    .memory_mib = gpu.memory.mebibytes()};
    auto known = std::ranges::find(node.models, model);
    if (known == node.models.end()) known = node.models.insert(node.models.end(), model);
    scheduler::NodeGpu one;
    one.uuid = gpu.uuid.str();
    one.model = static_cast<std::size_t>(known - node.models.begin());
    one.numa = gpu.numa_node;
    const auto* const standing = view != nullptr ? view->find({.gpu = gpu.uuid}) : nullptr;
    if (standing != nullptr) {
      one.state = standing->standing.state;
      one.reason = standing->standing.reason;
    } else if (!gpu.health.healthy) {
      one.state = health::State::kQuarantined;
      one.reason = gpu.health.reason;
    }
    if (const auto load = loads.find(gpu.uuid); load != loads.end()) one.load = load->second;
    node.gpus.push_back(std::move(one));
  }
}

// What one share of `device` may use, where MPS limits it.
std::uint64_t share_mib(const partition::Resource& resource, const partition::Device& device,
                        std::uint64_t unit_mib) {
  if (resource.sharing != config::SharingStrategy::kMps) return 0;
  if (device.share) return unit_mib * device.share->memory / 100;
  return unit_mib / std::max(resource.replicas, 1U);
}

// Where each device id is: resource and unit.
using DevicePlaces = std::unordered_map<std::string, std::pair<std::size_t, std::size_t>>;

void add_resource(const inventory::Snapshot& snapshot, const partition::Resource& resource, GpuNode& node,
                  DevicePlaces& places) {
  NodeResource one{.name = resource.name, .sharing = sharing_of(resource.sharing), .units = {}};
  std::map<std::pair<std::size_t, std::optional<std::size_t>>, std::size_t> unit_of;
  for (const auto& device : resource.devices) {
    const auto [at, is_new] = unit_of.try_emplace({device.gpu, device.mig}, one.units.size());
    const auto& gpu = snapshot.gpus[device.gpu];
    if (is_new) {
      Unit unit;
      unit.gpu = device.gpu;
      unit.shares = 0;
      if (device.mig) {
        const auto& mig = gpu.mig_devices[*device.mig];
        unit.profile = mig.profile;
        unit.memory_mib = mig.memory.mebibytes();
        unit.slice = mig.placement_start;
      }
      unit.share_mib =
          share_mib(resource, device, unit.memory_mib != 0 ? unit.memory_mib : gpu.memory.mebibytes());
      one.units.push_back(std::move(unit));
    }
    Unit& unit = one.units[at->second];
    ++unit.shares;
    if (!device.health.healthy) {
      ++unit.out;
      // What the GPU has of its own is not said twice.
      if (unit.why.empty() && device.health.reason != node.gpus[device.gpu].reason)
        unit.why = device.health.reason;
    }
    places[device.id.str()] = {node.resources.size(), at->second};
  }
  node.resources.push_back(std::move(one));
}

}  // namespace

GpuNode published_node(const inventory::Snapshot& snapshot, std::span<const kubelet::OfferPtr> offers,
                       const config::Config& config, const health::View* view,
                       std::span<const kubelet::ContainerDevices> holders,
                       const std::map<DeviceUuid, std::string>& loads) {
  GpuNode node;
  node.driver = snapshot.driver.version;
  node.cuda_version = snapshot.driver.cuda_version;
  node.rules = placement_rules(config);
  add_gpus(snapshot, view, loads, node);
  node.pairs = topology::build(snapshot).pairs;
  DevicePlaces places;
  for (const auto& offer : offers) {
    // An offer of a snapshot before this one: the next round has both.
    const auto known = [&](const partition::Device& device) {
      return device.gpu < snapshot.gpus.size() &&
             (!device.mig || *device.mig < snapshot.gpus[device.gpu].mig_devices.size());
    };
    if (std::ranges::all_of(offer->resource.devices, known))
      add_resource(snapshot, offer->resource, node, places);
  }
  std::map<std::string, std::map<std::pair<std::size_t, std::size_t>, unsigned>> held;
  for (const auto& container : holders) {
    for (const auto& [resource, ids] : container.devices) {
      for (const auto& id : ids) {
        const auto place = places.find(id.str());
        if (place != places.end()) ++held[container.name_space + "/" + container.pod][place->second];
      }
    }
  }
  for (const auto& [pod, parts] : held) {
    scheduler::PodHolding holding{.pod = pod, .parts = {}};
    for (const auto& [place, shares] : parts) {
      const auto& unit = node.resources[place.first].units[place.second];
      holding.parts.push_back({place.first, place.second, std::min(shares, unit.shares)});
    }
    node.holders.push_back(std::move(holding));
  }
  return node;
}

}  // namespace gpulet::agent

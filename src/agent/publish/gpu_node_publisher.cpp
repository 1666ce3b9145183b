#include "agent/publish/gpu_node_publisher.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "agent/dra/claim_limits.h"
#include "partition/limit_means.h"
#include "topology/topology.h"

namespace gpulet::agent {
namespace {

using scheduler::GpuNode;
using scheduler::NodeResource;
using scheduler::ResourceUnit;

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

void add_gpus_to_node(const inventory::Snapshot& snapshot, const health::HealthView* view,
                      const std::map<DeviceUuid, std::string>& curves, const placement::LoadsByGpu& loads,
                      GpuNode& node) {
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
    const auto* const device = view != nullptr ? view->find({.gpu = gpu.uuid}) : nullptr;
    if (device != nullptr) {
      one.state = device->status.state;
      one.reason = device->status.reason;
    } else if (!gpu.health.healthy) {
      one.state = health::DeviceState::kQuarantined;
      one.reason = gpu.health.reason;
    }
    if (const auto curve = curves.find(gpu.uuid); curve != curves.end()) one.load = curve->second;
    if (const auto load = loads.find(gpu.uuid); load != loads.end()) one.now = load->second;
    node.gpus.push_back(std::move(one));
  }
}

// Resource and unit by device id.
using DevicePlaces = std::unordered_map<std::string, std::pair<std::size_t, std::size_t>>;

void add_resource_to_node(const inventory::Snapshot& snapshot, const partition::Resource& resource,
                          GpuNode& node, DevicePlaces& places) {
  NodeResource one{.name = resource.name,
                   .sharing = sharing_of(resource.sharing),
                   .shares_on = resource.shares_on,
                   .units = {}};
  std::map<std::pair<std::size_t, std::optional<std::size_t>>, std::size_t> unit_of;
  for (const auto& device : resource.devices) {
    const auto [at, is_new] = unit_of.try_emplace({device.gpu, device.mig}, one.units.size());
    const auto& gpu = snapshot.gpus[device.gpu];
    if (is_new) {
      ResourceUnit unit;
      unit.gpu = device.gpu;
      unit.shares = 0;
      if (device.mig) {
        const auto& mig = gpu.mig_devices[*device.mig];
        unit.profile = mig.profile;
        unit.memory_mib = mig.memory.mebibytes();
        unit.slice = mig.placement_start;
      }
      unit.share_mib = partition::mps_process_mib(
          resource, device, unit.memory_mib != 0 ? unit.memory_mib : gpu.memory.mebibytes());
      one.units.push_back(std::move(unit));
    }
    ResourceUnit& unit = one.units[at->second];
    ++unit.shares;
    if (!device.health.healthy) {
      ++unit.unavailable;
      // The GPU's own reason is not repeated.
      if (unit.unavailable_reason.empty() && device.health.reason != node.gpus[device.gpu].reason)
        unit.unavailable_reason = device.health.reason;
    }
    places[device.id.str()] = {node.resources.size(), at->second};
  }
  node.resources.push_back(std::move(one));
}

}  // namespace

partition::Resource make_claimed_resource(const dra::DevicePool& pool, const inventory::Snapshot& snapshot) {
  static_assert(dra::kDriverName == scheduler::kClaimedResource);
  std::set<DeviceUuid> offered;
  for (const auto& device : pool.devices) offered.insert(device.uuid);
  partition::Resource resource;
  resource.name = ResourceName(scheduler::kClaimedResource);
  const auto add = [&](const DeviceUuid& uuid, std::size_t index, std::optional<std::size_t> mig,
                       const inventory::Health& health) {
    if (!offered.contains(uuid)) return;
    auto& device = resource.devices.emplace_back();
    device.id = DeviceId(uuid.str());
    device.gpu = index;
    device.mig = mig;
    device.health = health;
  };
  for (std::size_t index = 0; index < snapshot.gpus.size(); ++index) {
    const auto& gpu = snapshot.gpus[index];
    add(gpu.uuid, index, std::nullopt, gpu.health);
    for (std::size_t mig = 0; mig < gpu.mig_devices.size(); ++mig) {
      const auto& device = gpu.mig_devices[mig];
      add(device.uuid, index, mig, device.health.healthy ? gpu.health : device.health);
    }
  }
  return resource;
}

GpuNode build_gpu_node(GpuNodeInputs inputs) {
  const auto& snapshot = inputs.snapshot;
  GpuNode node;
  node.controllers = std::move(inputs.controllers);
  node.mig_offer = std::move(inputs.mig_offer);
  node.driver = snapshot.driver.version;
  node.cuda_version = snapshot.driver.cuda_version;
  node.rules = placement_rules(inputs.config);
  add_gpus_to_node(snapshot, inputs.view, inputs.curves, inputs.loads, node);
  node.pairs = topology::build_topology(snapshot).pairs;
  DevicePlaces places;
  std::vector<const partition::Resource*> resources;
  for (const auto& offer : inputs.offers) {
    // Skip an offer of an older snapshot: the next round has both.
    const auto known = [&](const partition::Device& device) {
      return device.gpu < snapshot.gpus.size() &&
             (!device.mig || *device.mig < snapshot.gpus[device.gpu].mig_devices.size());
    };
    if (!std::ranges::all_of(offer->resource.devices, known)) continue;
    add_resource_to_node(snapshot, offer->resource, node, places);
    resources.push_back(&offer->resource);
  }
  const auto of_claims = shared_by_claims(inputs.claim_pool, snapshot);
  resources.push_back(&of_claims);
  node.no_compute_limit = std::move(inputs.no_compute_limit);
  node.memory_limit = partition::common_limit_means(resources, snapshot, inputs.config);
  if (inputs.claim_pool != nullptr)
    add_resource_to_node(snapshot, make_claimed_resource(*inputs.claim_pool, snapshot), node, places);
  std::map<std::string, std::map<std::pair<std::size_t, std::size_t>, unsigned>> held;
  for (const auto& container : inputs.holders) {
    for (const auto& [resource, ids] : container.devices) {
      for (const auto& id : ids) {
        const auto place = places.find(id.str());
        if (place != places.end()) ++held[container.pod.name_space + "/" + container.pod.name][place->second];
      }
    }
  }
  for (const auto& [pod, parts] : held) {
    scheduler::PodAllocation holding{.pod = pod, .parts = {}};
    for (const auto& [place, shares] : parts) {
      const auto& unit = node.resources[place.first].units[place.second];
      holding.parts.push_back({place.first, place.second, std::min(shares, unit.shares)});
    }
    node.allocations.push_back(std::move(holding));
  }
  return node;
}

namespace {

using scheduler::GpuNode;

GpuNode without_loads(GpuNode node) {
  for (auto& gpu : node.gpus) {
    gpu.load.clear();
    gpu.now = {};
  }
  node.controllers.clear();
  return node;
}

GpuNode without_holders(GpuNode node) {
  node.allocations.clear();
  // What could be cut changes with them.
  node.mig_offer = {};
  return node;
}

}  // namespace

GpuNodePublisher::GpuNodePublisher(GpuNodePorts ports, GpuNodeTiming timing)
    : ports_(std::move(ports)), timing_(timing) {
  refresh_after(Duration::zero());
}

// The earlier time wins.
void GpuNodePublisher::refresh_after(Duration delay) {
  const Time due = ports_.loop.now() + delay;
  if (next_ && *due_ <= due) return;
  due_ = due;
  next_ = ports_.loop.after(delay, [this] {
    next_.reset();
    refresh_holders();
  });
}

void GpuNodePublisher::refresh_holders() {
  if (refreshing_) {
    refresh_again_ = true;
    return;
  }
  refreshing_ = true;
  ports_.holders([this, alive = lifetime_.watch()](Result<std::vector<ContainerDevices>> holders) {
    if (!alive) return;
    refreshing_ = false;
    // While the kubelet is unavailable the last known holders stay.
    if (holders) holders_ = std::move(*holders);
    publish_if_changed();
    refresh_after(std::exchange(refresh_again_, false) ? timing_.settle : timing_.refresh_every);
  });
}

void GpuNodePublisher::publish_if_changed() {
  later_.reset();
  auto node = ports_.node(holders_);
  if (!node || (written_ && *node == *written_)) return;
  Duration every = timing_.load_every;
  if (!written_ || without_holders(without_loads(*node)) != without_holders(without_loads(*written_))) {
    every = Duration::zero();
  } else if (node->allocations != written_->allocations || node->mig_offer != written_->mig_offer) {
    every = timing_.holders_every;
  }
  const Time now = ports_.loop.now();
  if (written_at_ && now < *written_at_ + every) {
    later_ = ports_.loop.after(*written_at_ + every - now, [this] { publish_if_changed(); });
    return;
  }
  ++writes_;
  written_at_ = now;
  ports_.write(scheduler::encode_spec(*node));
  written_ = std::move(node);
}

}  // namespace gpulet::agent

#include "dra/gpu_groups.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "placement/chooser.h"

namespace gpulet::dra {
namespace {

using topology::Pair;
using topology::Topology;
using Members = std::vector<std::size_t>;  // indices into the GPUs, ascending

constexpr std::size_t kSetSizes[] = {8, 4, 2};  // each divides the one before

bool is_known(const Pair& pair) {
  return pair.pcie != inventory::PcieDistance::kUnknown || pair.nvlinks() != 0;
}

class GroupBuilder {
 public:
  GroupBuilder(const Topology& topology, std::vector<GroupedGpu> gpus)
      : topology_(topology), gpus_(std::move(gpus)) {
    std::ranges::sort(gpus_, {}, &GroupedGpu::pci);
    std::vector<placement::Device> devices;
    for (const auto& gpu : gpus_) {
      index_of_[DeviceId(gpu.uuid.str())] = devices.size();
      devices.push_back({DeviceId(gpu.uuid.str()), gpu.gpu});
      all_.push_back(all_.size());
    }
    chooser_ = placement::Chooser::build_chooser(topology, std::move(devices), {});
  }

  GpuGroups make_groups() {
    add_islands();
    for (const auto& [size, name] : {std::pair(2, kBestPairAttribute), std::pair(4, kBestQuadAttribute)}) {
      Members left = all_;
      for (const auto& set : take_sets(left, static_cast<std::size_t>(size))) {
        if (is_known_set(set)) set_attribute(name, set);
      }
    }
    add_in_order(all_, kSetSizes);
    return std::move(groups_);
  }

 private:
  const Pair& pair_between(std::size_t a, std::size_t b) const {
    return topology_.pair_between(gpus_[a].gpu, gpus_[b].gpu);
  }

  bool is_known_set(const Members& set) const {
    for (const auto a : set) {
      for (const auto b : set) {
        if (a < b && !is_known(pair_between(a, b))) return false;
      }
    }
    return true;
  }

  void set_attribute(const char* name, const Members& set) {
    for (const auto member : set) {
      groups_.attributes[gpus_[member].uuid][name] = gpus_[set.front()].pci.sysfs_text();
    }
  }

  // Takes as many sets of `size` out of `from` as there are. Each is the best of an optimal partition of what
  // is left, so that together they are one.
  std::vector<Members> take_sets(Members& from, std::size_t size) const {
    std::vector<Members> sets;
    while (from.size() >= size) {
      std::vector<DeviceId> available;
      for (const auto member : from) available.emplace_back(gpus_[member].uuid.str());
      const auto choice = chooser_->choose_devices(available, {}, size);
      if (!choice) break;  // two GPUs with one UUID
      auto& set = sets.emplace_back();
      for (const auto& id : choice->devices) set.push_back(index_of_.at(id));
      std::ranges::sort(set);
      std::erase_if(from, [&](std::size_t member) { return std::ranges::binary_search(set, member); });
    }
    return sets;
  }

  void add_islands() {
    std::vector<bool> seen(gpus_.size(), false);
    for (const auto first : all_) {
      if (seen[first]) continue;
      seen[first] = true;
      Members island = {first};
      for (std::size_t at = 0; at < island.size(); ++at) {
        for (const auto other : all_) {
          if (seen[other] || pair_between(island[at], other).nvlinks() == 0) continue;
          seen[other] = true;
          island.push_back(other);
        }
      }
      if (island.size() > 1) set_attribute(kNvLinkIslandAttribute, island);
    }
  }

  void add_in_order(Members members, std::span<const std::size_t> sizes) {
    if (!sizes.empty()) {
      for (auto& set : take_sets(members, sizes.front())) add_in_order(std::move(set), sizes.subspan(1));
      if (!members.empty()) add_in_order(std::move(members), sizes.subspan(1));
      return;
    }
    for (const auto member : members) groups_.order.push_back(gpus_[member].uuid);
  }

  const Topology& topology_;
  std::vector<GroupedGpu> gpus_;  // by PCI address
  std::map<DeviceId, std::size_t> index_of_;
  Members all_;
  std::shared_ptr<const placement::Chooser> chooser_;
  GpuGroups groups_;
};

// Whether the driver has ever returned its links. One that has none is known too.
bool has_known_links(const inventory::Snapshot& snapshot, std::size_t at, const Topology& topology) {
  const auto& gpu = snapshot.gpus[at];
  const auto missing = gpu.not_read.find(inventory::GpuValue::kNvLinks);
  if (missing != gpu.not_read.end() && missing->second.code() != Code::kUnsupported && gpu.nvlinks.empty()) {
    return false;
  }
  for (std::size_t other = 0; other < topology.size; ++other) {
    if (other != at && is_known(topology.pair_between(at, other))) return true;
  }
  return topology.size == 1;
}

std::vector<GroupedGpu> grouped_gpus(const inventory::Snapshot& snapshot, const DevicePool& pool,
                                     const Topology& topology) {
  std::vector<GroupedGpu> gpus;
  for (std::size_t at = 0; at < snapshot.gpus.size(); ++at) {
    const auto& gpu = snapshot.gpus[at];
    const bool is_offered =
        std::ranges::find(pool.devices, gpu.uuid, &PoolDevice::uuid) != pool.devices.end();
    if (is_offered && has_known_links(snapshot, at, topology)) gpus.push_back({gpu.uuid, gpu.pci, at});
  }
  return gpus;
}

}  // namespace

GpuGroups make_gpu_groups(const Topology& topology, std::vector<GroupedGpu> gpus) {
  return GroupBuilder(topology, std::move(gpus)).make_groups();
}

void DeviceArranger::arrange_devices(const inventory::Snapshot& snapshot, DevicePool& pool) {
  auto topology = topology::build_topology(snapshot);
  auto gpus = grouped_gpus(snapshot, pool, topology);
  if (topology != topology_ || gpus != gpus_) {
    groups_ = make_gpu_groups(topology, gpus);
    topology_ = std::move(topology);
    gpus_ = std::move(gpus);
  }
  std::map<DeviceUuid, std::size_t> places;
  for (const auto& uuid : groups_.order) places.emplace(uuid, places.size());
  for (auto& offered : pool.devices) {
    const auto found = groups_.attributes.find(offered.uuid);
    if (found == groups_.attributes.end()) continue;
    for (const auto& [name, value] : found->second) offered.device.attributes[name] = value;
  }
  std::ranges::stable_sort(pool.devices, {}, [&](const PoolDevice& offered) {
    const auto place = places.find(offered.uuid);
    return place == places.end() ? std::numeric_limits<std::size_t>::max() : place->second;
  });
}

}  // namespace gpulet::dra

// The devices of one resource, shared by all nodes of the same topology, and what the placement of such a
// node would choose of them. Pure. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "placement/chooser.h"
#include "scheduler/model/gpu_node.h"

namespace gpulet::scheduler {

// The devices of one resource on all nodes of the same topology, and which of them the node's placement
// would choose: the same code as its GetPreferredAllocation. Nodes share one pool, so tables and results are
// computed once.
//
// Of the shares of one unit only the number of free ones matters: it makes no difference which of them the
// kubelet takes.

// Number of shares, by unit.
using Shares = std::vector<std::uint16_t>;

class DevicePool {
 public:
  DevicePool(const GpuNode& node, const NodeResource& resource);

  // The shares that a container requesting `count` of `free` would get, by unit. `required` are those of
  // `free` that it takes first, left by an init container. `loads` by GPU. Empty if there are too few.
  // Results are cached, at most kMaxCached. Valid until the next call.
  static constexpr std::size_t kMaxCached = 4096;
  const Shares& choose_devices(const Shares& free, const Shares& required, unsigned count,
                               std::span<const placement::GpuLoad> loads);

  std::size_t unit_count() const { return first_share_.size(); }

 private:
  void append_device_ids(const Shares& shares, std::vector<DeviceId>& ids) const;
  void append_loads_to_key(std::span<const placement::GpuLoad> loads);

  std::vector<std::size_t> first_share_;  // by unit: index of its first share
  std::vector<std::size_t> unit_of_;
  std::vector<DeviceId> ids_;
  std::unordered_map<std::string, std::size_t> position_of_;
  std::shared_ptr<const placement::Chooser> chooser_;
  bool has_shares_ = false;
  std::unordered_map<std::string, Shares> cache_;
  std::string cache_key_;  // reused, so that no call allocates
};

// One pool per topology and resource. One thread.
class DevicePoolCache {
 public:
  std::shared_ptr<DevicePool> pool_for(const GpuNode& node, const NodeResource& resource);
  std::size_t size() const { return pools_.size(); }

 private:
  std::map<std::string, std::weak_ptr<DevicePool>> pools_;
};

// Nodes with equal keys have the same GPU links.
std::string topology_key(const GpuNode& node);

// The memory that one share of the unit usually has, in percent of its GPU; 0 for a whole GPU and for a MIG
// device, which has its own memory.
unsigned unit_share_percent(const GpuNode& node, const NodeResource& resource, const ResourceUnit& unit);

}  // namespace gpulet::scheduler

// A resource's devices as they lie on all nodes that are built alike, and which of them the node's own
// placement would give: the same code as its GetPreferredAllocation. Nodes share one pool, so its tables and
// answers are made once.
//
// Of shares of one unit the pool knows only how many are free: which of them the kubelet takes changes
// nothing for anybody else.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "placement/chooser.h"
#include "scheduler/gpu_node.h"

namespace gpulet::scheduler {

// Shares by unit.
using Shares = std::vector<std::uint16_t>;

class DevicePool {
 public:
  DevicePool(const GpuNode& node, const NodeResource& resource);

  // What a container that asks for `count` of `free` would get, by unit; `required` are those of `free` that
  // it takes first (an init container left them). Empty where there are fewer. Answers are remembered, at
  // most kMaxRemembered. Valid until the next call.
  static constexpr std::size_t kMaxRemembered = 4096;
  const Shares& choose(const Shares& free, const Shares& required, unsigned count);

  std::size_t units() const { return first_.size(); }

 private:
  void add_ids(const Shares& shares, std::vector<DeviceId>& ids) const;

  std::vector<std::size_t> first_;  // of each unit: where its shares begin
  std::vector<std::size_t> unit_of_;
  std::vector<DeviceId> ids_;
  std::unordered_map<std::string, std::size_t> position_of_;
  std::shared_ptr<const placement::Chooser> chooser_;
  std::unordered_map<std::string, Shares> remembered_;
  std::string key_;  // of the question under way: kept, so that none is made for each
};

// One for each build of resource that some node has. One thread.
class DevicePools {
 public:
  std::shared_ptr<DevicePool> pool_of(const GpuNode& node, const NodeResource& resource);
  std::size_t size() const { return pools_.size(); }

 private:
  std::map<std::string, std::weak_ptr<DevicePool>> pools_;
};

// Nodes with equal texts have their GPUs linked alike.
std::string build_of(const GpuNode& node);

}  // namespace gpulet::scheduler

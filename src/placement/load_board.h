// The newest loads of a node's GPUs, which whoever samples them sets and whoever answers a request reads.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/types.h"
#include "placement/chooser.h"

namespace gpulet::placement {

using LoadsByGpu = std::map<DeviceUuid, GpuLoad>;

// The loads of `gpus` in their order, for Chooser::choose_devices(); zero where none is known.
std::vector<GpuLoad> loads_in_order(const LoadsByGpu& loads, std::span<const DeviceUuid> gpus);

// Any thread. A reader waits for a pointer's copy at most.
class LoadBoard {
 public:
  void set_loads(LoadsByGpu loads);
  // Never null.
  std::shared_ptr<const LoadsByGpu> newest_loads() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const LoadsByGpu> loads_ = std::make_shared<LoadsByGpu>();
};

}  // namespace gpulet::placement

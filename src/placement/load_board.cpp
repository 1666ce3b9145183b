#include "placement/load_board.h"

namespace gpulet::placement {

std::vector<GpuLoad> loads_in_order(const LoadsByGpu& loads, std::span<const DeviceUuid> gpus) {
  std::vector<GpuLoad> found(gpus.size());
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (const auto at = loads.find(gpus[i]); at != loads.end()) found[i] = at->second;
  }
  return found;
}

void LoadBoard::set_loads(LoadsByGpu loads) {
  auto next = std::make_shared<const LoadsByGpu>(std::move(loads));
  const std::lock_guard lock(mutex_);
  loads_.swap(next);
}

std::shared_ptr<const LoadsByGpu> LoadBoard::newest_loads() const {
  const std::lock_guard lock(mutex_);
  return loads_;
}

}  // namespace gpulet::placement

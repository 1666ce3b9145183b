#include "placement/load_board.h"

namespace gpulet::placement {

void LoadBoard::set_loads(LoadsByGpu loads) {
  auto next = std::make_shared<const LoadsByGpu>(std::move(loads));
  const std::lock_guard lock(mutex_);
  loads_.swap(next);
}

std::vector<GpuLoad> LoadBoard::loads_of(std::span<const DeviceUuid> gpus) const {
  std::shared_ptr<const LoadsByGpu> loads;
  {
    const std::lock_guard lock(mutex_);
    loads = loads_;
  }
  std::vector<GpuLoad> found(gpus.size());
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (const auto at = loads->find(gpus[i]); at != loads->end()) found[i] = at->second;
  }
  return found;
}

}  // namespace gpulet::placement

#include "scheduler/links.h"

#include <algorithm>
#include <bit>
#include <string>

#include "scheduler/hash.h"

namespace gpulet::scheduler {

std::shared_ptr<const NodeLinks> NodeLinks::make(topology::Topology topology) {
  auto links = std::make_shared<NodeLinks>();
  links->topology = std::move(topology);
  std::vector<placement::Device> devices;
  for (std::size_t gpu = 0; gpu < std::min(links->topology.size, kMaxGpus); ++gpu) {
    links->ids.emplace_back(std::to_string(gpu));
    devices.push_back({links->ids.back(), gpu, false, 0});
  }
  links->chooser = placement::Chooser::make(links->topology, std::move(devices), {});
  return links;
}

LinkedSet choose_linked(const NodeLinks& links, GpuSet free, unsigned count) {
  std::vector<DeviceId> available;
  for (unsigned gpu = 0; gpu < links.ids.size(); ++gpu) {
    if ((free >> gpu & 1) != 0) available.push_back(links.ids[gpu]);
  }
  LinkedSet set;
  const auto choice = links.chooser->choose(available, {}, count);
  if (!choice) return set;  // outside the precondition
  for (const DeviceId& id : choice->devices) {
    set.gpus |= GpuSet{1} << (std::ranges::find(links.ids, id) - links.ids.begin());
  }
  set.pair_score = mean_pair_score(links, set.gpus);
  set.of_free = mean_pair_score(links, free);
  return set;
}

double mean_pair_score(const NodeLinks& links, GpuSet gpus) {
  std::int64_t sum = 0;
  std::int64_t pairs = 0;
  for (unsigned a = 0; a < links.ids.size(); ++a) {
    for (unsigned b = 0; b < a; ++b) {
      if ((gpus >> a & gpus >> b & 1) == 0) continue;
      sum += topology::score(links.topology.between(a, b));
      ++pairs;
    }
  }
  return pairs == 0 ? 0 : static_cast<double>(sum) / static_cast<double>(pairs);
}

std::size_t LinkChooser::KeyHash::operator()(const Key& key) const {
  Hash hash;
  hash.add(reinterpret_cast<std::uintptr_t>(key.links.get()));
  hash.add(std::uint64_t{key.free} << 32 | key.count);
  return hash.value();
}

LinkedSet LinkChooser::choose(const std::shared_ptr<const NodeLinks>& links, GpuSet free, unsigned count) {
  const Key key{links, free, count};
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  if (known_.size() == kMaxRemembered) known_.clear();
  return known_.emplace(key, choose_linked(*links, free, count)).first->second;
}

}  // namespace gpulet::scheduler

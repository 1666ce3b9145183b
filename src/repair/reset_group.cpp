#include "repair/reset_group.h"

#include <algorithm>
#include <set>

namespace gpulet::repair {
namespace {

using inventory::Gpu;
using inventory::NvLinkRemote;
using inventory::Snapshot;

constexpr unsigned kAmpere = 8, kHopper = 9;  // major numbers of the compute capability

bool has_link(const Gpu& gpu, NvLinkRemote kind) {
  return std::ranges::any_of(gpu.nvlinks, [&](const auto& link) { return link.kind == kind; });
}

bool is_on_switch(const Gpu& gpu) { return gpu.fabric || has_link(gpu, NvLinkRemote::kSwitch); }

class LinkGraph {
 public:
  LinkGraph(const Snapshot& snapshot, const std::map<DeviceUuid, unsigned>& known_links)
      : snapshot_(snapshot), known_links_(known_links) {}

  bool has_links(const Gpu& gpu) const { return !gpu.nvlinks.empty() || gpu.fabric || known_count(gpu) != 0; }

  // With `gpu` itself.
  std::set<std::size_t> reachable_from(std::size_t gpu) const {
    std::set<std::size_t> found = {gpu};
    std::vector<std::size_t> left = {gpu};
    while (!left.empty()) {
      const auto at = left.back();
      left.pop_back();
      for (std::size_t other = 0; other < snapshot_.gpus.size(); ++other) {
        if (are_joined(at, other) && found.insert(other).second) left.push_back(other);
      }
    }
    return found;
  }

 private:
  unsigned known_count(const Gpu& gpu) const {
    const auto found = known_links_.find(gpu.uuid);
    return found == known_links_.end() ? 0 : found->second;
  }
  // A link that is down, or a GPU that does not answer: where its links lead is not known.
  bool is_uncertain(const Gpu& gpu) const {
    return gpu.unreadable || gpu.not_read.contains(inventory::GpuValue::kNvLinks) ||
           known_count(gpu) > gpu.nvlinks.size();
  }
  bool may_have_links(const Gpu& gpu) const { return has_links(gpu) || is_uncertain(gpu); }
  static bool links_to(const Gpu& from, const Gpu& to) {
    return std::ranges::any_of(from.nvlinks, [&](const auto& link) {
      return link.kind == NvLinkRemote::kGpu && link.remote == to.pci;
    });
  }
  bool are_joined(std::size_t a, std::size_t b) const {
    const Gpu &one = snapshot_.gpus[a], &other = snapshot_.gpus[b];
    if (links_to(one, other) || links_to(other, one)) return true;
    if (is_on_switch(one) && is_on_switch(other)) return true;
    return (is_uncertain(one) || is_uncertain(other)) && may_have_links(one) && may_have_links(other);
  }

  const Snapshot& snapshot_;
  const std::map<DeviceUuid, unsigned>& known_links_;
};

}  // namespace

ResetGroup find_reset_group(const Snapshot& snapshot, const DeviceUuid& gpu, bool with_partners,
                            const std::map<DeviceUuid, unsigned>& known_links) {
  const auto found = std::ranges::find(snapshot.gpus, gpu, &Gpu::uuid);
  if (found == snapshot.gpus.end()) return {};
  const LinkGraph graph(snapshot, known_links);
  ResetGroup group{{gpu}, {}};
  if (!graph.has_links(*found)) return group;
  if (with_partners) {
    group.reason = "an NVLink or NVSwitch failed";
  } else if (found->compute_major < kAmpere) {
    group.reason = "GPUs before Ampere are reset with all that their NVLinks reach";
  } else if (found->compute_major < kHopper && is_on_switch(*found)) {
    group.reason = "GPUs before Hopper are reset with all of their NVSwitches";
  } else {
    return group;
  }
  group.gpus.clear();
  for (const auto index : graph.reachable_from(static_cast<std::size_t>(found - snapshot.gpus.begin())))
    group.gpus.push_back(snapshot.gpus[index].uuid);
  if (group.gpus.size() == 1) group.reason.clear();
  return group;
}

}  // namespace gpulet::repair

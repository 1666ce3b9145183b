#include "web/watchers.h"

#include <vector>

namespace gpulet::web {

Subscription Watchers::join(Tell tell, std::size_t most) {
  if (watchers_.size() >= most) return {};
  const std::uint64_t id = next_++;
  watchers_.emplace(id, std::move(tell));
  if (on_count) on_count();
  return Subscription([this, id] {
    watchers_.erase(id);
    if (on_count) on_count();
  });
}

void Watchers::tell(const SharedText& text) {
  std::vector<std::uint64_t> ids;
  ids.reserve(watchers_.size());
  for (const auto& [id, told] : watchers_) ids.push_back(id);
  for (const std::uint64_t id : ids) {
    // One that was told may have left, and taken its function with it.
    if (const auto found = watchers_.find(id); found != watchers_.end()) Tell(found->second)(text);
  }
}

}  // namespace gpulet::web

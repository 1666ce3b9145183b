// Who is told of each change as it comes: the connections that asked for /api/events. Their number is
// bounded; what each has not taken yet is its connection's business (connection.h). One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "base/loop.h"
#include "web/document.h"

namespace gpulet::web {

class Watchers {
 public:
  using Tell = std::function<void(const SharedText&)>;

  // Calls `tell` with each text from now on, until the Subscription is gone, also when that happens inside a
  // call. Empty where there are `most` already. This object must live longer.
  Subscription join(Tell tell, std::size_t most);
  void tell(const SharedText& text);
  std::size_t count() const { return watchers_.size(); }

  // Called after the number changed; set before the first joins.
  std::function<void()> on_count;

 private:
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, Tell> watchers_;
};

}  // namespace gpulet::web

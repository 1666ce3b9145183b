// What the kubelet has asked of each resource, counted.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "base/strong.h"

namespace gpulet::kubelet {

struct CallCount {
  std::uint64_t answered = 0, refused = 0;
  std::chrono::nanoseconds time{};  // from the request to the answer's being ready
  friend bool operator==(const CallCount&, const CallCount&) = default;
};

struct ResourceCalls {
  std::map<std::string_view, CallCount> calls;  // by the API's name: "Allocate", "GetPreferredAllocation", …
  std::optional<std::int64_t> score;            // placement::Choice::score of the last preferred allocation
};

}  // namespace gpulet::kubelet

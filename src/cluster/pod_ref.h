// The very Pod, and not another of its name.
#pragma once

#include <compare>
#include <string>

namespace gpulet::cluster {

struct PodRef {
  std::string name_space, name, uid;
  friend auto operator<=>(const PodRef&, const PodRef&) = default;
};

}  // namespace gpulet::cluster

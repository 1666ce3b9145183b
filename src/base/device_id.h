// The ids by which the kubelet knows devices: the UUID of a GPU or MIG device, and UUID::N for a share of it
// (a replica by time-slicing or MPS). As NVIDIA's device plugin names them, so that Pods stay across a
// switch.
#pragma once

#include <string>
#include <string_view>

#include "base/types.h"

namespace gpulet {

inline constexpr std::string_view kShareSeparator = "::";

// "GPU-…" of "GPU-…::3" and of "GPU-…".
constexpr std::string_view without_share(std::string_view id) {
  return id.substr(0, id.find(kShareSeparator));
}

inline DeviceUuid uuid_of_device(const DeviceId& id) {
  return DeviceUuid(std::string(without_share(id.str())));
}

// `number`: from 0.
inline DeviceId make_share_id(std::string_view device, unsigned number) {
  return DeviceId(std::string(device).append(kShareSeparator) + std::to_string(number));
}

}  // namespace gpulet

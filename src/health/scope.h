// What a fault is about: a GPU, a GPU instance in it, or a compute instance in that.
#pragma once

#include <compare>
#include <cstdint>

#include "base/strong.h"

namespace gpulet::health {

inline constexpr std::uint32_t kNoInstance = 0xFFFFFFFF;  // outside MIG, as nvmlEventData_t says it

struct Scope {
  DeviceUuid gpu;
  std::uint32_t gpu_instance = kNoInstance;
  std::uint32_t compute_instance = kNoInstance;

  bool whole() const { return gpu_instance == kNoInstance; }
  // Whether what breaks this breaks `other` too.
  bool covers(const Scope& other) const {
    if (gpu != other.gpu) return false;
    if (gpu_instance == kNoInstance) return true;
    if (gpu_instance != other.gpu_instance) return false;
    return compute_instance == kNoInstance || compute_instance == other.compute_instance;
  }
  friend auto operator<=>(const Scope&, const Scope&) = default;
};

// A compute instance without its GPU instance says nothing of where: the whole GPU, then.
inline Scope normal(Scope scope) {
  if (scope.gpu_instance == kNoInstance) scope.compute_instance = kNoInstance;
  return scope;
}

}  // namespace gpulet::health

// What is remembered of the node's GPUs beyond this process: state_file.h reads and writes it, the Machine
// makes and takes it. Readings are not in it: they are taken anew.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "health/rules.h"
#include "health/scope.h"

namespace gpulet::health {

struct SavedFault {
  FaultClass fault_class = FaultClass::kXidUnknown;
  std::uint64_t code = 0;
  std::uint32_t gpu_instance = kNoInstance, compute_instance = kNoInstance;
  WallTime opened{}, last_seen{};  // whole milliseconds
  std::uint64_t count = 1;
  bool linked = false;
  std::string detail;  // one line
  friend bool operator==(const SavedFault&, const SavedFault&) = default;
};
struct SavedGpu {
  DeviceUuid uuid;
  std::string slot;  // its PCI address in sysfs' form, or empty
  unsigned relapses = 0;
  std::optional<WallTime> recovered;  // when it was last offered again
  std::vector<SavedFault> faults;
  friend bool operator==(const SavedGpu&, const SavedGpu&) = default;
};
struct Saved {
  std::string boot_id;  // /proc/sys/kernel/random/boot_id
  std::vector<SavedGpu> gpus;
  friend bool operator==(const Saved&, const Saved&) = default;
};

}  // namespace gpulet::health

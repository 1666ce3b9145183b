// Judging devices: which are fit for use, from driver events and from what the driver answers. Pure: the
// state is a value, and events and readings come in with their times.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/strong.h"
#include "health/scope.h"
#include "health/xid_filter.h"
#include "inventory/snapshot.h"

namespace gpulet::health {

// One XID event as the driver told it.
struct XidEvent {
  DeviceUuid gpu;
  std::uint64_t xid = 0;
  std::uint32_t gpu_instance = kNoInstance;
  std::uint32_t compute_instance = kNoInstance;
};

// What the driver says of a GPU that was marked: asked by a probe, and the only way back to healthy.
struct Probe {
  DeviceUuid gpu;
  bool answers = false;  // every reading of the probe succeeded
  // NVML field 230; absent where the driver does not know it. 0 is "none".
  std::optional<unsigned> recovery_action;
};

// The marks on a node's devices. A mark stays until a probe proves the GPU healthy: it answers, and the
// driver wants no recovery action for it. Keys are the GPU's UUID and, for MIG, GI and CI.
class Judge {
 public:
  explicit Judge(XidFilter filter) : filter_(std::move(filter)) {}
  void set_filter(XidFilter filter) { filter_ = std::move(filter); }

  // Returns whether the event changed a judgement.
  bool on_xid(const XidEvent& event);
  // Returns whether the probe cleared a mark.
  bool on_probe(const Probe& probe);

  // GPUs that a probe should look at: marked ones, by UUID.
  std::vector<DeviceUuid> to_probe() const;

  // The snapshot with each GPU's and MIG device's Health set: unreadable GPUs and marked ones are unhealthy,
  // and so is every MIG device of an unhealthy GPU.
  inventory::Snapshot judge(inventory::Snapshot snapshot) const;

 private:
  struct Key {
    DeviceUuid gpu;
    std::uint32_t gpu_instance = kNoInstance;
    std::uint32_t compute_instance = kNoInstance;
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  XidFilter filter_;
  std::map<Key, std::string> marks_;  // why
};

}  // namespace gpulet::health

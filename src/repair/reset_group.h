// Which GPUs one `nvidia-smi --gpu-reset` must name, and therefore must all be empty.
//
//     GPU                       links                  reset
//     before Ampere, unknown    any                    with every GPU that its NVLinks reach
//     Ampere (8.x)              to GPUs                alone
//                               to NVSwitches          with every GPU of the switches: alone needs a running
//                                                      fabric manager, which the agent does not see
//     Hopper and later (9.0)    any                    alone
//
// A failed link or switch is an exception: both ends are reset, so all GPUs that the links reach.
// Source: nvidia-smi(1), --gpu-reset (driver 580). Pure: any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/types.h"
#include "inventory/snapshot.h"

namespace gpulet::repair {

struct ResetGroup {
  std::vector<DeviceUuid> gpus;  // with the GPU itself, by index
  std::string reason;            // why more than one; empty for one
  friend bool operator==(const ResetGroup&, const ResetGroup&) = default;
};

// `with_partners`: an NVLink or NVSwitch has failed. `known_links`: the NVLinks of each GPU that have ever
// been up: where more were up than are, the group is every GPU of the node with NVLinks. Empty for a GPU that
// is not in the snapshot.
ResetGroup find_reset_group(const inventory::Snapshot& snapshot, const DeviceUuid& gpu, bool with_partners,
                            const std::map<DeviceUuid, unsigned>& known_links);

}  // namespace gpulet::repair

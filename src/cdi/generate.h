// A CDI document from what is there: the GPUs of a Snapshot, the driver's files, the device nodes. `collect`
// looks at the nodes; `generate` is pure and gives the same bytes for the same input.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cdi/device_files.h"
#include "cdi/driver_files.h"
#include "cdi/hooks.h"
#include "cdi/names.h"
#include "cdi/spec.h"
#include "inventory/snapshot.h"

namespace gpulet::cdi {

// As nvidia-ctk's --mode, without csv (Tegra) and auto.
enum class Mode { kNvml, kGds, kMofed, kGdrcopy, kNvswitch, kImex, kManagement, kWsl };
std::string_view name(Mode mode);
// Errors: kInvalidArgument, kUnsupported for csv.
Result<Mode> parse_mode(std::string_view text);
// The class that devices of this mode have in the agent's specs: "gpu", "imex-channel", "gds", …
std::string_view class_of(Mode mode);

// What a mode's containers need beside the driver's files.
struct Found {
  struct GpuNodes {
    std::optional<DeviceNode> node;
    DeviceFiles::Drm drm;
    // GPU instance and compute instance → their two capabilities.
    std::map<std::pair<unsigned, unsigned>, std::vector<DeviceNode>> mig;
  };
  std::vector<DeviceNode> control;                        // kNvml: for every container
  std::vector<GpuNodes> gpus;                             // kNvml: as Snapshot::gpus
  std::vector<std::pair<unsigned, DeviceNode>> channels;  // kImex
  std::vector<DeviceNode> nodes;                          // all others
  std::vector<FileMount> mounts;                          // kGds
};
// Whether a MIG device can draw, by its profile's attribute ("1g.24gb+gfx"): it gets its GPU's /dev/dri
// nodes.
bool has_graphics(const inventory::MigDevice& mig);
Found collect(Mode mode, const Roots& roots, DeviceFiles& files, const inventory::Snapshot& snapshot);

struct GenerateOptions {
  Mode mode = Mode::kNvml;
  std::string vendor = "nvidia.com";
  std::string device_class = "gpu";
  // A device for each; equal names once.
  std::vector<NameStrategy> names = {NameStrategy::kIndex, NameStrategy::kUuid};
  // "all", "none", GPUs and MIG devices by any of their names, IMEX channels as "3" or "channel3".
  std::vector<std::string> device_ids = {"all"};
  bool all_device = true;  // also a device `all`, which is all of them
  HookOptions hooks = {};
  // Where a node is for its group alone (/dev/dri): the container's process joins the group. It needs CDI
  // 0.7.0, which containerd 1.7 and Podman 4 refuse with the whole document; without it an engine makes the
  // node the property of the container's user, which is enough unless that is in a user namespace of its own.
  bool additional_gids = false;
};

struct Generated {
  Spec spec;
  std::vector<std::string> warnings;  // devices that were left out, and why
};

// `driver`: of kNvml, kManagement and kWsl; not looked at otherwise.
// Errors: kNotFound: nothing to offer (no node of this mode's, no GPU of `device_ids`); kInvalidArgument:
// vendor, class or a device id is no name.
Result<Generated> generate(const inventory::Snapshot& snapshot, const DriverFiles& driver, const Found& found,
                           const GenerateOptions& options);

}  // namespace gpulet::cdi

// Generates a CDI document from the GPUs of a Snapshot, the driver's files and the device nodes.
// collect_node_files reads the nodes; generate is pure and returns the same bytes for the same
// input.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cdi/device_files.h"
#include "cdi/driver_files.h"
#include "cdi/spec.h"
#include "inventory/snapshot.h"

namespace gpulet::cdi {

// As nvidia-ctk's --mode, without csv (Tegra) and auto.
enum class Mode { kNvml, kGds, kMofed, kGdrcopy, kNvswitch, kImex, kManagement, kWsl };
std::string_view mode_name(Mode mode);
// Errors: kInvalidArgument, kUnsupported for csv.
Result<Mode> parse_mode(std::string_view text);
// The class of this mode's devices in the agent's specs: "gpu", "imex-channel", "gds", …
std::string_view mode_class(Mode mode);

// Names of GPUs and MIG devices: by index ("0", "0:1"), by uuid, by type and index ("gpu0",
// "mig0:1"). Source: nvidia-ctk's --device-name-strategy.
enum class NameStrategy { kIndex, kUuid, kTypeIndex };
// "index", "uuid", "type-index". Errors: kInvalidArgument.
Result<NameStrategy> parse_name_strategy(std::string_view text);

std::string gpu_name(NameStrategy strategy, const inventory::Gpu& gpu);
std::string mig_name(NameStrategy strategy, const inventory::Gpu& gpu, const inventory::MigDevice& mig);

inline constexpr std::string_view kAllDevices = "all";
inline constexpr std::string_view kNoDevice = "none";

// What a mode's containers need besides the driver's files.
struct NodeFiles {
  struct GpuNodes {
    std::optional<DeviceNode> node;
    DeviceFiles::Drm drm;
    // GPU instance and compute instance → their two capabilities.
    std::map<std::pair<unsigned, unsigned>, std::vector<DeviceNode>> mig;
  };
  std::vector<DeviceNode> control;                        // kNvml: for every container
  std::vector<GpuNodes> gpus;                             // kNvml: in the order of Snapshot::gpus
  std::vector<std::pair<unsigned, DeviceNode>> channels;  // kImex
  std::vector<DeviceNode> nodes;                          // all other modes
  std::vector<FileMount> mounts;                          // kGds
};
// Whether a MIG device supports graphics, by its profile's attribute ("1g.24gb+gfx"): it gets its
// GPU's /dev/dri nodes.
bool has_graphics(const inventory::MigDevice& mig);
NodeFiles collect_node_files(Mode mode, const Roots& roots, DeviceFiles& files,
                             const inventory::Snapshot& snapshot);

// The hooks of a CDI document, for the program that the container engine starts: gpulet-hook, which
// does everything in one process, or NVIDIA's nvidia-cdi-hook or nvidia-ctk with one process per
// hook. Every hook has an environment, because a hook without one inherits the image's
// (CVE-2025-23266). In generate_hooks.cpp.

struct HookOptions {
  // Path on the host. The file name decides: "gpulet-hook", "nvidia-ctk", otherwise as
  // nvidia-cdi-hook.
  std::string path = "/usr/bin/gpulet-hook";
  std::string ldconfig_path = {};  // on the host; empty: the program's own default
  // Names as in nvidia-cdi-hook, or "all"; `enabled` overrides `disabled`. "chmod" is off unless
  // enabled.
  std::set<std::string, std::less<>> disabled = {};
  std::set<std::string, std::less<>> enabled = {};
  // Path on the host of the agent's socket for memory limits. Then a createRuntime hook asks there, and the
  // container starts only with its limits in force; nothing disables it. gpulet-hook only: NVIDIA's programs
  // pass over a hook that they do not know. Empty: no such hook.
  std::string limit_socket = {};
};

// Facts about the host in the hooks' arguments; an empty one is left out.
struct HookHost {
  std::string driver_version;  // "570.124.06"
  std::string cuda_version;    // "12.8"
  std::string arch;            // "9.0", if all GPUs have the same
  std::string brand;           // "tesla", if all GPUs have the same
};

// Errors: kInvalidArgument for `limit_socket` with another program than gpulet-hook, or a relative path.
Status check_hook_options(const HookOptions& options);
// Whether the program of that path is gpulet-hook, by its file name.
bool is_gpulet_hook(std::string_view path);

// Errors: kInvalidArgument unless `name` is a hook, or "all" where allowed.
Status check_hook_name(const std::string& name, bool all_allowed);

// Hooks for every container with a device of the document. `management`: for containers that manage
// GPUs and so create device nodes.
std::vector<HookEdit> common_hooks(const HookOptions& options, const HookHost& host,
                                   const std::vector<Link>& links,
                                   const std::vector<std::string>& directories, bool management);
// Hooks of one device: its links and, if chmod is enabled, the directories of its nodes.
std::vector<HookEdit> device_hooks(const HookOptions& options, const std::vector<Link>& links,
                                   const std::vector<NodeEdit>& nodes);

struct GenerateOptions {
  Mode mode = Mode::kNvml;
  std::string vendor = "nvidia.com";
  std::string device_class = "gpu";
  // A device for each strategy; equal names once.
  std::vector<NameStrategy> names = {NameStrategy::kIndex, NameStrategy::kUuid};
  // "all", "none", GPUs and MIG devices by any of their names, IMEX channels as "3" or "channel3".
  std::vector<std::string> device_ids = {"all"};
  // Also a device `all` with all of them, without GPUs that a rule excludes (Gpu::excluded): these have their
  // own devices only. No such device if all of them are excluded.
  bool all_device = true;
  HookOptions hooks = {};
  // Add the group of nodes that only a group can use (/dev/dri) to the container's process. This
  // needs CDI 0.7.0, with which containerd 1.7 and Podman 4 refuse the whole document. Without it
  // the engine gives the node to the container's user, which is enough unless the container has a
  // user namespace.
  bool additional_gids = false;
};

struct GeneratedSpec {
  Spec spec;
  std::vector<std::string> warnings;  // devices left out, or not in `all`, with the cause
};

// `driver` is used by kNvml, kManagement and kWsl only. Errors: kNotFound if there is nothing to
// offer (no node of this mode, no GPU of `device_ids`); kInvalidArgument if vendor, class or a
// device id is not a valid name, and those of check_hook_options().
Result<GeneratedSpec> generate(const inventory::Snapshot& snapshot, const DriverFiles& driver,
                               const NodeFiles& found, const GenerateOptions& options);

// The documents whose devices the agent's device plugin returns to the kubelet: one for each class
// that the node has, of the kinds
// k8s.device-plugin.nvidia.com/{gpu,gds,mofed,gdrcopy,imex-channel}.
struct NodeSpecOptions {
  std::string vendor = "k8s.device-plugin.nvidia.com";
  NameStrategy names = NameStrategy::kUuid;  // --device-id-strategy
  bool gds = false, mofed = false, gdrcopy = false;
  bool imex = true;  // the existing channels
  HookOptions hooks = {};
  DriverFileOptions driver = {};
  bool additional_gids = false;
};

struct NodeSpecs {
  std::vector<Spec> specs;  // gpu first; without the classes that the node does not have
  std::vector<std::string> warnings;
  // Why there is no GPU document, for example because the driver's files are missing.
  std::optional<Error> no_gpus;
};

// Reads the roots: some 250 system calls. Errors: none; see no_gpus.
NodeSpecs make_node_specs(const Roots& roots, const inventory::Snapshot& snapshot,
                          const NodeSpecOptions& options);

// Applies one of --cdi-feature-flags (NVIDIA's and `additional-gids-for-device-nodes`). Errors:
// kInvalidArgument for an unknown one.
Status apply_feature_flag(const std::string& flag, DriverFileOptions& driver, bool& additional_gids);

}  // namespace gpulet::cdi

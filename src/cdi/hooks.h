// The hooks of a CDI document, for the program that the container engine starts: gpulet-hook, which
// does everything in one process, or NVIDIA's nvidia-cdi-hook or nvidia-ctk with one process per
// hook. Every hook has an environment, because a hook without one inherits the image's
// (CVE-2025-23266).
#pragma once

#include <set>
#include <string>
#include <vector>

#include "cdi/driver_files.h"
#include "cdi/spec.h"

namespace gpulet::cdi {

struct HookOptions {
  // Path on the host. The file name decides: "gpulet-hook", "nvidia-ctk", otherwise as
  // nvidia-cdi-hook.
  std::string path = "/usr/bin/gpulet-hook";
  std::string ldconfig_path = {};  // on the host; empty: the program's own default
  // Names as in nvidia-cdi-hook, or "all"; `enabled` overrides `disabled`. "chmod" is off unless
  // enabled.
  std::set<std::string, std::less<>> disabled = {};
  std::set<std::string, std::less<>> enabled = {};
};

// Facts about the host in the hooks' arguments; an empty one is left out.
struct HookHost {
  std::string driver_version;  // "570.124.06"
  std::string cuda_version;    // "12.8"
  std::string arch;            // "9.0", if all GPUs have the same
  std::string brand;           // "tesla", if all GPUs have the same
};

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

}  // namespace gpulet::cdi

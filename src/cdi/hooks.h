// The hooks of a CDI document, for the program that the container engine is to start: gpulet-hook, which does
// all in one process, or NVIDIA's nvidia-cdi-hook or nvidia-ctk with one process for each. Every hook has an
// environment of its own: one without any is started with the image's (CVE-2025-23266).
#pragma once

#include <set>
#include <string>
#include <vector>

#include "cdi/driver_files.h"
#include "cdi/spec.h"

namespace gpulet::cdi {

struct HookOptions {
  // On the host. Its name decides: "gpulet-hook", "nvidia-ctk", else as nvidia-cdi-hook.
  std::string path = "/usr/bin/gpulet-hook";
  std::string ldconfig_path = {};  // on the host; empty: the program's own default
  // Names as of nvidia-cdi-hook, or "all"; `enabled` wins over `disabled`. "chmod" is off unless enabled.
  std::set<std::string, std::less<>> disabled = {};
  std::set<std::string, std::less<>> enabled = {};
};

// What hooks are told of the host; empty: not told.
struct HookHost {
  std::string driver_version;  // "570.124.06"
  std::string cuda_version;    // "12.8"
  std::string arch;            // "9.0", where all GPUs have the same
  std::string brand;           // "tesla", likewise
};

// The names that may be disabled; kUnknown for a misspelt one: Errors: kInvalidArgument.
Status check_hook_name(const std::string& name, bool all_allowed);

// Of the document: for every container. `management`: for who manages GPUs and so makes device nodes.
std::vector<HookEdit> common_hooks(const HookOptions& options, const HookHost& host,
                                   const std::vector<Link>& links, const std::vector<std::string>& folders,
                                   bool management);
// Of one device: its links, and, where chmod is enabled, the folders of its nodes.
std::vector<HookEdit> device_hooks(const HookOptions& options, const std::vector<Link>& links,
                                   const std::vector<NodeEdit>& nodes);

}  // namespace gpulet::cdi

// containerd's CDI settings: a drop-in of gpulet and one entry in the main file's `imports`.
//
// How containerd behaves, from its source and its `config dump` (1.7.27, 2.0.5, 2.3.6):
//  - It reads the main file, its imports, then their imports; each file once.
//  - 1.x: a file with any key of a plugin replaces all earlier keys of that plugin (containerd #5837). A
//    drop-in that only enabled CDI would drop the node's cgroup driver, registries and runtimes. gpulet's
//    drop-in therefore repeats the tables of the previous file, and must be renewed when that changes.
//  - 2.x: tables are merged; the value read last wins, also for lists (#9982).
//  - A file without `version` has version 1 with short plugin names for 1.x, the newest names for 2.3. 1.x
//    applies the highest version of all files to all of them, and 2.0 to 2.2 do not convert a 2 beside a 3:
//    the drop-in uses the main file's version.
//  - 1.x skips a byte order mark, 2.3 refuses the file.
//  - The plugin is io.containerd.grpc.v1.cri in version 2, io.containerd.cri.v1.runtime in 3 and 4.
#pragma once

#include <vector>

#include "base/result.h"
#include "runtimes/engine.h"

namespace gpulet::runtimes::containerd {

// Plans to turn CDI on with both spec directories. The plan is empty if CDI is on without a drop-in. Errors:
// kInvalidArgument about FILE:LINE for a file that containerd would reject and for config version 1 or an
// unknown one; kUnsupported for an older containerd; kFailedPrecondition if the CRI plugin is disabled, if a
// foreign file is at the drop-in's path, or if a later file overrides the drop-in.
Result<Plan> plan_setup(const Target& target, const Reader& reader);

// Plans to undo plan_setup: keeps all other bytes of the main file, or removes it if gpulet created it.
Result<Plan> plan_removal(const Target& target, const Reader& reader);

// Errors: those of plan_setup for files that cannot be parsed.
Result<std::vector<Finding>> collect_findings(const Target& target, const Reader& reader);

}  // namespace gpulet::runtimes::containerd

// containerd's CDI settings: a drop-in of our own and one entry in the main file's `imports`.
//
// What containerd does, read in its source and seen in its `config dump` (1.7.27, 2.0.5, 2.3.6):
//  - It reads the main file, then what that imports, then what those import; a file is read once.
//  - 1.x: a file that says anything of a plugin replaces all that was said of it before (containerd #5837).
//    A drop-in that only turned CDI on would so undo the node's cgroup driver, registries and runtimes.
//    Ours repeats the tables of the file that counted before, and must be renewed when that one changes.
//  - 2.x: tables are merged; of a value that is there twice the one read last counts, lists too (#9982).
//  - A file without a `version` is one of version 1 with short plugin names. 1.x takes the highest version of
//    all files for all of them, 2.0 to 2.2 do not convert a 2 beside a 3: ours has the main file's version.
//  - Version 2 calls the plugin io.containerd.grpc.v1.cri, 3 and 4 io.containerd.cri.v1.runtime.
#pragma once

#include <vector>

#include "runtimes/engine.h"

namespace gpulet::runtimes::containerd {

// What turns CDI on, with both spec folders. Nothing when it is so already and we never changed anything.
// Errors: kInvalidArgument about FILE:LINE for a file that containerd would refuse, a config version that is
// not known or is 1; kUnsupported for an older containerd; kFailedPrecondition when the CRI plugin is
// disabled, when our drop-in's place holds another's file, or when a file read after ours undoes it.
Result<Plan> configure(const Target& target, const Reader& reader);

// What takes back all that configure did: the main file's other bytes stay, and it goes when it was ours.
Result<Plan> remove(const Target& target, const Reader& reader);

// Errors: as of configure, for files that cannot be understood.
Result<std::vector<Finding>> judge(const Target& target, const Reader& reader);

}  // namespace gpulet::runtimes::containerd

// The check of memory limits on shared GPUs: their grade (fraction/limit_grade.h), and each cause why the
// driver does not hold them. read_limit_host() reads files; the rest is pure.
//
// Sources: open-gpu-kernel-modules 615.71.09 (backends dmem and misc, RmMemacctMode), read, not run; Linux,
// Documentation/admin-guide/cgroup-v2.rst.
#pragma once

#include <string>
#include <vector>

#include "doctor/checks.h"
#include "doctor/host_files.h"

namespace gpulet::doctor {

// Missing files are facts: without cgroup v2 there is no cgroup.controllers.
LimitHost read_limit_host(const HostTrees& trees);

// Why the driver cannot hold a limit on this node, each with what to do, one line each. What could not be
// read is no cause.
std::vector<std::string> driver_limit_causes(const Facts& facts);

}  // namespace gpulet::doctor

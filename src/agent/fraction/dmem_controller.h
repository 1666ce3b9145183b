// The kernel's controller dmem, on which the driver counts a GPU's memory where both have it. Only there a
// limit counts for all cgroups below it; the driver's own accounting takes the nearest one instead.
//
// The root of cgroup v2 lists what the kernel counts, a region for each GPU of the driver; without the
// region, the accounting is another one. Sources: cgroup-v2.rst, "Controllers" and "DMEM"; open-gpu-kernel-
// modules 615.71.09 (the region's name; read, not run).
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "inventory/snapshot.h"

namespace gpulet::agent {

// Whether the text of dmem.capacity, "nvidia/0000:41:00.0/vidmem 85197848576" on a line, has the GPU. Pure.
bool counts_gpu_memory(std::string_view capacity, const inventory::PciAddress& gpu);

// The directory of cgroup v2 whose root has dmem.capacity: `mount`, or "unified" below it; empty: none.
std::string find_dmem_mount(const std::string& mount = "/sys/fs/cgroup");
// The same for the files of that directory, which may be empty: then no GPU is counted.
bool is_counted_by_dmem(const std::string& dmem_mount, const inventory::PciAddress& gpu);

// Gives a cgroup the controller, by cgroup.subtree_control of each ancestor, the root first: of the container
// runtimes, runc does so and crun does not. A few file operations; none is written where the cgroup has it.
// Errors: kInvalidArgument for a cgroup that is not below the mount; kIo, kPermissionDenied and others with
// the file that refuses it.
Status enable_dmem(const std::string& dmem_mount, const std::string& cgroup);

}  // namespace gpulet::agent

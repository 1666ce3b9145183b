// The shared memory of MPS clients and servers: a tmpfs below the MPS root, which every container of a
// resource shared by MPS has as its /dev/shm.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace gpulet::mps {

// "size=<half of MemTotal>k" for the tmpfs, from the text of /proc/meminfo. Errors: kInvalidArgument.
Result<std::string> shm_mount_options(std::string_view meminfo);

// Mounts `<root>/shm`, in the place of what is mounted there; makes the folder.
// Errors: kPermissionDenied without CAP_SYS_ADMIN; kIo.
// Source: facts of k8s-device-plugin v0.20.0, cmd/mps-control-daemon/mount.
Status mount_shm(const std::string& root);

// Takes away what is mounted at `<root>/shm`: from new containers, as those that have it keep it. Nothing where
// nothing is.
// Errors: kPermissionDenied without CAP_SYS_ADMIN; kIo.
Status unmount_shm(const std::string& root);

// Whether a file system of its own is mounted there.
bool shm_is_mounted(const std::string& root);

}  // namespace gpulet::mps

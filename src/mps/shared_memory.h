// The shared memory of MPS servers and their clients: one tmpfs below the MPS root for the /dev/shm of every
// container of a resource that is shared by MPS, and one with a directory for that of each claim.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace gpulet::mps {

// The tmpfs option "size=<half of MemTotal>k", from the text of /proc/meminfo.
// Errors: kInvalidArgument.
Result<std::string> shm_mount_options(std::string_view meminfo);

// Mounts a tmpfs at `directory` (shm_directory(), claim_shm_directory()), replacing an existing mount;
// creates the directory. Errors: kPermissionDenied without CAP_SYS_ADMIN; kIo. Source: k8s-device-plugin
// v0.20.0, cmd/mps-control-daemon/mount.
Status mount_shm(const std::string& directory);

// Unmounts it if it is mounted. Containers that already have it keep it. Errors: kPermissionDenied without
// CAP_SYS_ADMIN; kIo.
Status unmount_shm(const std::string& directory);

// Whether the directory is on another file system than one above it. False where one is missing.
bool is_other_file_system(const std::string& directory, const std::string& above);
// Whether a separate file system is mounted there.
bool shm_is_mounted(const std::string& directory);

// Makes client_shm_directory() of a claim's daemon, with the mode of /dev/shm; nothing for a daemon of
// resources. Errors: kIo and others of the directory.
Status make_client_shm(const std::string& root, const std::string& name);

}  // namespace gpulet::mps

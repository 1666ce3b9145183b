// Finds the driver's user-space files that a container needs below a driver root: libraries,
// binaries, firmware, configs and sockets as mounts, and the links beside them. It finds what
// nvidia-ctk finds (docs/cdi.md) and also /tmp/nvidia-mps, Debian's nvidia_drv.so and absolute
// links.
//
// Every directory is listed once and names are matched in memory: some 200 system calls for a whole
// driver.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cdi/root.h"

namespace gpulet::cdi {

// `host_path` is the file that the container engine mounts: with the driver root's host path, links
// resolved inside the root. `container_path` is the name by which programs know the file.
struct FileMount {
  std::string host_path;
  std::string container_path;
  bool ipc = false;  // a socket or a directory of sockets: mounted writable and noexec
  friend bool operator==(const FileMount&, const FileMount&) = default;
};

// A symbolic link to create in the container at `link` (absolute), pointing to `target` (absolute,
// or relative to its directory).
struct Link {
  std::string target;
  std::string link;
  friend bool operator==(const Link&, const Link&) = default;
};

// Lists are sorted by container path (links by `link`), without duplicates.
struct DriverFiles {
  std::string version;                         // "570.124.06"
  std::vector<std::string> library_dirs;       // container directories of all libraries: for ldconfig
  std::vector<std::string> cuda_library_dirs;  // of these, the driver's own: for NVIDIA_CTK_LIBCUDA_DIR
  std::vector<FileMount> libraries;            // including X modules
  std::vector<FileMount> binaries;
  std::vector<FileMount> firmware;
  std::vector<FileMount> configs;
  std::vector<FileMount> sockets;
  std::vector<Link> links;
  std::vector<std::string> warnings;  // one line for each optional item that is missing or has a wrong type
};

struct DriverFileOptions {
  // Replaces the known directories and ld.so.cache; paths in the driver root.
  std::vector<std::string> library_search_paths = {};
  // Replaces /etc, /usr/local/share and /usr/share; paths in the driver root.
  std::vector<std::string> config_search_paths = {};
  bool explicit_libraries =
      false;            // feature flag enable-explicit-driver-libraries: loaders of GLVND and OpenCL
  bool sockets = true;  // false: feature flag disable-ipc-discoverer
  std::string kernel_release = {};  // of the firmware directories; empty: from uname
};

// `version_hint` is the version that the loaded driver reports; empty: taken from the name of
// libcuda or libnvidia-ml. Errors: kNotFound if no library of that version is below the root, with
// the version found instead (a driver upgraded on disk while the old module is still loaded).
Result<DriverFiles> find_driver_files(const Roots& roots, const std::string& version_hint,
                                      const DriverFileOptions& options = {});

// GPUDirect Storage: /run/udev and /etc/cufile.json. Call it only if nvidia-fs nodes exist.
std::vector<FileMount> find_gds_files(const Roots& roots);

// WSL 2: the driver store's files and the link /usr/bin/nvidia-smi. `version` stays empty. Errors:
// kNotFound without a driver store.
Result<DriverFiles> find_wsl_files(const Roots& roots);

}  // namespace gpulet::cdi

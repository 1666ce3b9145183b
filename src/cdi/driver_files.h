// The driver's user-space files that a container needs, found below a driver root: libraries, binaries,
// firmware, configs and sockets as mounts, and the links that must stand beside them. What nvidia-ctk finds
// (docs/cdi.md lists it), and what it misses: /tmp/nvidia-mps, Debian's nvidia_drv.so, absolute links.
//
// Every folder is listed once and names are matched in memory. Only what is wanted is looked at: some 200
// system calls for a whole driver.
#pragma once

#include <string>
#include <vector>

#include "cdi/root.h"

namespace gpulet::cdi {

// `host_path` is what the container engine mounts: below the driver root's host path, links resolved inside
// the root. `container_path` is where: the name by which programs know the file.
struct FileMount {
  std::string host_path;
  std::string container_path;
  bool ipc = false;  // a socket or a folder of them: mounted writable and noexec
  friend bool operator==(const FileMount&, const FileMount&) = default;
};

// A symbolic link to be made in the container: `link` (absolute) says `target`, relative to its folder or
// absolute.
struct Link {
  std::string target;
  std::string link;
  friend bool operator==(const Link&, const Link&) = default;
};

// Lists are sorted by container path (links by `link`), without doubles.
struct DriverFiles {
  std::string version;                         // "570.124.06"
  std::vector<std::string> library_dirs;       // container folders of all libraries: for ldconfig
  std::vector<std::string> cuda_library_dirs;  // of these, the driver's own: for NVIDIA_CTK_LIBCUDA_DIR
  std::vector<FileMount> libraries;            // X's modules among them
  std::vector<FileMount> binaries;
  std::vector<FileMount> firmware;
  std::vector<FileMount> configs;
  std::vector<FileMount> sockets;
  std::vector<Link> links;
  std::vector<std::string>
      warnings;  // one line for each optional thing that is missing or not as it should be
};

struct DriverFileOptions {
  // Instead of the known folders and ld.so.cache; paths in the driver root.
  std::vector<std::string> library_search_paths = {};
  // Instead of /etc, /usr/local/share and /usr/share; paths in the driver root.
  std::vector<std::string> config_search_paths = {};
  bool explicit_libraries =
      false;            // feature flag enable-explicit-driver-libraries: GLVND's and OpenCL's loaders
  bool sockets = true;  // false: feature flag disable-ipc-discoverer
  std::string kernel_release = {};  // of the firmware folders; empty: uname's
};

// `version_hint` is what the loaded driver says of itself; empty: taken from the name of libcuda or
// libnvidia-ml. Errors: kNotFound when no library of that version is below the root, with the version that is
// there instead (a driver upgraded on disk whose old module is still loaded).
Result<DriverFiles> find_driver_files(const Roots& roots, const std::string& version_hint,
                                      const DriverFileOptions& options = {});

// GPUDirect Storage: /run/udev and /etc/cufile.json. To be asked for only where nvidia-fs nodes exist.
std::vector<FileMount> find_gds_files(const Roots& roots);

// WSL 2: the driver store's files and the link /usr/bin/nvidia-smi. `version` stays empty.
// Errors: kNotFound when there is no driver store.
Result<DriverFiles> find_wsl_files(const Roots& roots);

}  // namespace gpulet::cdi

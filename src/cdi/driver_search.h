// One search through a driver root, shared by its parts: the request, the directories listed so
// far, and the files found. Only for src/cdi.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/driver_root.h"
#include "cdi/driver_files.h"
#include "cdi/root.h"

namespace gpulet::cdi {

#if defined(__aarch64__)
inline constexpr std::string_view kMachine = "aarch64";
#else
inline constexpr std::string_view kMachine = "x86_64";
#endif

struct DriverSearch {
  DriverSearch(const Roots& all, const DriverFileOptions& file_options)
      : roots(all), root(all.driver), options(file_options), directories(all.driver) {}

  const Roots& roots;
  const Root& root;
  const DriverFileOptions& options;
  DirectoryCache directories;
  DriverFiles found;

  // Library directories in search order; and of these, the ones with a lib*.so.<version>.
  std::vector<const Directory*> library_directories;
  std::vector<const Directory*> driver_directories;
  // Directories with lib/ or lib64/ and bin/ of a driver that is not below / or /usr:
  // "/home/kubernetes/bin/nvidia".
  std::vector<std::string> prefixes;

  void warn(std::string line) { found.warnings.push_back(std::move(line)); }

  // The entry's resolved path in the root if it is a regular file; otherwise adds a warning with
  // its type. Opens nothing for reading.
  std::optional<std::string> find_regular_file(const Directory& directory, std::string_view name);
  // Mounts a regular file of `directory` at `container_path`; false if it is none.
  bool add_mount(std::vector<FileMount>& to, const Directory& directory, std::string_view name,
                 std::string container_path);
  // If the host has a link of this name to a library that is mounted elsewhere (Debian's
  // alternatives), adds the link to the container: X and VDPAU search their own directories, not
  // the loader's cache.
  void link_as_on_host(const Directory& directory, std::string_view name);
};

std::string join_path(std::string_view directory, std::string_view name);
// "libcuda.so.570.124.06" → "libcuda", empty when there is no ".so".
std::string_view library_stem(std::string_view library);

// Chooses the driver's version and the directories of its libraries. Errors: those of
// find_driver_files.
Status choose_library_directories(DriverSearch& search, const std::string& version_hint);

// Finds the driver's libraries and the links beside them.
void find_libraries(DriverSearch& search);

}  // namespace gpulet::cdi

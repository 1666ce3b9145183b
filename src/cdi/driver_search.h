// One search through a driver root, as its parts share it: what was asked, the folders listed so far, and
// what was found. Inside this room only.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cdi/driver_files.h"
#include "cdi/folders.h"

namespace gpulet::cdi {

#if defined(__aarch64__)
inline constexpr std::string_view kTriplet = "aarch64-linux-gnu";
inline constexpr std::string_view kMachine = "aarch64";
#else
inline constexpr std::string_view kTriplet = "x86_64-linux-gnu";
inline constexpr std::string_view kMachine = "x86_64";
#endif

struct Search {
  Search(const Roots& all, const DriverFileOptions& wanted)
      : roots(all), root(all.driver), options(wanted), folders(all.driver) {}

  const Roots& roots;
  const Root& root;
  const DriverFileOptions& options;
  Folders folders;
  DriverFiles found;

  // Where libraries are looked for, in order; and of these, the ones that hold a lib*.so.<version>.
  std::vector<const Folder*> library_folders;
  std::vector<const Folder*> driver_folders;
  // The folders that hold lib/ or lib64/ and bin/ of a driver that is not below / or /usr:
  // "/home/kubernetes/bin/nvidia".
  std::vector<std::string> prefixes;

  void warn(std::string line) { found.warnings.push_back(std::move(line)); }

  // The entry's path in the root with links followed, if that is a regular file; otherwise a warning that
  // says what it is. Nothing is opened for reading.
  std::optional<std::string> regular_file(const Folder& folder, std::string_view name);
  // Mounts a regular file of `folder` at `container_path`; false when it is none.
  bool mount(std::vector<FileMount>& to, const Folder& folder, std::string_view name,
             std::string container_path);
  // Where the host has a link of this name to a library that is mounted elsewhere (Debian's alternatives),
  // one in the container too: X and VDPAU look in folders of their own and not in the loader's cache.
  void link_as_on_host(const Folder& folder, std::string_view name);
};

std::string in_folder(std::string_view folder, std::string_view name);
std::string_view folder_of(std::string_view path);  // "/usr/lib/x" → "/usr/lib", "/x" → "/"
std::string_view name_of(std::string_view path);
// "libcuda.so.570.124.06" → "libcuda", empty when there is no ".so".
std::string_view stem_of(std::string_view library);

// The driver's version and the folders of its libraries. Errors: as find_driver_files.
Status choose_library_folders(Search& search, const std::string& version_hint);

void find_libraries(Search& search);
void find_x_modules(Search& search);
void find_configs(Search& search);
void find_firmware(Search& search);
void find_binaries(Search& search);
void find_sockets(Search& search);

// Sorts every list, and leaves one of several equals.
void put_in_order(DriverFiles& files);

}  // namespace gpulet::cdi

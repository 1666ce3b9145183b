// Rebuilds the ld cache of a container with the host's ldconfig, as nvidia-cdi-hook's update-ldcache does.
//
// ldconfig runs in a sandbox (confinement.h) on the container's files, gets each directory as an argument,
// and writes the cache to a private tmpfs. The hook installs the cache through Rootfs and creates the links
// of the driver's libraries (libcuda.so.1). Nothing else in the container changes, and unchanged files are
// not rewritten.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hook/container.h"
#include "hook/ld_config.h"
#include "hook/rootfs.h"

namespace gpulet::hook {

// musl's equivalent of ld.so.conf: /etc/ld-musl-<arch>.path, the list of directories that its loader
// searches.
//
// Source: musl 1.2 ldso/dynlink.c: entries end in ':' or a newline, the file at the first NUL; without the
// file it is "/lib:/usr/local/lib:/usr/lib". The loader uses the first file of the right name and fails if it
// has another class (a 32-bit library): such directories are not added.

// Returns whether the image has musl's loader.
bool has_musl(const Rootfs& root);

// Prepends those of `directories` that the loader does not search yet. Errors: those of Rootfs.
Status update_musl_path(const Rootfs& root, const std::vector<std::string>& directories);

// Returns the new content, or "" if `now` has all directories. `now`: the file; nullopt if there is none.
// Pure.
std::string with_musl_directories(const std::optional<std::string>& now,
                                  const std::vector<std::string>& directories);

// Lists the driver's directories that the container's configuration lacks. The constant name avoids a second
// file at the next start of the same root; it sorts after 00-compat-gpulet.conf.
inline constexpr std::string_view kLdConfigFile = "/etc/ld.so.conf.d/00-gpulet.conf";
inline constexpr std::string_view kLdCache = "/etc/ld.so.cache";

struct LdcacheOptions {
  std::string ldconfig_path;             // on the host; "<path>.real" is used if it exists
  std::vector<std::string> directories;  // of the driver's libraries, in the container
};

// Errors: those of sealed_ldconfig, read_ld_config and run_confined; kInvalidArgument for a directory that
// ld.so.conf cannot express; kPermissionDenied if a write was refused (read-only root), after all other
// writes.
Status update_ldcache(const Container& container, const LdcacheOptions& options);

// The link of a library's SONAME: `directory`/`name` should point to `target` beside it.
struct LibraryLink {
  std::string directory;
  std::string name;
  std::string target;
  bool operator==(const LibraryLink&) const = default;
};
// Parses the output of `ldconfig -v -X`: a directory line ("/usr/lib: (from …)"), then for each library
// "<tab>libx.so.1 -> libx.so.1.2". Omits libraries whose file name is the SONAME. Pure.
std::vector<LibraryLink> library_links(std::string_view output);

}  // namespace gpulet::hook

// The ld cache of a container, made by the host's ldconfig: what nvidia-cdi-hook's update-ldcache does.
//
// ldconfig looks and does not touch: it runs confined (confinement.h) among the container's files, is told
// each folder by name (ld_conf.h reads the container's configuration), and writes its cache to a tmpfs of its
// own. From there we put it in its place through Rootfs, and make the links by which programs ask for the
// driver's libraries (libcuda.so.1). Nothing else of the container changes, and nothing that already is as it
// should be is written again.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hook/container.h"

namespace gpulet::hook {

// The driver's folders that the container's configuration does not name by itself. Its name is stable, so
// that the next start of the same root adds none, and it comes after 00-compat-gpulet.conf.
inline constexpr std::string_view kLdConfigFile = "/etc/ld.so.conf.d/00-gpulet.conf";
inline constexpr std::string_view kLdCache = "/etc/ld.so.cache";

struct LdcacheOptions {
  std::string ldconfig_path;         // on the host; "<path>.real" is taken where there is one
  std::vector<std::string> folders;  // of the driver's libraries, in the container
};

// Errors: those of sealed_ldconfig, read_ld_config and run_confined; kInvalidArgument for a folder that a
// line of ld.so.conf cannot name; kPermissionDenied when some of it cannot be written (a read-only root),
// after all that could be was.
Status update_ldcache(const Container& container, const LdcacheOptions& options);

// A library by the name that programs ask for: `folder`/`name` should lead to `target` beside it.
struct LibraryLink {
  std::string folder;
  std::string name;
  std::string target;
  bool operator==(const LibraryLink&) const = default;
};
// Pure. From what `ldconfig -v -X` prints: a folder's line ("/usr/lib: (from …)"), then for each library
// "<tab>libx.so.1 -> libx.so.1.2". Those that are their own names are left out.
std::vector<LibraryLink> library_links(std::string_view output);

}  // namespace gpulet::hook

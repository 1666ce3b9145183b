// musl's answer to ld.so.conf: /etc/ld-musl-<arch>.path, the list of folders that its loader searches.
//
// Source: musl 1.2 ldso/dynlink.c: entries end in ':' or a newline; without the file it is
// "/lib:/usr/local/lib:/usr/lib". The first file of the right name is taken, and when it is of another class
// (a 32-bit library), that is the end: such folders are not put in.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hook/rootfs.h"

namespace gpulet::hook {

// Whether the image has musl's loader.
bool has_musl(const Rootfs& root);

// Puts those of `folders` in front that the loader does not search yet. Errors: as Rootfs.
Status update_musl_path(const Rootfs& root, const std::vector<std::string>& folders);

// Pure: the new content, empty when `now` has them all. `now` is empty when there is no file.
std::string with_musl_folders(std::string_view now, const std::vector<std::string>& folders);

}  // namespace gpulet::hook

// The links that the driver's libraries need in a container (libcuda.so → libcuda.so.1, /dev/dri/by-path):
// what nvidia-cdi-hook's create-symlinks does.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hook/container.h"

namespace gpulet::hook {

// `target` is what the link will say, `path` where it stands in the container.
struct Link {
  std::string target;
  std::string path;
};

// "target::path". kInvalidArgument for anything else.
Result<Link> parse_link(std::string_view text);

// Makes every link, in order; one that is there already costs a look. One that may not be made
// (kPermissionDenied) does not keep the others from being made, and is told at the end; any other error ends
// it.
Status make_links(const Container& container, const std::vector<Link>& links);

}  // namespace gpulet::hook

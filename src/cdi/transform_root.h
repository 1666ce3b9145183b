// Rewrites the paths of a document for another root, like nvidia-ctk's `cdi transform root` and its
// library (nvcdi/transform/root), whose rules these are.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "cdi/spec.h"

namespace gpulet::cdi {

// Which paths change: the host's files, or what the container sees.
enum class PathSide { kHost, kContainer };
// "host" or "container". Errors: kInvalidArgument.
Result<PathSide> parse_path_side(std::string_view text);

// Replaces the directory `from` by `to` in every path of that side that is `from` or below it
// ("/run/driver2" is not below "/run/driver"). Host: mounts, nodes (which get a host path if it now
// differs), programs of hooks, and arguments of hooks that run outside the container. Container:
// mounts, nodes, arguments of hooks inside. A hook's ldconfig is the host's wherever the hook runs.
// Raises the version if the document needs it. Errors: kInvalidArgument if `from` or `to` is not
// absolute.
Status transform_root(Spec& spec, const std::string& from, const std::string& to, PathSide side);

}  // namespace gpulet::cdi

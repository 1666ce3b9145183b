// A document made where the driver's files are below one folder, for where they are below another: as
// nvidia-ctk's `cdi transform root` and its library (nvcdi/transform/root), whose rules these are.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "cdi/spec.h"

namespace gpulet::cdi {

// Whose paths change: those that the host's files have, or those that a container sees.
enum class PathSide { kHost, kContainer };
// "host" or "container". Errors: kInvalidArgument.
Result<PathSide> parse_path_side(std::string_view text);

// Replaces the folder `from` by `to` in every path of that side that is `from` or below it ("/run/driver" is
// no part of "/run/driver2"). Host: mounts, nodes (which get a host path where it is not their path any
// more), programs of hooks and what a hook that runs outside the container is told. Container: mounts, nodes,
// what a hook inside is told. A hook's ldconfig is the host's wherever the hook runs. Raises the version
// where the document needs that now. Errors: kInvalidArgument: `from` or `to` is not absolute.
Status transform_root(Spec& spec, const std::string& from, const std::string& to, PathSide side);

}  // namespace gpulet::cdi

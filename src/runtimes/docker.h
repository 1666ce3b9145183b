// Docker's daemon.json: features.cdi and cdi-spec-dirs. Docker has no drop-ins, so the file itself is edited,
// and JSON has no comments, so what was changed is kept in a record beside it (daemon.json.gpulet):
// --remove undoes that and nothing else, exactly where nobody else edited since.
//
// Docker 25 has CDI off by default, 28.2 on. cdi-spec-dirs replaces the default folders; [""] means none.
#pragma once

#include <vector>

#include "runtimes/engine.h"

namespace gpulet::runtimes::docker {

// Where the record of our changes is.
std::string record_path(const std::string& config);

// Errors: kUnsupported for an older Docker; kInvalidArgument about FILE:LINE for a file that is no JSON or
// whose members are of another type; kFailedPrecondition when CDI's folders were taken away by hand ([""]).
Result<Plan> configure(const Target& target, const Reader& reader);
Result<Plan> remove(const Target& target, const Reader& reader);
Result<std::vector<Finding>> judge(const Target& target, const Reader& reader);

}  // namespace gpulet::runtimes::docker

// A Pod out of JSON that is parsed already. Internal to this room: callers know request.h and
// extender_json.h.
#pragma once

#include <rapidjson/fwd.h>  // tidy: heavy-header because it is the forward declaration

#include "base/result.h"
#include "scheduler/request.h"

namespace gpulet::scheduler {

// Errors: as parse_pod.
Result<PodRequest> pod_of(const rapidjson::Value& pod);

}  // namespace gpulet::scheduler

// The NVLinks of a GPU in the node page's document (page_json.h), from what the health checks have read.
#pragma once

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "health/report/node_health.h"
#include "inventory/snapshot.h"

namespace gpulet::agent {

// Puts `fabric`, and `nvlinks` if the GPU has links, into its object.
void put_link_status(nlohmann::ordered_json& object, const inventory::Gpu& gpu,
                     const health::DeviceView& view, const inventory::Snapshot& snapshot);

}  // namespace gpulet::agent

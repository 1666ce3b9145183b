// What the metrics show of the claims of this node.
#pragma once

#include <string>

#include "dra/claim_controller.h"
#include "metrics/gpulet_page.h"

namespace gpulet::agent {

metrics::ClaimStats claim_stats(const dra::ClaimController& controller, const std::string& node);

}  // namespace gpulet::agent

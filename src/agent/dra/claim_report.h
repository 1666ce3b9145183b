// What the agent counts and shows of claims, for its pages. Pure.
#pragma once

#include <cstddef>
#include <string>

#include "agent/observe/claim_status.h"
#include "dra/claim_controller.h"
#include "health/report/node_health.h"
#include "metrics/gpulet_page.h"
#include "partition/offer_switch.h"

namespace gpulet::agent {

metrics::ClaimStats claim_stats(const dra::ClaimController& controller, const std::string& node);

// `offered`: devices in the node's ResourceSlices. Times are rounded to seconds, so that an unchanged state
// stays the same.
ClaimStatus claim_status(const partition::OfferSwitch& offers, const dra::ClaimController& controller,
                         std::size_t offered, const health::ClockPair& clock);

}  // namespace gpulet::agent

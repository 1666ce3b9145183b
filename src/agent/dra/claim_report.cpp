#include "agent/dra/claim_report.h"

#include "agent/observe/page_json.h"
#include "dra/device.h"
#include "dra/device_pool.h"

namespace gpulet::agent {
namespace {

metrics::ClaimStats::Operation operation_stats(const dra::OperationCounts& counts, std::size_t in_flight) {
  metrics::ClaimStats::Operation stats{.in_flight = in_flight,
                                       .durations = {counts.durations.begin(), counts.durations.end()},
                                       .time = counts.time};
  for (const auto& [code, count] : counts.errors) stats.errors.emplace(code_name(code), count);
  return stats;
}

}  // namespace

metrics::ClaimStats claim_stats(const dra::ClaimController& controller, const std::string& node) {
  const auto counts = controller.counts();
  metrics::ClaimStats stats{.driver = std::string(dra::kDriverName),
                            .node = node,
                            .duration_bounds = {dra::kDurationBounds.begin(), dra::kDurationBounds.end()},
                            .prepare = operation_stats(counts.prepare, counts.preparing),
                            .unprepare = operation_stats(counts.unprepare, 0),
                            .prepared_claims = controller.records().size(),
                            .prepared_devices = {{"gpu", 0}, {"mig", 0}}};
  for (const auto& [uid, record] : controller.records()) {
    for (const auto& held : record.devices) {
      const bool is_mig = held.partition || held.uuid.str().starts_with("MIG-");
      ++stats.prepared_devices[is_mig ? "mig" : "gpu"];
    }
  }
  return stats;
}

ClaimStatus claim_status(const partition::OfferSwitch& offers, const dra::ClaimController& controller,
                         std::size_t offered, const health::ClockPair& clock) {
  ClaimStatus status{.offered = offered};
  for (const auto& [gpu, offer] : offers.offers()) {
    const auto since = offers.moving_since(gpu);
    if (!since) continue;
    const bool to_claims = offer.stage != partition::OfferStage::kLeavingClaims;
    status.moves.push_back({gpu, to_claims, to_wall_time(*since, clock), offer.reason});
  }
  for (const auto& [claim, since, reason] : controller.unprepared_claims())
    status.waiting.push_back({claim.name_space, claim.name, claim.uid, to_wall_time(since, clock), reason});
  return status;
}

}  // namespace gpulet::agent

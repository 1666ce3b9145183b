#include "agent/observe/claim_status.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

using nlohmann::json;

constexpr const char* kToClaims = "claims";
constexpr const char* kToDevicePlugin = "devicePlugin";

// A time that is missing or beyond the range is the first of all.
WallTime wall_time_of(const json& value) {
  if (!value.is_number_unsigned()) return kFirstWallTime;
  const auto at = value.get<std::uint64_t>();
  const auto most = static_cast<std::uint64_t>(unix_milliseconds(kLastWallTime));
  return at > most ? kFirstWallTime : kFirstWallTime + std::chrono::milliseconds(at);
}

}  // namespace

nlohmann::ordered_json claim_status_json(const ClaimStatus& status) {
  using Json = nlohmann::ordered_json;
  Json moves = Json::array(), waiting = Json::array();
  for (const auto& move : status.moves) {
    moves.push_back({{"gpu", move.gpu.str()},
                     {"to", move.to_claims ? kToClaims : kToDevicePlugin},
                     {"since", unix_milliseconds(move.since)},
                     {"reason", move.reason}});
  }
  for (const auto& claim : status.waiting) {
    waiting.push_back({{"namespace", claim.name_space},
                       {"name", claim.name},
                       {"uid", claim.uid},
                       {"since", unix_milliseconds(claim.since)},
                       {"reason", claim.reason}});
  }
  return {{"offered", status.offered}, {"moves", std::move(moves)}, {"waiting", std::move(waiting)}};
}

ClaimStatus parse_claim_status(const json& node) {
  ClaimStatus status;
  const auto& claims = json_member(node, "claims");
  if (const auto& offered = json_member(claims, "offered"); offered.is_number_unsigned())
    status.offered = offered.get<std::size_t>();
  for (const auto& move : json_member(claims, "moves")) {
    const auto to = json_text(json_member(move, "to"));
    DeviceUuid gpu(json_text(json_member(move, "gpu")));
    if (gpu.empty() || (to != kToClaims && to != kToDevicePlugin)) continue;
    status.moves.push_back({std::move(gpu), to == kToClaims, wall_time_of(json_member(move, "since")),
                            json_text(json_member(move, "reason"))});
  }
  for (const auto& claim : json_member(claims, "waiting")) {
    WaitingClaim read{json_text(json_member(claim, "namespace")), json_text(json_member(claim, "name")),
                      json_text(json_member(claim, "uid")), wall_time_of(json_member(claim, "since")),
                      json_text(json_member(claim, "reason"))};
    if (!read.name.empty()) status.waiting.push_back(std::move(read));
  }
  return status;
}

Result<ClaimStatus> fetch_claim_status(const std::string& socket, Duration limit) {
  GPULET_TRY_ASSIGN(const auto node, fetch_agent_json(socket, "/api/node", limit));
  return parse_claim_status(node);
}

}  // namespace gpulet::agent

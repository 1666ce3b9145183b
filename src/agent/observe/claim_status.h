// What the agent shows of claims beside their devices: GPUs on their move between the device plugin and
// claims, and claims that are not prepared, each with what it waits for. The member "claims" of /api/node
// (agent/observe/page_json.h), absent where claims are not served:
//
//   {"offered": 8,
//    "moves": [{"gpu": "GPU-5a…", "to": "claims" or "devicePlugin", "since": 1760000000000,
//               "reason": "is offered by claims when Pod team/a ends"}],
//    "waiting": [{"namespace": "team", "name": "a", "uid": "…", "since": 1760000000000, "reason": "…"}]}
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "agent/observe/agent_client.h"
#include "base/loop.h"
#include "base/result.h"
#include "base/types.h"

namespace gpulet::agent {

struct GpuMove {
  DeviceUuid gpu;
  bool to_claims = false;  // else to the device plugin
  WallTime since{};
  std::string reason;  // follows the GPU's name: "is offered by claims when Pod team/a ends"
  friend bool operator==(const GpuMove&, const GpuMove&) = default;
};

struct WaitingClaim {
  std::string name_space, name, uid;
  WallTime since{};  // the kubelet's first call without success
  std::string reason;
  friend bool operator==(const WaitingClaim&, const WaitingClaim&) = default;
};

struct ClaimStatus {
  std::size_t offered = 0;              // devices in the node's ResourceSlices, as the API server shows them
  std::vector<GpuMove> moves{};         // by UUID
  std::vector<WaitingClaim> waiting{};  // by uid

  bool is_empty() const { return offered == 0 && moves.empty() && waiting.empty(); }
  friend bool operator==(const ClaimStatus&, const ClaimStatus&) = default;
};

nlohmann::ordered_json claim_status_json(const ClaimStatus& status);
// Of /api/node. What is missing or odd is left out. Pure.
ClaimStatus parse_claim_status(const nlohmann::json& node);

// Of /api/node of an agent's socket. Errors: as fetch_agent_json().
Result<ClaimStatus> fetch_claim_status(const std::string& socket, Duration limit);

}  // namespace gpulet::agent

// The two sockets of a node's claims: where they are prepared, and where the kubelet finds that one. An agent
// in a Pod has names of its own (POD_UID), so that two agents of a node do not remove each other's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "agent/node/node.h"
#include "base/result.h"
#include "dra/claim_services.h"
#include "dra/served_socket.h"

namespace gpulet::agent {

// Whether the agent is to serve claims, also without gpulet.dra.enabled while claims are prepared: they are
// unprepared, and keep their GPUs.
bool wants_claims(const Node& node);
// Whether its sockets may be beside those of another agent.
bool has_own_sockets(const Node& node);
dra::PluginIdentity claim_identity(const Node& node);

// Loop's thread only.
class ClaimSockets {
 public:
  // Removes those of killed agents. Errors: those of ServedSocket::open_socket.
  static Result<std::unique_ptr<ClaimSockets>> open_sockets(Node& node);
  ~ClaimSockets();
  ClaimSockets(const ClaimSockets&) = delete;

 private:
  ClaimSockets() = default;
  std::vector<std::unique_ptr<dra::ServedSocket>> sockets_;
};

}  // namespace gpulet::agent

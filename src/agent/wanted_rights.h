// Which rights of the API server a configuration needs, and what does not happen without each. Pure: the one
// place that docs/SECURITY.md and the manifests' roles are held to.
#pragma once

#include <string>
#include <vector>

#include "cluster/access.h"
#include "cluster/rights.h"
#include "config/config.h"

namespace gpulet::agent {

struct WantedRight {
  cluster::Right right;
  std::string without;  // "the condition GpuHealthy is not written"
  friend bool operator==(const WantedRight&, const WantedRight&) = default;
};

// Each right once. Of the node's own objects the right to those alone. `in_pod`: the agent is replaced as
// Pods are, and says before it goes that it does (cluster/node_leaving.h).
std::vector<WantedRight> wanted_rights(const config::Config& config, const cluster::Access& access,
                                       bool in_pod);

}  // namespace gpulet::agent

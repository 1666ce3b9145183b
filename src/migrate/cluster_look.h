// Looks at a cluster through its API server: DaemonSets and Deployments, the ConfigMaps that NVIDIA's
// programs of those read, ClusterPolicies, nodes, and the Secret in which Helm keeps a release of theirs.
// Only reads.
//
// Needs list on daemonsets.apps. With list on deployments.apps, clusterpolicies.nvidia.com and nodes, get on
// configmaps and list on secrets (of the releases' namespaces) it sees more; what is refused is said.
#pragma once

#include "base/loop.h"
#include "base/result.h"
#include "cluster/access.h"
#include "migrate/facts.h"

namespace gpulet::migrate {

inline constexpr std::size_t kMostObjectBytes = 4u << 20;  // of one object
inline constexpr std::size_t kMostPages = 200;             // of a list, of 250 objects each

// Blocks until all is read. `limit` is for one question. Errors: those of the API server about DaemonSets;
// kPermissionDenied, kUnavailable, kDeadlineExceeded.
Result<Facts> look_at_cluster(const cluster::Access& access, Duration limit = std::chrono::seconds(30));

}  // namespace gpulet::migrate

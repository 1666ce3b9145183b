// Scans for NVIDIA's programs, in a cluster or on a node. Read-only; the only part of migrate that sees
// either.
#pragma once

#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "k8s/client_config.h"
#include "migrate/facts.h"

namespace gpulet::migrate {

// Scans a cluster through its API server: DaemonSets and Deployments, the ConfigMaps that NVIDIA's programs
// in them read, ClusterPolicies, nodes, and the Secrets of their Helm releases. Read-only.
//
// Needs list on daemonsets.apps. With list on deployments.apps, clusterpolicies.nvidia.com and nodes, get on
// configmaps and list on secrets (in the releases' namespaces) it finds more; what is denied is reported.

inline constexpr std::size_t kMaxObjectBytes = 4u << 20;  // per object
inline constexpr std::size_t kMaxListPages = 200;         // per list, of 250 objects each

// Blocks until everything is read. `limit` applies to each request. Errors: those of the API server for
// DaemonSets; kPermissionDenied, kUnavailable, kDeadlineExceeded.
Result<Facts> scan_cluster(const k8s::ClientConfig& access, Duration limit = std::chrono::seconds(30));

// Scans a node below a root: processes, sockets, files and container engines. Read-only. Files in a
// container's root are resolved inside it, so that no link leads out.
//
// Reading the variables and files of other users' processes needs root; what cannot be read is reported.

// `root`: where the node's "/" is mounted. Errors: kNotFound, kPermissionDenied.
Result<Facts> scan_node(const std::string& root);

}  // namespace gpulet::migrate

// Scans for NVIDIA's programs, in a cluster or on a node. Read-only; scan.cpp is the only part of migrate
// that sees either. What it reads of a cluster is parsed in scan_objects.cpp.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// Blocks until everything is read. `limit` applies to each request. Errors: those of the API server for
// DaemonSets; kPermissionDenied, kUnavailable, kDeadlineExceeded.
Result<Facts> scan_cluster(const k8s::ClientConfig& access, Duration limit = std::chrono::seconds(30));

// Scans a node below a root: processes, sockets, files and container engines. Read-only. Files in a
// container's root are resolved inside it, so that no link leads out.
//
// Reading the variables and files of other users' processes needs root; what cannot be read is reported.

// `root`: where the node's "/" is mounted. Errors: kNotFound, kPermissionDenied.
Result<Facts> scan_node(const std::string& root);

// Turns objects of the API server into facts. Objects of another kind, or without NVIDIA's programs, give
// nothing. Pure. Source: Kubernetes API apps/v1, v1; nvidia.com/v1 ClusterPolicy; Helm's labels and
// annotations (helm.sh/chart, meta.helm.sh/release-name).

// The containers of a DaemonSet or Deployment (`kind`) that run a known component.
std::vector<Program> parse_workload(std::string_view object, const std::string& kind);

std::optional<ClusterPolicy> parse_cluster_policy(std::string_view object);

// A node with relevant labels or with GPUs.
std::optional<NodeFacts> parse_node(std::string_view object);

// A ConfigMap's data by key.
std::map<std::string, std::string> config_map_data(std::string_view object);

// Adds the content of a ConfigMap to the configs or counters of each program that reads it.
void attach_config_map(std::vector<Program>& programs, const ConfigMapRef& map,
                       const std::map<std::string, std::string>& data);

// Reads the values of a Helm release of NVIDIA's charts from its Secret. Any other value may be a password,
// so only its name is kept. Source: Helm 3, pkg/storage/driver (base64 of gzip of JSON, in a Secret's
// base64).

// Limit of an unpacked release.
inline constexpr std::size_t kMaxReleaseBytes = 32u << 20;

// `secret`: the object from the API server. Errors: kInvalidArgument for anything that is not a release or
// is too large; the message has none of its content.
Result<HelmRelease> parse_helm_release(std::string_view secret);

}  // namespace gpulet::migrate

// Where the API server is and who we are, as Kubernetes tells a container: two environment variables, the
// service account's folder, and the node's name from the Pod's own manifest.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/result.h"

namespace gpulet::cluster {

struct Access {
  std::string host;  // a numeric address
  std::uint16_t port = 443;
  std::string ca_file;
  std::string token_file;  // read anew for every request: the kubelet rotates it
  std::string node_name;
  std::string pod_namespace = "default";
};

inline constexpr const char* kServiceAccount = "/var/run/secrets/kubernetes.io/serviceaccount";

// From `environment` (KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT, NODE_NAME) and the folder's ca.crt,
// token and namespace. nullopt outside a cluster: no KUBERNETES_SERVICE_HOST.
// Errors: kFailedPrecondition inside a cluster when something is missing, in words that say what to set;
// kUnsupported when the host is a name: resolving one would hold the loop up.
Result<std::optional<Access>> in_cluster_access(const std::map<std::string, std::string, std::less<>>& environment,
                                                const std::string& service_account = kServiceAccount);

}  // namespace gpulet::cluster

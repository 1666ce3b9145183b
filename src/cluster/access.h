// Where the API server is and who we are: as Kubernetes tells a container (two environment variables, the
// service account's folder, and the node's name from the Pod's own manifest), or as a kubeconfig file says.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/result.h"

namespace gpulet::cluster {

// Who we are, as a program said it: a token, a certificate with its key (PEM), or both.
struct Credential {
  std::string token, certificate, key;
  std::optional<WallTime> expires;
};

struct Access {
  std::string host;  // a numeric address, or a name, which is looked up for every connection
  std::uint16_t port = 443;
  std::string ca_file{};
  std::string token_file{};  // read anew for every request: the kubelet rotates it
  std::string node_name{};
  std::string pod_namespace = "default";

  // What only a kubeconfig says. Each text goes before the file of the same thing; files are read for every
  // connection. Without ca_text and ca_file the authorities are those that the system trusts.
  std::string base_path{};        // before every path, without a slash at its end
  std::string tls_server_name{};  // whom the certificate must be for, where that is not `host`
  std::string ca_text{};          // PEM, as those below
  std::string token{};            // neither token nor token_file: the client's certificate says who we are
  std::string certificate_text{}, certificate_file{};
  std::string key_text{}, key_file{};

  // Where a program says who we are: asked before every request, and goes before token, certificate_text and
  // key_text. May block while the program runs, so only a command that a person starts has it (Programs).
  std::function<Result<Credential>()> credential{};
};

inline constexpr const char* kServiceAccount = "/var/run/secrets/kubernetes.io/serviceaccount";

// Whether it must be known which node this is: for what is no part of a node it need not.
enum class OfNode { kYes, kNo };

// From `environment` (KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT, NODE_NAME) and the folder's ca.crt,
// token and namespace. nullopt outside a cluster: no KUBERNETES_SERVICE_HOST.
// Errors: kFailedPrecondition inside a cluster when something is missing, in words that say what to set.
Result<std::optional<Access>> in_cluster_access(
    const std::map<std::string, std::string, std::less<>>& environment,
    const std::string& service_account = kServiceAccount, OfNode of_node = OfNode::kYes);

// Whether a kubeconfig may name a program that says who we are (`exec`). Whoever writes the file then runs
// what he likes with our rights, so it is for a command that a person starts with a file of his own, as
// kubectl: no service allows it.
struct Programs {
  bool allowed = false;
  std::map<std::string, std::string, std::less<>> environment{};  // theirs; its PATH finds them
  Duration limit = std::chrono::seconds(30);                      // of one run that asks nobody anything
};

// From the current context of a kubeconfig file, with its paths taken from the file's own folder; `node_name`
// is not in it and stays empty. Server, authority, token and client certificate, each as data or as a file,
// and, where `programs` allows it, `exec`, which is not run here (Access::credential); not what would send a
// password (username), nor auth-provider, nor a server without TLS or without a check of its certificate, nor
// a proxy. Errors: those of reading it; kInvalidArgument about "file:line:column"; kUnsupported. Source:
// Kubernetes API client-authentication, kubeconfig v1.
Result<Access> access_from_kubeconfig(const std::string& path, const Programs& programs = {});

// What this process has: in_cluster_access, or else the file that KUBECONFIG names (the first of a list), for
// an agent that is a service of its host. Its node is NODE_NAME, or else the host's name in lower case, as
// the kubelet registers itself. nullopt with neither. Errors: those of the two.
Result<std::optional<Access>> find_access(const std::map<std::string, std::string, std::less<>>& environment,
                                          OfNode of_node = OfNode::kYes);

}  // namespace gpulet::cluster

// How to reach and authenticate to the API server: from a Pod's environment and service account, or from a
// kubeconfig file, with its credential plugins (client_config_exec.cpp). Source: Kubernetes "Authenticating",
// kubeconfig v1.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"

namespace gpulet::k8s {

// What a credential plugin prints: a token, a certificate with its key (PEM), or both.
struct Credential {
  std::string token, certificate, key;
  std::optional<WallTime> expires;
};

struct ClientConfig {
  std::string host;  // a numeric address, or a name, looked up for each connection
  std::uint16_t port = 443;
  std::string ca_file{};
  std::string token_file{};  // read for each request: the kubelet rotates it
  std::string node_name{};
  std::string pod_namespace = "default";

  // From a kubeconfig only. Data takes precedence over the file; files are read for each connection.
  // Without ca_data and ca_file the system's authorities are trusted.
  std::string base_path{};        // before each path, without a trailing slash
  std::string tls_server_name{};  // expected in the server's certificate instead of `host`
  std::string ca_data{};          // PEM, as all below
  std::string token{};            // neither token nor token_file: the client certificate authenticates
  std::string certificate_data{}, certificate_file{};
  std::string key_data{}, key_file{};

  // A credential plugin: called before each request, takes precedence over token, certificate_data and
  // key_data. May block while the program runs, so only commands that a person starts have it (ExecPolicy).
  std::function<Result<Credential>()> credential{};
};

inline constexpr const char* kServiceAccountDirectory = "/var/run/secrets/kubernetes.io/serviceaccount";

// Whether the node's name must be known; programs that are not part of a node do not need it.
enum class NodeNamePolicy { kRequired, kOptional };

// From `environment` (KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT, NODE_NAME) and the directory's
// ca.crt, token and namespace. nullopt outside a cluster: no KUBERNETES_SERVICE_HOST. Errors:
// kFailedPrecondition when something is missing inside a cluster, with what to set.
Result<std::optional<ClientConfig>> load_in_cluster_config(
    const std::map<std::string, std::string, std::less<>>& environment,
    const std::string& service_account = kServiceAccountDirectory,
    NodeNamePolicy of_node = NodeNamePolicy::kRequired);

// Whether a kubeconfig may name a credential plugin (`exec`). The author of the file can then run any
// program with the caller's rights, so only commands that a person starts allow it, as kubectl does;
// services never do.
struct ExecPolicy {
  bool allowed = false;
  std::map<std::string, std::string, std::less<>> environment{};  // of the programs; its PATH finds them
  Duration limit = std::chrono::seconds(30);                      // of one run without a prompt
};

// From `context` of a kubeconfig file, or its current context; relative paths are relative to the file.
// `node_name` stays empty. Supported: server, authorities, token and client certificate, each as data or
// file, and `exec` where `programs` allows it, which is not run here (ClientConfig::credential). Not
// supported: username and password, auth-provider, a server without TLS or without verification, a proxy.
// Errors: those of reading the file; kInvalidArgument about "file:line:column"; kUnsupported.
Result<ClientConfig> load_kubeconfig(const std::string& path, const ExecPolicy& programs = {},
                                     const std::string& context = {});

// As load_kubeconfig, from the paths of `list`, separated by colons, as kubectl merges them: of each context,
// cluster and user the first file with that name counts, whole; current-context is the first that is set.
// Missing files are skipped unless all are; empty paths too. For commands that a person starts, with
// KUBECONFIG's value; a service's list has alternatives (kubeconfig_path). Errors: those of load_kubeconfig,
// about the file, or about all files for what none of them has. Source: Kubernetes "Organizing Cluster Access
// Using kubeconfig Files".
Result<ClientConfig> load_kubeconfigs(const std::string& list, const ExecPolicy& programs = {},
                                      const std::string& context = {});

// The kubeconfig of KUBECONFIG's value, a list of paths separated by colons: the first file that exists, or
// else the first path; empty for an empty list.
std::string kubeconfig_path(const std::string& list);

// load_in_cluster_config, or else the kubeconfig_path of KUBECONFIG, for an agent that is a service of its
// host. The node is NODE_NAME, or the node whose identity the kubeconfig's certificate is (common name
// `system:node:NAME`: a kubelet's own), or else the host's name in lower case, as the kubelet registers
// itself. nullopt with neither. Errors: those of the two. Source: Kubernetes "Using Node Authorization".
Result<std::optional<ClientConfig>> find_client_config(
    const std::map<std::string, std::string, std::less<>>& environment,
    NodeNamePolicy of_node = NodeNamePolicy::kRequired);

// Credential plugins: `users[].user.exec` of a kubeconfig, as cloud clusters use it. A plugin runs as under
// client-go: its input is the variable KUBERNETES_EXEC_INFO, its output an ExecCredential on standard
// output.
//
// It runs with the caller's rights and environment, so only commands that a person starts run one
// (ExecPolicy), never a service. Source: Kubernetes "Authenticating", client-go credential
// plugins; client.authentication.k8s.io/v1, v1beta1.

struct ExecPlugin {
  enum class Interactive { kNever, kIfAvailable, kAlways };

  std::string source;   // for errors: `/home/me/.kube/config, user "eks"`
  std::string command;  // a path, or a name to find in PATH
  std::vector<std::string> arguments{};
  std::vector<std::pair<std::string, std::string>> environment{};  // added to the caller's, and overrides it
  std::string api_version;                                         // "client.authentication.k8s.io/v1"
  std::string install_hint{};
  Interactive interactive = Interactive::kIfAvailable;
  std::string cluster{};  // spec.cluster as JSON; empty: not passed on
};

inline constexpr const char* kExecVersions[] = {"client.authentication.k8s.io/v1",
                                                "client.authentication.k8s.io/v1beta1"};
inline constexpr std::size_t kMaxExecOutputBytes = 1u << 20;
// For a plugin that may prompt a person to log in.
inline constexpr Duration kExecLimitAtTerminal = std::chrono::minutes(5);

// Runs the plugin and waits for its end, at most `programs.limit`, then kills it. If it may use standard
// input and that is a terminal, the limit is kExecLimitAtTerminal, and its standard error is also copied to
// the caller's. Blocks. Errors, one line each, about the plugin's `source`, never with its output:
// kNotFound for a missing program, kPermissionDenied and others of starting it, kUnavailable when it fails
// (exit code and first line of standard error), kDeadlineExceeded, kInvalidArgument for invalid output,
// kFailedPrecondition when it needs a terminal and there is none.
Result<Credential> run_exec_plugin(const ExecPlugin& plugin, const ExecPolicy& programs);

// Parses a plugin's output. `version` is the apiVersion in the kubeconfig. Errors: kInvalidArgument.
Result<Credential> parse_exec_credential(const std::string& answer, const std::string& version);

// For ClientConfig::credential: runs the plugin at the first call, and again when the credential has
// expired.
std::function<Result<Credential>()> cache_exec_credential(ExecPlugin plugin, ExecPolicy programs);

}  // namespace gpulet::k8s

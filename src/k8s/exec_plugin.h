// Credential plugins: `users[].user.exec` of a kubeconfig, as cloud clusters use it. A plugin runs as under
// client-go: its input is the variable KUBERNETES_EXEC_INFO, its output an ExecCredential on standard
// output.
//
// It runs with the caller's rights and environment, so only commands that a person starts run one
// (client_config.h, ExecPolicy), never a service. Source: Kubernetes "Authenticating", client-go credential
// plugins; client.authentication.k8s.io/v1, v1beta1.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "k8s/client_config.h"

namespace gpulet::k8s {

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

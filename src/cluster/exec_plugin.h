// A program that says who we are: `users[].user.exec` of a kubeconfig, as the clusters of clouds have it. It
// is run as client-go runs it: asked by KUBERNETES_EXEC_INFO, it answers with an ExecCredential on its
// standard output.
//
// It runs with the caller's rights and environment, so it is for commands that a person starts (access.h,
// Programs), never for what runs as a service.
// Source: Kubernetes "Authenticating", client-go credential plugins; client.authentication.k8s.io/v1,
// v1beta1.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "cluster/access.h"

namespace gpulet::cluster {

struct ExecPlugin {
  enum class Interactive { kNever, kIfAvailable, kAlways };

  std::string about;                     // for errors: `/home/me/.kube/config, user "eks"`
  std::string command;                   // a path, or a name that is looked for in PATH
  std::vector<std::string> arguments{};  // behind its name
  std::vector<std::pair<std::string, std::string>> environment{};  // beside the caller's, and before it
  std::string api_version;                                         // "client.authentication.k8s.io/v1"
  std::string install_hint{};
  Interactive interactive = Interactive::kIfAvailable;
  std::string cluster{};  // spec.cluster as JSON; empty: it is not told
};

inline constexpr const char* kExecVersions[] = {"client.authentication.k8s.io/v1",
                                                "client.authentication.k8s.io/v1beta1"};
inline constexpr std::size_t kMaxExecAnswerBytes = 1u << 20;
// Where it may ask a person something, who needs to read, find a telephone and log in.
inline constexpr Duration kExecLimitAtTerminal = std::chrono::minutes(5);

// Runs it and waits for its end, at most `programs.limit`, or kExecLimitAtTerminal where standard input is a
// terminal and it may use that: then what it writes to standard error goes to ours as well. What runs over is
// killed. Blocks.
// Errors, one line each, about the plugin's `about`, none with what it answered: kNotFound without such a
// program, kPermissionDenied and others of starting it, kUnavailable when it fails (exit code and its first
// line of standard error), kDeadlineExceeded, kInvalidArgument for an answer that is none, kFailedPrecondition
// when it needs a terminal and there is none.
Result<Credential> run_plugin(const ExecPlugin& plugin, const Programs& programs);

// What it answered. `version` is what the kubeconfig asks for. Errors: kInvalidArgument.
Result<Credential> parse_exec_credential(const std::string& answer, const std::string& version);

// For Access::credential: runs it at the first call, and again once what it gave has expired.
std::function<Result<Credential>()> remembered(ExecPlugin plugin, Programs programs);

}  // namespace gpulet::cluster

// Implements `gpulet runtime configure` (set up one engine, or NVIDIA's runtime) and `check` (inspect all
// engines).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtimes/engine.h"
#include "runtimes/host.h"

namespace gpulet::runtimes {

struct ConfigureRequest {
  std::optional<Engine> engine = Engine::kContainerd;  // nullopt: NVIDIA's runtime (nvidia_runtime.h)
  bool remove = false;
  bool dry_run = false;
  std::string config{};   // empty: the engine's default file
  std::string drop_in{};  // empty: the default path
};

struct ConfigureOutcome {
  std::vector<Change> changes;           // applied, or planned with dry_run
  std::optional<EngineVersion> version;  // of the engine, if known
  std::string message;                   // for the user, may be empty
  bool restart_needed = false;           // settings changed that the engine reads only at start
};

// Errors: those of the engine's own functions (containerd.h, layered_config.h, docker.h, nvidia_runtime.h)
// and of Host::apply_changes; then nothing is changed.
Result<ConfigureOutcome> configure_engine(const Host& host, const ConfigureRequest& request);

struct EngineReport {
  Engine engine;
  std::string distribution{};          // "k3s" for an engine of a distribution; empty: the node's own
  std::optional<std::string> program;  // paths as the host sees them
  std::string config;
  bool has_config = false;
  std::string endpoint{};             // its usual socket
  std::optional<std::string> socket;  // the same, if it exists
  std::optional<EngineVersion> version;
  std::vector<std::string> files{};  // settings files that were read
  std::vector<Finding> findings;     // with subject "config" for a file that cannot be parsed
  bool is_ready() const;
};

// Returns the engines whose program, main file or socket exists on the host, in the order of kEngines, then
// those of distributions.
std::vector<EngineReport> check_engines(const Host& host);

// Finds the container engine that a host's kubelet uses, by the kubelet's command line or the files that it
// is started with.
//
// Sources: kubelet --container-runtime-endpoint and KubeletConfiguration v1beta1 containerRuntimeEndpoint;
// kubeadm (kubeadm-flags.env, instance-config.yaml); k3s and RKE2 "container-runtime-endpoint", k3s --docker;
// MicroK8s args/kubelet.

using CommandLine = std::vector<std::string>;  // argv

// Returns whether a process with this command line is or contains a kubelet: kubelet, k3s server, k3s agent,
// kubelite.
bool is_kubelet(const CommandLine& command);

struct KubeletEndpoint {
  std::string socket;   // a path on the host: "/run/containerd/containerd.sock"
  std::string source;   // "the command line of kubelet", or the file
  std::string program;  // argv[0] of the kubelet; empty if no process is visible
};

// `kubelets` are the command lines of the host's kubelet processes; the first with an endpoint counts. If
// none is visible, a file counts only if its socket exists, because it may belong to a former installation.
// nullopt: unknown.
std::optional<KubeletEndpoint> find_kubelet_endpoint(const Host& host, std::span<const CommandLine> kubelets);

}  // namespace gpulet::runtimes

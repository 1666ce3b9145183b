// Which container engine the kubelet of a host uses, as that host says it: by the kubelet's command line, or
// by the files that it is started with.
//
// Sources: kubelet --container-runtime-endpoint and KubeletConfiguration v1beta1 containerRuntimeEndpoint;
// kubeadm (kubeadm-flags.env, instance-config.yaml); k3s and RKE2 "container-runtime-endpoint", k3s --docker;
// MicroK8s args/kubelet.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtimes/host.h"

namespace gpulet::runtimes {

using CommandLine = std::vector<std::string>;  // argv

// Whether a process with this command line is a kubelet, or has one in it: kubelet, k3s server, k3s agent,
// kubelite.
bool is_kubelet(const CommandLine& command);

struct KubeletEndpoint {
  std::string socket;   // a path on the host: "/run/containerd/containerd.sock"
  std::string said_by;  // "the command line of kubelet", or the file
  std::string program;  // the kubelet's, as it was called; empty where no process was seen
};

// `kubelets`: the command lines of kubelets among the host's processes, of which the first that says
// something counts; empty where they are not seen. Then a file counts only where the socket that it names is
// there: it may be a former installation's. nullopt: nobody says.
std::optional<KubeletEndpoint> kubelet_endpoint(const Host& host, std::span<const CommandLine> kubelets);

}  // namespace gpulet::runtimes

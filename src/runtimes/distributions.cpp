#include "runtimes/distributions.h"

#include <array>

namespace gpulet::runtimes {
namespace {

constexpr std::array<Distribution, 4> kDistributions{{
    {.name = "k3s",
     .program = "/var/lib/rancher/k3s/data/current/bin/containerd",
     .config = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
     .socket = "/run/k3s/containerd/containerd.sock",
     .edit = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
     .drop_in = "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/99-gpulet.toml"},
    {.name = "RKE2",
     .program = "/var/lib/rancher/rke2/bin/containerd",
     .config = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
     .socket = "/run/k3s/containerd/containerd.sock",
     .edit = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
     .drop_in = "/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.d/99-gpulet.toml"},
    {.name = "k0s",
     .program = "/var/lib/k0s/bin/containerd",
     .config = "/etc/k0s/containerd.toml",
     .socket = "/run/k0s/containerd.sock",
     .edit = "/etc/k0s/containerd.toml",
     .drop_in = "/etc/k0s/containerd.d/99-gpulet.toml"},
    {.name = "MicroK8s",
     .program = "/snap/microk8s/current/bin/containerd",
     .config = "/var/snap/microk8s/current/args/containerd.toml",
     .socket = "/var/snap/microk8s/common/run/containerd.sock",
     .edit = "/var/snap/microk8s/current/args/containerd-template.toml",
     .drop_in = "/var/snap/microk8s/current/args/99-gpulet.toml"},
}};

}  // namespace

std::span<const Distribution> distributions() { return kDistributions; }

std::string configure_command(const Distribution& distribution) {
  return configure_command(Engine::kContainerd) + " --config " + std::string(distribution.edit) +
         " --drop-in-config " + std::string(distribution.drop_in) + ", and restart " +
         std::string(distribution.name);
}

}  // namespace gpulet::runtimes

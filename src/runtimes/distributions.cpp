#include "runtimes/distributions.h"

#include <algorithm>
#include <array>

#include "runtimes/imports.h"

namespace gpulet::runtimes {
namespace {

constexpr std::array<Distribution, 4> kDistributions{{
    {.name = "k3s",
     .program = "/var/lib/rancher/k3s/data/current/bin/containerd",
     .config = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
     .socket = "/run/k3s/containerd/containerd.sock",
     .edit = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
     .drop_in = "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/99-gpulet.toml",
     .units = "k3s*",
     .old_drop_in = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml.d/99-gpulet.toml",
     .template_file = "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl",
     .old_template_file = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl"},
    {.name = "RKE2",
     .program = "/var/lib/rancher/rke2/bin/containerd",
     .config = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
     .socket = "/run/k3s/containerd/containerd.sock",
     .edit = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
     .drop_in = "/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.d/99-gpulet.toml",
     .units = "rke2-*",
     .old_drop_in = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml.d/99-gpulet.toml",
     .template_file = "/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.tmpl",
     .old_template_file = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml.tmpl"},
    {.name = "k0s",
     .program = "/var/lib/k0s/bin/containerd",
     .config = "/etc/k0s/containerd.toml",
     .socket = "/run/k0s/containerd.sock",
     .edit = "/etc/k0s/containerd.toml",
     .drop_in = "/etc/k0s/containerd.d/99-gpulet.toml",
     .units = "k0s*"},
    {.name = "MicroK8s",
     .program = "/snap/microk8s/current/bin/containerd",
     .config = "/var/snap/microk8s/current/args/containerd.toml",
     .socket = "/var/snap/microk8s/common/run/containerd.sock",
     .edit = "/var/snap/microk8s/current/args/containerd-template.toml",
     .drop_in = "/var/snap/microk8s/current/args/99-gpulet.toml",
     .units = "snap.microk8s.daemon-kubelite"},
}};

// Of a text that is no TOML: nothing, as containerd reads nothing of it.
bool imports(const Distribution& distribution, const std::string& config, const std::string& file) {
  const std::string path(distribution.config);
  const auto document = toml::parse(config, path);
  if (!document) return false;
  const auto all = imports_of(*document, path);
  return all && std::ranges::any_of(*all, [&](const auto& one) { return import_matches(one, file); });
}

// Version 3 of the config came with containerd 2.
bool is_of_containerd_1(const Distribution& distribution, const std::string& config) {
  const auto document = toml::parse(config, std::string(distribution.config));
  const auto* version = document ? document->find({"version"}) : nullptr;
  return version == nullptr || version->value.number < 3;
}

}  // namespace

std::span<const Distribution> distributions() { return kDistributions; }

std::string drop_in_of(const Distribution& distribution, const std::string& config) {
  if (distribution.old_drop_in.empty()) return std::string(distribution.drop_in);
  for (const auto candidate : {distribution.drop_in, distribution.old_drop_in}) {
    if (imports(distribution, config, std::string(candidate))) return std::string(candidate);
  }
  return std::string(is_of_containerd_1(distribution, config) ? distribution.old_drop_in
                                                              : distribution.drop_in);
}

std::string remedy(const Distribution& distribution, const std::string& config) {
  const std::string name(distribution.name), drop_in = drop_in_of(distribution, config);
  if (distribution.old_drop_in.empty() || imports(distribution, config, drop_in)) {
    return configure_command(Engine::kContainerd) + " --config " + std::string(distribution.edit) +
           " --drop-in-config " + drop_in + ", and restart " + name;
  }
  const bool old = is_of_containerd_1(distribution, config);
  return name +
         " writes this file anew at each start and imports no drop-ins into it: set enable_cdi = true in " +
         std::string(old ? distribution.old_template_file : distribution.template_file) + " and restart " +
         name + (old ? ", or upgrade " + name + " to one with containerd 2, where CDI is on" : "");
}

}  // namespace gpulet::runtimes

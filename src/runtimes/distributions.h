// Kubernetes distributions that bring a containerd of their own, and where its files are.
//
// Sources: k3s docs "Advanced options", rancher/k3s pkg/agent/containerd; RKE2 docs; k0s docs/runtime.md;
// MicroK8s docs "Configuring services". What they need beside it is in docs/platforms.md.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "runtimes/engine.h"

namespace gpulet::runtimes {

struct Distribution {
  std::string_view name;     // "k3s"
  std::string_view program;  // its containerd
  std::string_view config;   // what that reads
  std::string_view socket;
  std::string_view edit;     // the file to change, where `config` is made of it anew at each start
  std::string_view drop_in;  // where a file of ours goes
};
std::span<const Distribution> distributions();

// The command that turns CDI on there.
std::string configure_command(const Distribution& distribution);

}  // namespace gpulet::runtimes

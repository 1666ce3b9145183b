// Kubernetes distributions that bring a containerd of their own, and where its files are.
//
// Sources: k3s docs "Advanced options", rancher/k3s pkg/agent/containerd (drop-ins: config-v3.toml.d beside a
// config of version 3, config.toml.d beside one of version 2, where it imports them); RKE2 docs; k0s
// docs/runtime.md; MicroK8s docs "Configuring services". What they need beside it is in docs/platforms.md.
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
  std::string_view units;    // of systemd, in which its kubelet runs, as a pattern: "k3s*"
  // Where `edit` is made anew too, so that only what it imports by itself lasts: where containerd 1 has its
  // drop-ins, and the templates of containerd 2 and 1. Empty elsewhere.
  std::string_view old_drop_in{}, template_file{}, old_template_file{};
};
std::span<const Distribution> distributions();

// Where a file of ours is read, by the text of `distribution.config`.
std::string drop_in_of(const Distribution& distribution, const std::string& config);
// What turns CDI on there, in words with the command, by the same text: where nothing of ours would be read
// it is the distribution's template, or an upgrade.
std::string remedy(const Distribution& distribution, const std::string& config);

}  // namespace gpulet::runtimes

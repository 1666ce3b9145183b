// The real PluginHost: device plugin API v1beta1 on `<folder>/nvidia-<name>.sock`, one socket a resource.
//
// Requests are answered on the gRPC thread from the resource's newest Offer, an atomic pointer: neither waits for the
// loop. Each ListAndWatch stream gets the list at once and then every change; one that reads slowly skips to the
// newest. The kubelet's socket and our own are watched by inotify, in folders that may not be there yet.
// gRPC statuses: docs/ERRORS.md.
// Source: facts/device-plugin 2; the kubelet's device manager (Kubernetes 1.36).
#pragma once

#include <memory>
#include <string>

#include "base/loop.h"
#include "kubelet/plugin_host_port.h"
#include "kubelet/rpc.h"

namespace gpulet::kubelet {

struct PluginHostSettings {
  std::string folder;          // ours: "/var/lib/kubelet/device-plugins"
  std::string kubelet_socket;  // the kubelet's, usually <folder>/kubelet.sock; empty: register_resource always fails
};

// Connections to one resource's socket (a kubelet keeps one); one more is closed at once.
inline constexpr std::size_t kMaxConnections = 16;
// Streams of one resource; one more is answered RESOURCE_EXHAUSTED.
inline constexpr std::size_t kMaxStreams = 32;
inline constexpr int kMaxRequestBytes = 4 << 20;

std::unique_ptr<PluginHost> make_plugin_host(Loop& loop, std::shared_ptr<Rpc> rpc, PluginHostSettings settings);

// "nvidia.com/gpu.shared" → "nvidia-gpu.shared.sock": the name that NVIDIA's plugin gives it.
std::string socket_name(const ResourceName& resource);

}  // namespace gpulet::kubelet

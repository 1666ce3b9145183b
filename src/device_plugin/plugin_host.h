// The kubelet's device plugin API as the agent sees it: the real one is device_plugin/plugin_host.h; the
// seeded simulation puts another in its place.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/file_watch.h"
#include "base/loop.h"
#include "base/result.h"
#include "base/types.h"
#include "device_plugin/allocation.h"
#include "device_plugin/pod_resources.h"

namespace gpulet::device_plugin {

// One try of a Register ends within this, answered or not.
inline constexpr Duration kRegisterTimeout = std::chrono::seconds(5);

// What the Pods accept that are bound to this node and that the kubelet has not admitted yet; the callback
// comes once, from the loop. An error: not known.
using DemandSource = std::function<void(std::function<void(Result<std::vector<PodDemand>>)>)>;

// Serves any number of resources. Loop's thread only; no member blocks, and no callback comes after
// destruction.
class PluginHost {
 public:
  virtual ~PluginHost() = default;
  // Serves `offer` on the resource's own socket: opens it where it is not yet, or no longer, else hands every
  // stream the change. Unchanged device lists are not sent again. Errors: as of the file system (the
  // directory is not there, not writable); kInvalidArgument for a path too long.
  virtual Status serve_offer(OfferPtr offer) = 0;
  // Closes the resource's socket and removes it.
  virtual void withdraw(const ResourceName& resource) = 0;
  // Tells the kubelet of the resource's socket. `done` comes once, within `kRegisterTimeout`, never from
  // inside this call. A newer call for the same resource takes over: the older one's `done` then comes with
  // kUnavailable.
  virtual void register_resource(const ResourceName& resource, std::function<void(Status)> done) = 0;

  // What was asked of each resource that is served, since the start.
  virtual std::map<ResourceName, ResourceCalls> call_counts() const { return {}; }
  // As HeldDevices::shows_allocations().
  virtual bool shows_allocations() const { return false; }

  // Asked before each Allocate and GetPreferredAllocation from now on; null: no longer.
  virtual void set_demand_source(DemandSource) {}

  struct Events {
    std::function<void()> kubelet_started;          // its socket was created
    std::function<void(ResourceName)> socket_lost;  // somebody removed or replaced our socket
    std::function<void(ResourceName, bool)>
        watched;                                // the kubelet opened its first ListAndWatch, or left its last
    std::function<void()> allocated = nullptr;  // a container was given devices
  };
  virtual void set_events(Events events) = 0;
};

}  // namespace gpulet::device_plugin

namespace gpulet::device_plugin {

// Watches the entries of a directory that may be absent, removed and created again: while it is absent, its
// nearest existing ancestor is watched. Loop's thread only.
class DirectoryWatcher {
 public:
  struct Events {
    // `name` was created or moved here, or it was removed.
    std::function<void(const std::string& name, bool created)> changed;
    // The directory appeared or disappeared, or events were lost: read all of it again.
    std::function<void()> rescan;
  };
  // Neither callback comes from inside open_watcher(). Errors: kIo as watch_events().
  static Result<std::unique_ptr<DirectoryWatcher>> open_watcher(Loop& loop, std::string directory,
                                                                Events events);

 private:
  DirectoryWatcher(Loop& loop, std::string directory, Events events);
  // Watches the directory or else its nearest ancestor. True when it is the directory itself. Errors: kIo as
  // watch_events().
  Result<bool> attach_watch();
  void on_entry(const std::string& name, std::uint32_t mask);
  void on_ancestor(std::uint32_t mask);
  void on_watch_lost();
  bool reattach_watch();

  Loop& loop_;
  std::string directory_;
  Events events_;
  Subscription watch_;
};

}  // namespace gpulet::device_plugin

namespace gpulet::device_plugin {

// The real PluginHost: device plugin API v1beta1 on `<directory>/nvidia-<name>.sock`, one socket a resource.
//
// Requests are answered on the gRPC thread from the resource's newest Offer, an atomic pointer: neither waits
// for the loop, but for a device that a container may hold (held_devices.h), which is not preferred while
// another is free, and not allocated. Each ListAndWatch stream gets the list at once and then every change;
// one that reads slowly skips to the newest. The kubelet's socket and our own are watched by inotify, in
// directories that may not be there yet. gRPC statuses: docs/ERRORS.md. Source: facts/device-plugin 2; the
// kubelet's device manager (Kubernetes 1.36).

// A call waits this long for the kubelet's List, where the kubelet offers a device that a Pod may hold.
inline constexpr Duration kHolderTimeout = std::chrono::seconds(2);
// A call waits this long for the demands of Pods; then it goes on without.
inline constexpr Duration kDemandTimeout = std::chrono::seconds(2);

struct PluginHostSettings {
  std::string directory;       // ours: "/var/lib/kubelet/device-plugins"
  std::string kubelet_socket;  // the kubelet's, usually <directory>/kubelet.sock; empty: register_resource
                               // always fails
  // As PodResources::list_containers. Empty: a device is allocated whoever holds it.
  std::function<void(std::function<void(Result<std::vector<ContainerDevices>>)>)> list_containers = nullptr;
};

// Connections to one resource's socket (a kubelet keeps one); one more is closed at once.
inline constexpr std::size_t kMaxConnections = 16;
// Streams of one resource; one more is answered RESOURCE_EXHAUSTED.
inline constexpr std::size_t kMaxStreams = 32;
inline constexpr int kMaxRequestBytes = 4 << 20;

std::unique_ptr<PluginHost> make_plugin_host(Loop& loop, std::shared_ptr<GrpcThread> rpc,
                                             PluginHostSettings settings);

// "nvidia.com/gpu.shared" → "nvidia-gpu.shared.sock": the name that NVIDIA's plugin gives it.
std::string socket_name(const ResourceName& resource);

}  // namespace gpulet::device_plugin

// The kubelet's device plugin API as the agent sees it: the real one is kubelet/plugin_host.h; the seeded simulation
// puts another in its place.
#pragma once

#include <functional>
#include <map>

#include "base/loop.h"
#include "base/result.h"
#include "base/strong.h"
#include "kubelet/calls.h"
#include "kubelet/offer.h"

namespace gpulet::kubelet {

// One try of a Register ends within this, answered or not.
inline constexpr Duration kRegisterTimeout = std::chrono::seconds(5);

// Serves any number of resources. Loop's thread only; no member blocks, and no callback comes after destruction.
class PluginHost {
 public:
  virtual ~PluginHost() = default;
  // Serves `offer` on the resource's own socket: opens it where it is not yet, or no longer, else hands every stream
  // the change. Unchanged device lists are not sent again.
  // Errors: as of the file system (the folder is not there, not writable); kInvalidArgument for a path too long.
  virtual Status serve(OfferPtr offer) = 0;
  // Closes the resource's socket and removes it.
  virtual void withdraw(const ResourceName& resource) = 0;
  // Tells the kubelet of the resource's socket. `done` comes once, within `kRegisterTimeout`, never from inside this
  // call. A newer call for the same resource takes over: the older one's `done` then comes with kUnavailable.
  virtual void register_resource(const ResourceName& resource, std::function<void(Status)> done) = 0;

  // What was asked of each resource that is served, since the start.
  virtual std::map<ResourceName, ResourceCalls> calls() const { return {}; }

  struct Events {
    std::function<void()> kubelet_started;            // its socket was created
    std::function<void(ResourceName)> socket_lost;    // somebody removed or replaced our socket
    std::function<void(ResourceName, bool)> watched;  // the kubelet opened its first ListAndWatch, or left its last
    std::function<void()> allocated = nullptr;        // a container was given devices
  };
  virtual void set_events(Events events) = 0;
};

}  // namespace gpulet::kubelet

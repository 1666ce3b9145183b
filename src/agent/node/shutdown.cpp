#include "agent/node/shutdown.h"

#include <string>
#include <vector>

#include "agent/node/devices.h"

namespace gpulet::agent {
namespace {

// Components stop within it, or are ended with us: less than the grace period of deploy/static.
constexpr Duration kStopLimit = std::chrono::seconds(3);

}  // namespace

void Shutdown::begin() {
  if (!announce()) stop_components();
}

// A Pod is deleted because another one replaces it: no Pod must be bound to the node in between. A second
// signal, and a service of a host, do not wait.
bool Shutdown::announce() {
  const auto* agent = node_.devices->agent();
  if (announcer_ || !node_.is_in_pod() || !node_.client_config || agent == nullptr) return false;
  std::vector<std::string> resources;
  for (const auto& offer : agent->offers()) resources.push_back(offer->resource.name.str());
  if (resources.empty()) return false;
  announcer_ = k8s::ShutdownAnnouncer::announce_shutdown(
      node_.loop, *node_.client_config, resources, [this] { node_.devices->close(); },
      [this] { stop_components(); });
  return true;
}

void Shutdown::stop_components() {
  limit_ = node_.loop.after(kStopLimit, [this] { node_.loop.stop_loop(); });
  node_.components.stop_all([this] { node_.loop.stop_loop(); });
}

}  // namespace gpulet::agent

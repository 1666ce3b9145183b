// Offers out of a judged Snapshot and a Config: what the kubelet room needs to answer for each resource.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"
#include "inventory/snapshot.h"
#include "kubelet/offer.h"
#include "mps/plan.h"
#include "partition/resources.h"
#include "topology/topology.h"

namespace gpulet::agent {

// What the node's files say, apart from the driver: read anew for each plan (read_node_files), injected in
// tests.
struct NodeFiles {
  std::vector<std::string> control_nodes;  // "/dev/nvidiactl"…, those that exist
  std::string mig_minors;                  // /proc/driver/nvidia-caps/mig-minors; empty when there is none
  std::vector<unsigned> imex_channels;     // channels that exist
};

// Reads what `config` makes necessary. Device nodes are looked for in the driver root as the agent sees it,
// else in its own /dev. Never fails: what cannot be read is absent.
NodeFiles read_node_files(const config::Config& config);

// What else a plan depends on.
struct Surroundings {
  NodeFiles files;
  partition::NodeFacts facts;
  // Takes the MPS daemons that the node needs now, and says how each is, by name; one it does not name is not
  // looked after here and counts as healthy. May be empty.
  std::function<std::map<std::string, inventory::Health>(const std::vector<mps::DaemonSpec>&)> daemons;
  // Takes what the node is, and says which qualified CDI names are on disk for it; nullopt where nobody looks
  // after specs here. May be empty.
  std::function<std::optional<std::set<std::string>>(const inventory::Snapshot&)> cdi;
};

struct Offers {
  std::vector<kubelet::OfferPtr> offers;  // by resource name
  std::vector<partition::Note> notes;
};

// A resource's devices as placement sees them, in the resource's order.
std::vector<placement::Device> placement_devices(const partition::Resource& resource,
                                                 const inventory::Snapshot& snapshot);

// By which a resource's devices are chosen.
placement::Rules placement_rules(const config::Config& config);

// Builds offers, reusing what did not change: a chooser's tables are kept while the topology, the devices and
// the policy are the same, and an Offer equal to the one before is the same pointer.
class OfferBuilder {
 public:
  Offers build(const inventory::Snapshot& snapshot, const config::Config& config,
               const Surroundings& surroundings);

 private:
  struct Kept {
    topology::Topology topology;
    std::vector<std::pair<DeviceId, std::size_t>> devices;
    config::PlacementPolicy policy{};
    config::SharedDevicesAllocationPolicy shared{};
    kubelet::OfferPtr offer;
  };
  std::map<ResourceName, Kept> kept_;
};

}  // namespace gpulet::agent

// Builds offers from a Snapshot with health and a Config: what device_plugin needs to serve each resource.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"
#include "device_plugin/allocation.h"
#include "inventory/snapshot.h"
#include "mps/plan.h"
#include "partition/resources.h"
#include "topology/topology.h"

namespace gpulet::agent {

// The driver's files on the node: read for each plan (read_driver_files), injected in tests.
struct DriverFiles {
  std::vector<std::string> control_nodes;  // "/dev/nvidiactl"…, those that exist
  std::string compute_problem = {};  // why no container can use CUDA (resources/device_nodes.h); empty: none
  std::string mig_minors;            // /proc/driver/nvidia-caps/mig-minors; empty if there is none
  std::vector<unsigned> imex_channels;  // channels that exist
};

// Reads what `config` needs. Device nodes are taken from the driver root as the agent sees it, or else from
// its own /dev. Never fails: what cannot be read is absent.
DriverFiles read_driver_files(const config::Config& config);

// What else a plan depends on; the functions may be empty.
struct PlanInputs {
  DriverFiles files;
  partition::NodeFacts facts;
  // Runs the MPS daemons that the node needs, or asks those that another program runs. Returns the health of
  // each by name, and fills in the ids of SM partitions.
  std::function<std::map<std::string, inventory::Health>(std::vector<mps::DaemonSpec>&)> mps_health;
  // Updates the CDI specs, and returns the qualified CDI names that are on disk; nullopt if CDI is not used.
  std::function<std::optional<std::set<std::string>>(const inventory::Snapshot&)> cdi_names;
  // The loads of the GPUs, for choices among them; null: unknown.
  std::shared_ptr<const placement::LoadBoard> loads = nullptr;
  // MpsController::program_problem().
  std::function<std::string(const std::string& driver_version)> mps_program_problem = nullptr;
};

struct Offers {
  std::vector<device_plugin::OfferPtr> offers;  // by resource name
  std::vector<partition::Note> notes, remarks;  // as partition::Plan
};

// Finds the notes that the previous plan did not have, so that each is reported once.
class NewNotes {
 public:
  std::vector<std::string> update(const std::vector<partition::Note>& notes);

 private:
  std::set<std::string> known_;
};

// A resource's devices for placement, in the resource's order.
std::vector<placement::Device> placement_devices(const partition::Resource& resource,
                                                 const inventory::Snapshot& snapshot);

// The rules by which a resource's devices are chosen.
placement::Rules placement_rules(const config::Config& config);

// Builds offers and reuses what did not change: a chooser's tables while topology, devices and policy are the
// same; an Offer equal to the previous one is the same pointer.
class OfferBuilder {
 public:
  Offers build_offers(const inventory::Snapshot& snapshot, const config::Config& config,
                      const PlanInputs& surroundings);

 private:
  struct CachedOffer {
    topology::Topology topology;
    std::vector<placement::Device> devices;
    placement::Rules rules;
    device_plugin::OfferPtr offer;
  };
  std::map<ResourceName, CachedOffer> cache_;
};

}  // namespace gpulet::agent

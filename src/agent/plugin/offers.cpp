#include "agent/plugin/offers.h"

#include <algorithm>

#include "agent/resources/device_nodes.h"
#include "base/file.h"
#include "base/log.h"
#include "inventory/host_files.h"

namespace gpulet::agent {
namespace {

constexpr const char* kControlNodes[] = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools",
                                         "/dev/nvidia-modeset"};
constexpr const char* kMigMinors = "/proc/driver/nvidia-caps/mig-minors";

device_plugin::DeviceAccess device_access(const partition::Device& device,
                                          const inventory::Snapshot& snapshot,
                                          const inventory::MigMinors& minors) {
  const auto& gpu = snapshot.gpus[device.gpu];
  device_plugin::DeviceAccess access;
  access.uuid = gpu.uuid.str();
  access.index = std::to_string(gpu.index);
  access.device_nodes = {"/dev/nvidia" + std::to_string(gpu.minor)};
  if (device.mig) {
    const auto& mig = gpu.mig_devices[*device.mig];
    access.uuid = mig.uuid.str();
    access.index += ":" + std::to_string(mig.index);
    for (auto& node :
         inventory::mig_device_nodes(minors, gpu.minor, mig.gpu_instance, mig.compute_instance)) {
      access.device_nodes.push_back(std::move(node));
    }
  }
  return access;
}

device_plugin::AllocationRules allocation_rules(const config::Config& config, const DriverFiles& files,
                                                const partition::Resource& resource) {
  const auto& flags = config.flags;
  device_plugin::AllocationRules rules;
  rules.strategies = flags.device_list_strategy;
  rules.ids = flags.device_id_strategy;
  rules.pass_device_specs = flags.pass_device_specs;
  rules.dev_root = flags.nvidia_dev_root;
  rules.control_nodes = files.control_nodes;
  rules.cdi_annotation_prefix = flags.cdi_annotation_prefix;
  for (const unsigned channel : config.imex.channel_ids) {
    if (std::ranges::count(files.imex_channels, channel) != 0) rules.imex_channels.push_back(channel);
  }
  rules.gds = flags.gds_enabled;
  rules.mofed = flags.mofed_enabled;
  rules.gdrcopy = flags.gdrcopy_enabled;
  if (resource.sharing == config::SharingStrategy::kMps) rules.mps_root = flags.mps_root;
  return rules;
}

// The daemons of a resource. Its devices take the health of a daemon that is not healthy.
std::vector<mps::DaemonSpec> assign_daemons(partition::Resource& resource,
                                            const std::vector<mps::DaemonSpec>& all,
                                            const std::map<std::string, inventory::Health>& healths) {
  std::vector<mps::DaemonSpec> daemons;
  for (const auto& spec : all) {
    if (std::ranges::count(spec.resources, resource.name) != 0) daemons.push_back(spec);
  }
  for (auto& device : resource.devices) {
    const auto* daemon = mps::find_daemon_spec(daemons, resource.name, device.id);
    const auto health = daemon == nullptr ? healths.end() : healths.find(daemon->name);
    if (device.health.healthy && health != healths.end()) device.health = health->second;
  }
  return daemons;
}

// CDI gives a container the named devices, and only names on disk can be resolved.
void apply_cdi_names(device_plugin::Offer& offer, const std::set<std::string>& names) {
  auto& rules = offer.rules;
  const auto is_written = [&](const std::string& device) {
    return names.contains(rules.cdi_vendor + "/" + device);
  };
  rules.gds_cdi = rules.gds && is_written("gds=all");
  rules.mofed_cdi = rules.mofed && is_written("mofed=all");
  rules.gdrcopy_cdi = rules.gdrcopy && is_written("gdrcopy=all");
  for (std::size_t i = 0; i < offer.access.size(); ++i) {
    auto& health = offer.resource.devices[i].health;
    const auto& access = offer.access[i];
    const auto& name = rules.ids == config::DeviceIdStrategy::kUuid ? access.uuid : access.index;
    if (health.healthy && !is_written("gpu=" + name)) health = {false, "its CDI spec is not written yet"};
  }
}

// Every resource here is one for compute.
void apply_compute_problem(partition::Resource& resource, const std::string& problem) {
  if (problem.empty()) return;
  for (auto& device : resource.devices) {
    if (device.health.healthy) device.health = {false, problem};
  }
}

// Its claims have CDI documents of their own.
bool is_node_of_claims(const inventory::Snapshot& snapshot, const partition::GpuOffers& offers) {
  return !snapshot.gpus.empty() && std::ranges::all_of(snapshot.gpus, [&](const auto& gpu) {
    return partition::is_of_claims(offers, gpu.uuid);
  });
}

// GPUs and MIG devices of claims.
std::map<DeviceUuid, std::string> devices_elsewhere(const inventory::Snapshot& snapshot,
                                                    const partition::GpuOffers& offers) {
  std::map<DeviceUuid, std::string> elsewhere;
  for (const auto& gpu : snapshot.gpus) {
    if (!partition::is_of_claims(offers, gpu.uuid)) continue;
    const auto reason = partition::offer_of(offers, gpu.uuid).reason;
    const std::string why = reason.empty() ? "is offered by claims" : reason;
    elsewhere.emplace(gpu.uuid, why);
    for (const auto& mig : gpu.mig_devices) elsewhere.emplace(mig.uuid, why);
  }
  return elsewhere;
}

bool same_offer(const device_plugin::Offer& a, const device_plugin::Offer& b) {
  return a.resource == b.resource && a.access == b.access && a.chooser == b.chooser && a.rules == b.rules &&
         a.daemons == b.daemons && a.gpus == b.gpus && a.loads == b.loads && a.elsewhere == b.elsewhere;
}

}  // namespace

placement::Rules placement_rules(const config::Config& config) {
  placement::Rules rules;
  rules.policy = config.gpulet.placement_policy == config::PlacementPolicy::kTightest
                     ? placement::Policy::kTightest
                     : placement::Policy::kBestEffort;
  rules.shared =
      config.flags.shared_devices_allocation_policy == config::SharedDevicesAllocationPolicy::kPacked
          ? placement::SharedPolicy::kPacked
          : placement::SharedPolicy::kDistributed;
  switch (config.gpulet.placement_load) {
    case config::PlacementLoad::kIgnore:
      rules.load = placement::LoadPolicy::kIgnore;
      break;
    case config::PlacementLoad::kPrefer:
      rules.load = placement::LoadPolicy::kPrefer;
      break;
    case config::PlacementLoad::kStrict:
      rules.load = placement::LoadPolicy::kStrict;
      break;
  }
  return rules;
}

std::vector<placement::Device> placement_devices(const partition::Resource& resource,
                                                 const inventory::Snapshot& snapshot) {
  std::vector<placement::Device> devices;
  for (const auto& device : resource.devices) {
    placement::Device one{.id = device.id, .gpu = device.gpu, .shared = device.is_shared()};
    if (device.mig) {
      one.memory_slice = snapshot.gpus[device.gpu].mig_devices[*device.mig].placement_start;
    } else if (device.share) {
      one.memory_percent = device.share->memory;
    } else if (device.replica) {
      one.memory_percent = placement::equal_share_percent(resource.replicas);
    }
    devices.push_back(std::move(one));
  }
  return devices;
}

DriverFiles read_driver_files(const config::Config& config) {
  DriverFiles files;
  if (const auto root = find_device_root(config)) {
    for (const char* node : kControlNodes) {
      if (root->exists(node)) files.control_nodes.emplace_back(node);
    }
    files.compute_problem = find_compute_problem(*root);
    for (const unsigned channel : config.imex.channel_ids) {
      if (root->exists("/dev/nvidia-caps-imex-channels/channel" + std::to_string(channel))) {
        files.imex_channels.push_back(channel);
      }
    }
  }
  // A /proc tree below the driver root takes precedence over procfs.
  for (const auto& path : driver_roots(config)) {
    if (const auto root = RootDirectory::open_root(path)) {
      if (auto text = root->read_text_file(kMigMinors)) {
        files.mig_minors = std::move(*text);
        break;
      }
    }
  }
  return files;
}

std::vector<std::string> NewNotes::update(const std::vector<partition::Note>& notes) {
  std::vector<std::string> found;
  std::set<std::string> now;
  for (const auto& note : notes) {
    if (now.insert(note.message).second && !known_.contains(note.message)) found.push_back(note.message);
  }
  known_ = std::move(now);
  return found;
}

Offers OfferBuilder::build_offers(const inventory::Snapshot& snapshot, const config::Config& config,
                                  const PlanInputs& surroundings) {
  const auto& files = surroundings.files;
  auto plan = partition::plan_resources(snapshot, config, surroundings.facts);
  Offers result;
  result.notes = std::move(plan.notes);
  result.remarks = std::move(plan.remarks);
  for (const unsigned channel : config.imex.channel_ids) {
    if (!config.imex.required || std::ranges::count(files.imex_channels, channel) != 0) continue;
    result.notes.push_back({"requested IMEX channel channel" + std::to_string(channel) +
                            " does not exist: no GPU is offered until it exists (imex.required is true)"});
    cache_.clear();
    return result;
  }
  if (!files.compute_problem.empty() && !plan.resources.empty())
    result.notes.push_back({"no GPU can be used for compute: " + files.compute_problem});
  const auto topology = topology::build_topology(snapshot);
  const auto elsewhere = devices_elsewhere(snapshot, surroundings.facts.offers);
  inventory::MigMinors minors;
  if (auto parsed = inventory::parse_mig_minors(files.mig_minors)) minors = std::move(*parsed);
  const auto problem = surroundings.mps_program_problem
                           ? surroundings.mps_program_problem(snapshot.driver.version)
                           : std::string();
  const bool has_namespaces = mps::why_no_namespaces(snapshot, config, problem).empty();
  auto daemons = mps::plan_daemons(plan.resources, snapshot, has_namespaces);
  std::map<std::string, inventory::Health> healths;
  if (surroundings.mps_health) healths = surroundings.mps_health(daemons);
  std::optional<std::set<std::string>> cdi_names;
  if (surroundings.cdi_names && !is_node_of_claims(snapshot, surroundings.facts.offers))
    cdi_names = surroundings.cdi_names(snapshot);
  std::map<ResourceName, CachedOffer> next;
  for (auto& resource : plan.resources) {
    CachedOffer cached;
    cached.topology = topology;
    cached.devices = placement_devices(resource, snapshot);
    cached.rules = placement_rules(config);
    cached.rules.shares_on = resource.shares_on;

    auto offer = std::make_shared<device_plugin::Offer>();
    apply_compute_problem(resource, files.compute_problem);
    offer->daemons = assign_daemons(resource, daemons, healths);
    for (const auto& device : resource.devices)
      offer->access.push_back(device_access(device, snapshot, minors));
    offer->rules = allocation_rules(config, files, resource);
    for (const auto& gpu : snapshot.gpus) offer->gpus.push_back(gpu.uuid);
    offer->loads = surroundings.loads;
    offer->elsewhere = elsewhere;
    const auto before = cache_.find(resource.name);
    if (before != cache_.end() && before->second.topology == cached.topology &&
        before->second.devices == cached.devices && before->second.rules == cached.rules) {
      offer->chooser = before->second.offer->chooser;
    } else {
      offer->chooser = placement::Chooser::build_chooser(topology, cached.devices, cached.rules);
    }
    const ResourceName name = resource.name;
    offer->resource = std::move(resource);
    if (cdi_names) apply_cdi_names(*offer, *cdi_names);
    cached.offer =
        before != cache_.end() && same_offer(*before->second.offer, *offer) ? before->second.offer : offer;
    result.offers.push_back(cached.offer);
    next.emplace(name, std::move(cached));
  }
  cache_ = std::move(next);
  return result;
}

}  // namespace gpulet::agent

// The logic of Allocate and GetPreferredAllocation, without the protocol.
#include "device_plugin/allocation.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>

#include "base/device_id.h"
#include "base/text.h"
#include "proto/deviceplugin_v1beta1.pb.h"

namespace gpulet::device_plugin {
namespace {

using config::DeviceListStrategy;

constexpr std::string_view kVisibleDevices = "NVIDIA_VISIBLE_DEVICES";
constexpr std::string_view kVolumeMountRoot = "/var/run/nvidia-container-devices";
constexpr std::string_view kImexNode = "/dev/nvidia-caps-imex-channels/channel";

tl::unexpected<Error> allocation_error(const Offer& offer, Code code, const std::string& why) {
  return fail(code, "invalid allocation request for \"" + offer.resource.name.str() + "\": " + why);
}

// `found` are indices in the offer.
Status check_shares_on(const Offer& offer, std::span<const std::size_t> found) {
  const auto where = offer.resource.shares_on;
  std::vector<std::size_t> gpus;
  for (const auto index : found) gpus.push_back(offer.resource.devices[index].gpu);
  if (placement::are_shares_placed(where, gpus)) return {};
  const auto shares = std::to_string(gpus.size()) + " shares of ";
  std::ranges::sort(gpus);
  const auto distinct = std::ranges::unique(gpus).begin() - gpus.begin();
  return allocation_error(
      offer, Code::kFailedPrecondition,
      shares + (distinct == 1 ? "one GPU" : std::to_string(distinct) + " GPUs") + "; expected " +
          (where == placement::SharesOn::kOneGpu ? "one GPU" : "different GPUs") + " (sharesOn: " +
          std::string(placement::shares_on_name(where)) + " in gpulet.partition); nothing else is free");
}

// Indices of the requested devices in the offer, in the order of the request.
Result<std::vector<std::size_t>> find_devices(const Offer& offer, std::span<const DeviceId> ids) {
  const auto& devices = offer.resource.devices;
  if (ids.empty()) return allocation_error(offer, Code::kInvalidArgument, "no device requested");
  std::vector<std::size_t> found;
  bool replicated = false;
  for (const auto& id : ids) {
    const auto it = std::ranges::find(devices, id, &partition::Device::id);
    if (it == devices.end()) {
      const auto elsewhere = offer.elsewhere.find(uuid_of_device(id));
      if (elsewhere != offer.elsewhere.end())
        return allocation_error(offer, Code::kFailedPrecondition, id.str() + " " + elsewhere->second);
      return allocation_error(offer, Code::kInvalidArgument, "unknown device: " + id.str());
    }
    const auto index = static_cast<std::size_t>(it - devices.begin());
    if (std::ranges::count(found, index) != 0) {
      return allocation_error(offer, Code::kInvalidArgument, "device requested twice: " + id.str());
    }
    replicated |= it->replica.has_value();
    found.push_back(index);
  }
  if (replicated && offer.resource.fail_requests_greater_than_one && ids.size() > 1) {
    return allocation_error(offer, Code::kInvalidArgument,
                            "invalid request: maximum request size for shared resources is 1; found " +
                                std::to_string(ids.size()));
  }
  if (auto placed = check_shares_on(offer, found); !placed) return tl::unexpected(placed.error());
  for (const std::size_t index : found) {
    const auto& device = devices[index];
    if (!device.health.healthy) {
      return allocation_error(offer, Code::kFailedPrecondition,
                              "device is unhealthy: " + device.id.str() +
                                  (device.health.reason.empty() ? "" : " (" + device.health.reason + ")"));
    }
  }
  return found;
}

// One access per GPU or MIG device, however many of its shares were requested, in the order of the request.
std::vector<const DeviceAccess*> distinct(const Offer& offer, const std::vector<std::size_t>& found) {
  std::vector<const DeviceAccess*> result;
  for (const std::size_t index : found) {
    const DeviceAccess& access = offer.access[index];
    const auto same = [&](const DeviceAccess* other) { return other->uuid == access.uuid; };
    if (std::ranges::none_of(result, same)) result.push_back(&access);
  }
  return result;
}

bool uses(const AllocationRules& rules, DeviceListStrategy strategy) {
  return std::ranges::count(rules.strategies, strategy) != 0;
}

bool all_cdi(const AllocationRules& rules) {
  return std::ranges::all_of(rules.strategies, [](auto strategy) {
    return strategy == DeviceListStrategy::kCdiAnnotations || strategy == DeviceListStrategy::kCdiCri;
  });
}

// Unique within a container: it differs by resource and devices. A hash, so that the same allocation has the
// same bytes (NVIDIA's plugin draws a random UUID).
std::string annotation_suffix(const Offer& offer, std::span<const DeviceId> ids) {
  constexpr std::string_view kEnd = "\xff";  // occurs in no name
  auto hash = fnv1a_64(kEnd, fnv1a_64(offer.resource.name.str()));
  for (const auto& id : ids) hash = fnv1a_64(kEnd, fnv1a_64(id.str(), hash));
  return hex_text(hash);
}

std::vector<std::string> cdi_names(const AllocationRules& rules, const std::vector<std::string>& names) {
  std::vector<std::string> qualified;
  const auto add = [&](std::string_view device_class, const std::string& name) {
    qualified.push_back(rules.cdi_vendor + "/" + std::string(device_class) + "=" + name);
  };
  for (const auto& name : names) add("gpu", name);
  for (const unsigned channel : rules.imex_channels) add("imex-channel", std::to_string(channel));
  if (rules.gdrcopy_cdi) add("gdrcopy", "all");
  if (rules.gds_cdi) add("gds", "all");
  if (rules.mofed_cdi) add("mofed", "all");
  return qualified;
}

// A CUDA process is the client of one daemon: that of the first requested device.
void add_mps(const Offer& offer, const std::vector<std::size_t>& found, ContainerAllocation& result) {
  const auto& devices = offer.resource.devices;
  const auto* daemon = mps::find_daemon_spec(offer.daemons, offer.resource.name, devices[found.front()].id);
  if (daemon == nullptr) return;
  std::vector<partition::Device> held;
  for (const auto index : found) {
    if (mps::find_daemon_spec(offer.daemons, offer.resource.name, devices[index].id) == daemon)
      held.push_back(devices[index]);
  }
  result.envs.merge(mps::client_environment(*daemon, held));
  const auto& root = offer.rules.mps_root;
  result.mounts.push_back({mps::client_pipe_directory(root, *daemon, held),
                           mps::client_pipe_directory(std::string(mps::kContainerRoot), *daemon, held),
                           daemon->protocol == mps::kProtocolWithNamespaces});
  result.mounts.push_back({mps::shm_directory(root), "/dev/shm", false});
}

void add_volume_mounts(const AllocationRules& rules, const std::vector<std::string>& names,
                       ContainerAllocation& result) {
  const std::string root(kVolumeMountRoot);
  result.envs[std::string(kVisibleDevices)] = root;
  for (const auto& name : names) result.mounts.push_back({"/dev/null", root + "/" + name, false});
  for (const unsigned channel : rules.imex_channels) {
    result.mounts.push_back({"/dev/null", root + "/imex/" + std::to_string(channel), false});
  }
}

void add_device_specs(const AllocationRules& rules, const std::vector<const DeviceAccess*>& devices,
                      ContainerAllocation& result) {
  std::set<std::string> seen;
  const std::string root = rules.dev_root == "/" ? "" : rules.dev_root;
  const auto add = [&](const std::string& node) {
    if (seen.insert(node).second) result.devices.push_back({root + node, node, "rw"});
  };
  for (const auto& node : rules.control_nodes) add(node);
  for (const auto* device : devices) {
    for (const auto& node : device->device_nodes) add(node);
  }
  for (const unsigned channel : rules.imex_channels) add(std::string(kImexNode) + std::to_string(channel));
}

// Those of `available` that the Pod accepts, with the required ones, if they are enough. If not, Allocate
// refuses what the kubelet then takes.
std::vector<DeviceId> accepted_devices(const PodDemand* demand, std::span<const DeviceId> available,
                                       std::span<const DeviceId> required, std::size_t size) {
  std::vector<DeviceId> left(available.begin(), available.end());
  if (demand == nullptr || demand->refused.empty()) return left;
  std::erase_if(left, [&](const DeviceId& id) {
    return demand->refused.contains(id) && std::ranges::find(required, id) == required.end();
  });
  return left.size() < size ? std::vector<DeviceId>(available.begin(), available.end()) : left;
}

}  // namespace

Result<ContainerAllocation> allocate(const Offer& offer, std::span<const DeviceId> ids) {
  GPULET_TRY_ASSIGN(const auto found, find_devices(offer, ids));
  const auto& rules = offer.rules;
  const auto devices = distinct(offer, found);
  std::vector<std::string> names;
  for (const auto* device : devices) {
    names.push_back(rules.ids == config::DeviceIdStrategy::kUuid ? device->uuid : device->index);
  }
  ContainerAllocation result;
  if (uses(rules, DeviceListStrategy::kCdiAnnotations)) {
    result
        .annotations[rules.cdi_annotation_prefix + "nvidia-device-plugin_" + annotation_suffix(offer, ids)] =
        text::join(cdi_names(rules, names), ",");
  }
  if (uses(rules, DeviceListStrategy::kCdiCri)) result.cdi_devices = cdi_names(rules, names);
  add_mps(offer, found, result);
  if (rules.gds) result.envs["NVIDIA_GDS"] = "enabled";
  if (rules.mofed) result.envs["NVIDIA_MOFED"] = "enabled";
  if (rules.gdrcopy) result.envs["NVIDIA_GDRCOPY"] = "enabled";
  if (all_cdi(rules)) return result;

  if (uses(rules, DeviceListStrategy::kEnvvar)) {
    result.envs[std::string(kVisibleDevices)] = text::join(names, ",");
    std::vector<std::string> channels;
    for (const unsigned channel : rules.imex_channels) channels.push_back(std::to_string(channel));
    if (!channels.empty()) result.envs["NVIDIA_IMEX_CHANNELS"] = text::join(channels, ",");
  }
  // With both, the container runtime reads the mounts: their variable wins.
  if (uses(rules, DeviceListStrategy::kVolumeMounts)) add_volume_mounts(rules, names, result);
  if (rules.pass_device_specs) add_device_specs(rules, devices, result);
  return result;
}

Result<placement::Choice> preferred_allocation(const Offer& offer, std::span<const DeviceId> available,
                                               std::span<const DeviceId> required, std::size_t size,
                                               std::span<const PodDemand> demands) {
  const std::string prefix = "invalid preferred allocation request for \"" + offer.resource.name.str() + "\"";
  if (!offer.chooser) return fail(Code::kFailedPrecondition, prefix + ": no topology is known");
  const auto loads = offer.loads ? placement::loads_in_order(*offer.loads->newest_loads(), offer.gpus)
                                 : std::vector<placement::GpuLoad>{};
  const auto* const demand = find_common_demand(demands, offer.resource.name, size);
  const auto left = accepted_devices(demand, available, required, size);
  const auto shares_on = demand != nullptr && demand->shares_on != placement::SharesOn::kAnyGpu
                             ? std::optional(demand->shares_on)
                             : std::nullopt;
  auto choice = offer.chooser->choose_devices(left, required, size, loads, shares_on);
  if (!choice) return fail(choice.error().with_context(prefix));
  return choice;
}

}  // namespace gpulet::device_plugin

namespace gpulet::device_plugin {
namespace {

template <class Names>
std::vector<DeviceId> ids_of(const Names& names) {
  std::vector<DeviceId> ids;
  ids.reserve(static_cast<std::size_t>(names.size()));
  for (const auto& name : names) ids.emplace_back(name);
  return ids;
}

Status check_containers(const Offer& offer, int containers) {
  if (containers <= kMaxContainers) return {};
  return fail(Code::kInvalidArgument, "invalid request for \"" + offer.resource.name.str() +
                                          "\": " + std::to_string(containers) + " containers, at most " +
                                          std::to_string(kMaxContainers));
}

void render_allocation(const ContainerAllocation& allocation, v1beta1::ContainerAllocateResponse& response) {
  for (const auto& [key, value] : allocation.envs) (*response.mutable_envs())[key] = value;
  for (const auto& [key, value] : allocation.annotations) (*response.mutable_annotations())[key] = value;
  for (const auto& mount : allocation.mounts) {
    auto& out = *response.add_mounts();
    out.set_host_path(mount.host_path);
    out.set_container_path(mount.container_path);
    out.set_read_only(mount.read_only);
  }
  for (const auto& device : allocation.devices) {
    auto& out = *response.add_devices();
    out.set_host_path(device.host_path);
    out.set_container_path(device.container_path);
    out.set_permissions(device.permissions);
  }
  for (const auto& name : allocation.cdi_devices) response.add_cdi_devices()->set_name(name);
}

}  // namespace

v1beta1::ListAndWatchResponse make_device_list(const Offer& offer) {
  v1beta1::ListAndWatchResponse list;
  for (const auto& device : offer.resource.devices) {
    auto& out = *list.add_devices();
    out.set_id(device.id.str());
    out.set_health(device.health.healthy ? "Healthy" : "Unhealthy");
    if (device.numa_node && *device.numa_node >= 0)
      out.mutable_topology()->add_nodes()->set_id(*device.numa_node);
  }
  return list;
}

Status fill_response(const Offer& offer, const v1beta1::AllocateRequest& request,
                     v1beta1::AllocateResponse& response, std::span<const PodDemand> demands) {
  GPULET_TRY(check_containers(offer, request.container_requests_size()));
  std::set<std::string> given;
  for (const auto& container : request.container_requests()) {
    const auto ids = ids_of(container.devices_ids());
    GPULET_TRY_ASSIGN(const auto allocation, allocate(offer, ids));
    for (const auto& id : ids) {
      if (given.insert(id.str()).second) continue;
      return fail(Code::kInvalidArgument, "invalid allocation request for \"" + offer.resource.name.str() +
                                              "\": device requested by two containers: " + id.str());
    }
    GPULET_TRY(check_demands(offer, ids, demands));
    render_allocation(allocation, *response.add_container_responses());
  }
  return {};
}

Status fill_response(const Offer& offer, const v1beta1::PreferredAllocationRequest& request,
                     v1beta1::PreferredAllocationResponse& response, std::int64_t* score,
                     std::span<const PodDemand> demands) {
  std::int64_t sum = 0;
  GPULET_TRY(check_containers(offer, request.container_requests_size()));
  for (const auto& container : request.container_requests()) {
    if (container.allocation_size() <= 0) {
      return fail(Code::kInvalidArgument,
                  "invalid preferred allocation request for \"" + offer.resource.name.str() + "\": size " +
                      std::to_string(container.allocation_size()) + ", must be at least 1");
    }
    const auto available = ids_of(container.available_deviceids());
    const auto required = ids_of(container.must_include_deviceids());
    GPULET_TRY_ASSIGN(const auto choice,
                      preferred_allocation(offer, available, required,
                                           static_cast<std::size_t>(container.allocation_size()), demands));
    auto& out = *response.add_container_responses();
    for (const auto& id : choice.devices) out.add_deviceids(id.str());
    sum += choice.score;
  }
  if (score != nullptr) *score = sum;
  return {};
}

Status reject_held_device(const Offer& offer, const DeviceId& device, const std::string& pod) {
  return allocation_error(offer, Code::kFailedPrecondition,
                          "the Pod " + pod + " holds " + device.str() +
                              ", which the kubelet has allocated a second time "
                              "(kubernetes/kubernetes#137534): create the Pod again");
}

void remove_held_devices(v1beta1::PreferredAllocationRequest& request,
                         const std::map<DeviceId, std::string>& holders) {
  for (auto& container : *request.mutable_container_requests()) {
    const auto& required = container.must_include_deviceids();
    std::vector<std::string> left;
    for (const auto& id : container.available_deviceids()) {
      if (!holders.contains(DeviceId(id)) || std::ranges::count(required, id) != 0) left.push_back(id);
    }
    if (std::cmp_less(left.size(), container.allocation_size())) continue;
    container.mutable_available_deviceids()->Assign(left.begin(), left.end());
  }
}

}  // namespace gpulet::device_plugin

// What one resource offers to the kubelet at one moment, whole: the gRPC threads answer every request from
// one immutable Offer and touch nothing else.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "config/config.h"
#include "device_plugin/pod_demands.h"
#include "mps/plan.h"
#include "partition/resources.h"
#include "placement/chooser.h"
#include "placement/load_board.h"

namespace gpulet::device_plugin {

// One device's part in a container, apart from who asks: what Allocate says of it.
struct DeviceAccess {
  std::string uuid;   // of the GPU or MIG device
  std::string index;  // "3", or "3:1" for a MIG device
  // Paths below the dev root that the device needs: "/dev/nvidia3", MIG: also its two
  // /dev/nvidia-caps/nvidia-capN.
  std::vector<std::string> device_nodes;
  friend bool operator==(const DeviceAccess&, const DeviceAccess&) = default;
};

// How a container learns of its devices: the same for every device of the resource.
struct AllocationRules {
  std::vector<config::DeviceListStrategy> strategies;
  config::DeviceIdStrategy ids = config::DeviceIdStrategy::kUuid;
  bool pass_device_specs = false;
  std::string dev_root = "/";              // host path prefix of device nodes
  std::vector<std::string> control_nodes;  // "/dev/nvidiactl"…: those that exist, in this order
  std::string cdi_annotation_prefix;
  std::string cdi_vendor = "k8s.device-plugin.nvidia.com";
  std::vector<unsigned> imex_channels;  // present and wanted
  bool gds = false, mofed = false, gdrcopy = false;
  bool gds_cdi = false, mofed_cdi = false, gdrcopy_cdi = false;  // a spec for `<class>=all` is there
  std::string mps_root;                                          // host directory of the MPS pipes
  friend bool operator==(const AllocationRules&, const AllocationRules&) = default;
};

struct Offer {
  partition::Resource resource;
  std::vector<DeviceAccess> access;  // parallel to resource.devices
  std::shared_ptr<const placement::Chooser> chooser;
  AllocationRules rules;
  std::vector<mps::DaemonSpec> daemons;               // that serve its devices, where they are shared by MPS
  std::vector<DeviceUuid> gpus;                       // of the node, as the chooser numbers them
  std::shared_ptr<const placement::LoadBoard> loads;  // of the GPUs; null: unknown
  // Devices of the node that are not of the device plugin, with the reason: "is offered by claims".
  std::map<DeviceUuid, std::string> elsewhere = {};
};
using OfferPtr = std::shared_ptr<const Offer>;

struct Mount {
  std::string host_path, container_path;
  bool read_only = false;
  friend bool operator==(const Mount&, const Mount&) = default;
};
struct DeviceSpec {
  std::string host_path, container_path, permissions;
  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};
// One container's answer to Allocate; maps and lists are in a stable order.
struct ContainerAllocation {
  std::map<std::string, std::string> envs;
  std::vector<Mount> mounts;
  std::vector<DeviceSpec> devices;
  std::map<std::string, std::string> annotations;
  std::vector<std::string> cdi_devices;
};

// What one container gets for `ids`. Pure.
// Errors, each one line that names the resource: kInvalidArgument for an unknown id, a doubled id, no id at
// all, or more than one share where failRequestsGreaterThanOne; kFailedPrecondition for an unhealthy device,
// with its reason. Source: facts/device-plugin 1.5, 1.7, 2.6.
Result<ContainerAllocation> allocate(const Offer& offer, std::span<const DeviceId> ids);

// What GetPreferredAllocation answers for one container, by the newest loads of the GPUs. Errors: as
// placement::Chooser::choose_devices, naming the resource. Where all Pods that it can be for choose alike,
// their choice precedes, as far as it can hold.
Result<placement::Choice> preferred_allocation(const Offer& offer, std::span<const DeviceId> available,
                                               std::span<const DeviceId> required, std::size_t size,
                                               std::span<const PodDemand> demands = {});

}  // namespace gpulet::device_plugin

namespace gpulet::device_plugin {

// What the kubelet has asked of each resource, counted.

struct CallCount {
  std::uint64_t answered = 0, refused = 0;
  std::chrono::nanoseconds time{};  // from the request to the answer's being ready
  friend bool operator==(const CallCount&, const CallCount&) = default;
};

struct ResourceCalls {
  std::map<std::string_view, CallCount> calls;  // by the API's name: "Allocate", "GetPreferredAllocation", …
  std::optional<std::int64_t> score;            // placement::Choice::score of the last preferred allocation
};

}  // namespace gpulet::device_plugin

namespace v1beta1 {

// Protocol messages to and from Offers, without gRPC: what the service and the fuzzer share. Pure.

class AllocateRequest;
class AllocateResponse;
class ListAndWatchResponse;
class PreferredAllocationRequest;
class PreferredAllocationResponse;
}  // namespace v1beta1

namespace gpulet::device_plugin {

// A request names containers; the kubelet asks for one at a time.
inline constexpr int kMaxContainers = 256;

// Every device, in the resource's order, with its NUMA node where that is known (node 0 included).
v1beta1::ListAndWatchResponse make_device_list(const Offer& offer);

// Errors: those of allocate(), check_demands() and preferred(), and kInvalidArgument for too many containers,
// a device that two containers of one request ask for, or a size that is not positive.
Status fill_response(const Offer& offer, const v1beta1::AllocateRequest& request,
                     v1beta1::AllocateResponse& response, std::span<const PodDemand> demands = {});
// `score`, where it is given, gets the sum of the choices' scores.
Status fill_response(const Offer& offer, const v1beta1::PreferredAllocationRequest& request,
                     v1beta1::PreferredAllocationResponse& response, std::int64_t* score = nullptr,
                     std::span<const PodDemand> demands = {});

// Where the kubelet offers devices that containers hold (held_devices.h). `holders`: the Pod of each.

// Always kFailedPrecondition: the Pod holds the device that is requested.
Status reject_held_device(const Offer& offer, const DeviceId& device, const std::string& pod);
// Removes devices that have a holder from what is available to each container, if enough others are left.
void remove_held_devices(v1beta1::PreferredAllocationRequest& request,
                         const std::map<DeviceId, std::string>& holders);

}  // namespace gpulet::device_plugin

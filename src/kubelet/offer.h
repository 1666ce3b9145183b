// What one resource offers to the kubelet at one moment, whole: the gRPC threads answer every request from
// one immutable Offer and touch nothing else.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/config.h"
#include "mps/plan.h"
#include "partition/resources.h"
#include "placement/chooser.h"

namespace gpulet::kubelet {

// One device's part in a container, apart from who asks: what Allocate says of it.
struct DeviceAccess {
  std::string uuid;   // of the GPU or MIG device
  std::string index;  // "3", or "3:1" for a MIG device
  // Paths below the dev root that the device needs: "/dev/nvidia3", MIG: also its two
  // /dev/nvidia-caps/nvidia-capN.
  std::vector<std::string> device_nodes;
  friend bool operator==(const DeviceAccess&, const DeviceAccess&) = default;
};

// How a container is told of its devices, the same for every device of the resource.
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
  std::string mps_root;                                          // host folder of the MPS pipes
  friend bool operator==(const AllocationRules&, const AllocationRules&) = default;
};

struct Offer {
  partition::Resource resource;
  std::vector<DeviceAccess> access;  // parallel to resource.devices
  std::shared_ptr<const placement::Chooser> chooser;
  AllocationRules rules;
  std::vector<mps::DaemonSpec> daemons;  // that serve its devices, where they are shared by MPS
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

// What GetPreferredAllocation answers for one container. Errors: as placement::Chooser::choose, naming the
// resource.
Result<placement::Choice> preferred(const Offer& offer, std::span<const DeviceId> available,
                                    std::span<const DeviceId> required, std::size_t size);

}  // namespace gpulet::kubelet

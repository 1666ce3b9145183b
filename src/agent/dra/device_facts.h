// What the devices of claims are made from beside the snapshot: the node's CDI document, its PCI bus, and the
// health of the devices.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "cdi/spec.h"
#include "config/config.h"
#include "dra/device.h"
#include "health/report/node_health.h"
#include "inventory/snapshot.h"

namespace gpulet::agent {

// What is read from the disk for the devices of one snapshot.
struct DeviceFacts {
  Result<cdi::Spec> base;
  std::map<inventory::PciAddress, std::string> pcie_roots;
};

// From the first driver root that has the GPU.
std::map<inventory::PciAddress, std::string> read_pcie_roots(const inventory::Snapshot& snapshot,
                                                             const config::Config& config);

// Some 250 system calls.
DeviceFacts read_device_facts(const inventory::Snapshot& snapshot, const config::Config& config);

// Health taints by UUID; a device without any is not in it.
std::map<DeviceUuid, std::vector<dra::DeviceTaint>> taints_of(const health::HealthViewPtr& view);

}  // namespace gpulet::agent

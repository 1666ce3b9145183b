#include "agent/dra/device_facts.h"

#include <filesystem>
#include <utility>

#include "agent/resources/cdi_controller.h"
#include "agent/resources/device_nodes.h"
#include "dra/device_health.h"
#include "dra/device_pool.h"

namespace gpulet::agent {

std::map<inventory::PciAddress, std::string> read_pcie_roots(const inventory::Snapshot& snapshot,
                                                             const config::Config& config) {
  std::map<inventory::PciAddress, std::string> roots;
  for (const auto& directory : driver_roots(config)) {
    for (const auto& gpu : snapshot.gpus) {
      std::error_code error;
      const auto link =
          std::filesystem::read_symlink(directory + "/sys/bus/pci/devices/" + gpu.pci.sysfs_text(), error);
      const auto root = error ? std::nullopt : dra::pcie_root_of_link(link.string());
      if (root) roots.emplace(gpu.pci, *root);
    }
  }
  return roots;
}

DeviceFacts read_device_facts(const inventory::Snapshot& snapshot, const config::Config& config) {
  return {make_gpu_spec(snapshot, config), read_pcie_roots(snapshot, config)};
}

std::map<DeviceUuid, std::vector<dra::DeviceTaint>> taints_of(const health::HealthViewPtr& view) {
  std::map<DeviceUuid, std::vector<dra::DeviceTaint>> taints;
  if (!view) return taints;
  for (const auto& device : view->devices) {
    if (device.uuid.empty()) continue;
    auto own = dra::health_taints(device.status);
    if (!own.empty()) taints[device.uuid] = std::move(own);
  }
  return taints;
}

}  // namespace gpulet::agent

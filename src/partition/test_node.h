// Machines and configs for tests, made by hand.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "inventory/snapshot.h"
#include "partition/resources.h"

namespace gpulet::partition::test {

inline inventory::Gpu gpu(unsigned index, const std::string& model = "NVIDIA A100-SXM4-40GB") {
  inventory::Gpu made;
  made.index = index;
  made.uuid = DeviceUuid("GPU-" + std::to_string(index));
  made.model = model;
  made.compute_major = 8;
  made.mig_capable = model.find("T4") == std::string::npos;
  made.numa_node = static_cast<int>(index % 2);
  made.pci.bus = 0x10 + index;
  return made;
}

inline inventory::MigDevice mig(unsigned gpu_index, unsigned index, const std::string& profile,
                                unsigned compute = 1, unsigned slices = 1) {
  inventory::MigDevice made;
  made.index = index;
  made.uuid = DeviceUuid("MIG-" + std::to_string(gpu_index) + "-" + std::to_string(index));
  made.profile = profile;
  made.gpu_instance = index + 1;
  made.compute_instance = 0;
  made.compute_slices = compute;
  made.gpu_slices = slices;
  return made;
}

inline inventory::Gpu cut_as(unsigned index, const std::vector<std::string>& profiles,
                             const std::string& model = "NVIDIA A100-SXM4-40GB") {
  inventory::Gpu made = gpu(index, model);
  made.mig_enabled = true;
  for (const auto& profile : profiles) {
    made.mig_devices.push_back(mig(index, static_cast<unsigned>(made.mig_devices.size()), profile));
  }
  return made;
}

inline inventory::Gpu cut(unsigned index, unsigned count, const std::string& profile = "1g.5gb") {
  return cut_as(index, std::vector<std::string>(count, profile));
}

inline inventory::Snapshot node(std::vector<inventory::Gpu> gpus) {
  inventory::Snapshot snapshot;
  snapshot.gpus = std::move(gpus);
  return snapshot;
}

inline config::Config with(config::MigStrategy strategy) {
  config::Config config;
  config.flags.mig_strategy = strategy;
  config.gpu_resources = {{"*", ResourceName("nvidia.com/gpu")}};
  return config;
}

inline config::ReplicatedResource replicated(const std::string& name, unsigned replicas,
                                             config::DeviceSelection devices = config::AllDevices{},
                                             const std::optional<std::string>& rename = std::nullopt) {
  config::ReplicatedResource made;
  made.name = ResourceName("nvidia.com/" + name);
  if (rename) made.rename = ResourceName("nvidia.com/" + *rename);
  made.devices = std::move(devices);
  made.replicas = replicas;
  return made;
}

inline config::Config sharing(std::vector<config::ReplicatedResource> resources,
                              config::SharingStrategy strategy = config::SharingStrategy::kTimeSlicing) {
  config::Config config = with(config::MigStrategy::kNone);
  config.sharing.strategy = strategy;
  config.sharing.resources = std::move(resources);
  return config;
}

// "gpu=2 mig-1g.5gb=7": names and counts.
inline std::string summary(const Plan& plan) {
  std::string out;
  for (const auto& resource : plan.resources) {
    out += (out.empty() ? "" : " ") + resource.name.str().substr(std::string("nvidia.com/").size()) + "=" +
           std::to_string(resource.devices.size());
  }
  return out;
}

inline const Resource* find(const Plan& plan, const std::string& name) {
  for (const auto& resource : plan.resources) {
    if (resource.name.str() == "nvidia.com/" + name) return &resource;
  }
  return nullptr;
}

inline std::string ids(const Plan& plan, const std::string& name) {
  std::string out;
  const auto* resource = find(plan, name);
  for (const auto& device : resource ? resource->devices : std::vector<Device>{}) {
    out += (out.empty() ? "" : " ") + device.id.str();
  }
  return out;
}

inline std::vector<std::string> notes(const Plan& plan) {
  std::vector<std::string> out;
  for (const auto& note : plan.notes) out.push_back(note.message);
  return out;
}
inline std::vector<std::string> remarks(const Plan& plan) {
  std::vector<std::string> out;
  for (const auto& remark : plan.remarks) out.push_back(remark.message);
  return out;
}
using Notes = std::vector<std::string>;

}  // namespace gpulet::partition::test

#include "agent/dra/offer_readings.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/device_id.h"
#include "base/json.h"
#include "base/text.h"
#include "dra/device_pool.h"
#include "partition/resources.h"
#include "partition/rules.h"

namespace gpulet::agent {
namespace {

// The GPU of a device "GPU-…", "MIG-…" or "GPU-…::3"; empty if the node has none.
DeviceUuid gpu_of_device(std::string_view id, const inventory::Snapshot& snapshot) {
  const DeviceUuid uuid{std::string(without_share(id))};
  for (const auto& gpu : snapshot.gpus) {
    if (gpu.uuid == uuid) return gpu.uuid;
    for (const auto& mig : gpu.mig_devices) {
      if (mig.uuid == uuid) return gpu.uuid;
    }
  }
  return {};
}

// A MIG device that is gone keeps the name of its GPU.
DeviceUuid gpu_of_record(const dra::RecordedDevice& held, const inventory::Snapshot& snapshot) {
  if (held.partition) return gpu_of_device(held.partition->gpu.str(), snapshot);
  if (auto gpu = gpu_of_device(held.uuid.str(), snapshot); !gpu.empty()) return gpu;
  const auto name = held.device.substr(0, held.device.find("-mig-"));
  const auto found = std::ranges::find_if(snapshot.gpus, [&](const inventory::Gpu& gpu) {
    return held.uuid.str().starts_with("MIG-") && dra::gpu_device_name(gpu) == name;
  });
  return found == snapshot.gpus.end() ? DeviceUuid() : found->uuid;
}

}  // namespace

std::map<DeviceUuid, std::string> plugin_holders(const std::vector<ContainerDevices>& containers,
                                                 const inventory::Snapshot& snapshot) {
  std::map<DeviceUuid, std::string> holders;
  for (const auto& container : containers) {
    for (const auto& [resource, ids] : container.devices) {
      if (resource.str() == dra::kDriverName) continue;
      for (const auto& id : ids) {
        const auto gpu = gpu_of_device(id.str(), snapshot);
        if (!gpu.empty()) holders.emplace(gpu, "Pod " + container.pod.name_space + "/" + container.pod.name);
      }
    }
  }
  return holders;
}

std::map<DeviceUuid, std::string> claim_holders(const std::map<std::string, dra::ClaimRecord>& records,
                                                const inventory::Snapshot& snapshot) {
  std::map<DeviceUuid, std::string> holders;
  for (const auto& [uid, record] : records) {
    const auto name = dra::claim_text(record);
    for (const auto& held : record.devices) {
      const auto gpu = held.admin_access ? DeviceUuid() : gpu_of_record(held, snapshot);
      if (!gpu.empty()) holders.emplace(gpu, "claim " + name);
    }
  }
  return holders;
}

std::map<DeviceUuid, std::string> withheld_gpus(const dra::DevicePool& pool,
                                                const partition::GpuOffers& offers) {
  std::map<DeviceUuid, std::string> withheld;
  for (const auto& offered : pool.devices) {
    const auto offer = partition::offer_of(offers, offered.gpu_uuid);
    if (offer.stage == partition::OfferStage::kDevicePlugin) {
      withheld.emplace(offered.gpu_uuid, "is offered by the device plugin");
    } else if (offer.stage == partition::OfferStage::kLeavingDevicePlugin ||
               offer.stage == partition::OfferStage::kEnteringClaims || offer.may_be_plugins) {
      withheld.emplace(offered.gpu_uuid, offer.reason);
    }
  }
  return withheld;
}

std::map<DeviceUuid, std::string> with_display_adapters(std::map<DeviceUuid, std::string> withdrawn,
                                                        const inventory::Snapshot& snapshot) {
  for (const auto& gpu : snapshot.gpus) {
    if (partition::is_display_adapter(gpu)) withdrawn.emplace(gpu.uuid, "is a display adapter");
  }
  return withdrawn;
}

std::map<DeviceUuid, config::ConsumableShares> shared_gpus(
    const inventory::Snapshot& snapshot, const config::Config& config,
    const std::map<std::string, std::string>& labels,
    const std::map<std::string, dra::ClaimRecord>& records) {
  std::map<DeviceUuid, config::ConsumableShares> shared;
  const auto selection = partition::select_rules(snapshot, config, labels);
  for (std::size_t i = 0; i < snapshot.gpus.size(); ++i) {
    const auto& shares = selection.shares[i];
    // Any record that a share cannot bear.
    if (shares && dra::find_holder(records, snapshot.gpus[i].uuid, "", true) == nullptr)
      shared.emplace(snapshot.gpus[i].uuid, *shares);
  }
  return shared;
}

std::map<DeviceUuid, dra::DynamicGpu> dynamic_gpus(const inventory::Snapshot& snapshot,
                                                   const config::Config& config,
                                                   const std::map<std::string, std::string>& labels,
                                                   const std::map<std::string, dra::ClaimRecord>& records) {
  std::map<DeviceUuid, dra::DynamicGpu> dynamic;
  const auto selection = partition::select_rules(snapshot, config, labels);
  for (std::size_t i = 0; i < snapshot.gpus.size(); ++i) {
    const auto& allowed = selection.dynamic_profiles[i];
    if (!allowed.empty() && snapshot.gpus[i].mig_enabled) dynamic[snapshot.gpus[i].uuid].allowed = allowed;
  }
  for (const auto& [uid, record] : records) {
    for (const auto& held : record.devices) {
      if (!held.partition || !held.partition->made) continue;
      const auto of_gpu = dynamic.find(held.partition->gpu);
      if (of_gpu != dynamic.end()) of_gpu->second.made.insert(held.partition->partition);
    }
  }
  return dynamic;
}

std::set<DeviceUuid> allocatable_gpus(const device_plugin::DevicesByResource& devices,
                                      const inventory::Snapshot& snapshot) {
  std::set<DeviceUuid> gpus;
  for (const auto& [resource, ids] : devices) {
    for (const auto& id : ids) {
      if (const auto gpu = gpu_of_device(id.str(), snapshot); !gpu.empty()) gpus.insert(gpu);
    }
  }
  return gpus;
}

ExpectedAllocatable expected_allocatable(const std::vector<device_plugin::OfferPtr>& offers,
                                         const inventory::Snapshot& snapshot, const config::Config& config,
                                         const std::map<std::string, std::string>& labels) {
  ExpectedAllocatable expected;
  for (const auto& resource :
       partition::plan_resources(snapshot, config, {.labels = labels, .withdrawn = {}}).resources)
    expected[resource.name.str()] = 0;
  for (const auto& offer : offers) {
    expected[offer->resource.name.str()] = static_cast<std::size_t>(std::ranges::count_if(
        offer->resource.devices, [](const auto& device) { return device.health.healthy; }));
  }
  return expected;
}

std::string node_behind(std::string_view node, const ExpectedAllocatable& expected) {
  const auto parsed = parse_json(node);
  const auto& status = json_member(parsed, "status");
  if (!status.is_object()) return "the Node has no status";
  const auto& allocatable = json_member(status, "allocatable");
  for (const auto& [resource, count] : expected) {
    const auto shown = json_text(json_member(allocatable, resource.c_str()));
    if (shown.empty()) continue;
    const auto number = text::parse_unsigned(shown);
    if (!number || *number > count)
      return "the Node shows " + resource + ": " + shown + ", expected " + std::to_string(count);
  }
  return "";
}

}  // namespace gpulet::agent

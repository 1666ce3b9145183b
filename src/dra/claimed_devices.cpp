#include "dra/claimed_devices.h"

#include <utility>

#include "dra/device_pool.h"

namespace gpulet::dra {
namespace {

class ResolvedPodResources final : public device_plugin::PodResources {
 public:
  ResolvedPodResources(std::unique_ptr<device_plugin::PodResources> inner,
                       std::function<inventory::SnapshotPtr()> snapshot)
      : snapshot_(std::move(snapshot)), inner_(std::move(inner)) {}

  void list_containers(std::function<void(Result<std::vector<ContainerDevices>>)> done) override {
    inner_->list_containers([this, done = std::move(done)](Result<std::vector<ContainerDevices>> containers) {
      const auto snapshot = containers ? snapshot_() : nullptr;
      if (snapshot) resolve_claimed_devices(*snapshot, *containers);
      done(std::move(containers));
    });
  }
  void list_allocatable(std::function<void(Result<device_plugin::DevicesByResource>)> done) override {
    inner_->list_allocatable(std::move(done));
  }

 private:
  std::function<inventory::SnapshotPtr()> snapshot_;
  std::unique_ptr<device_plugin::PodResources> inner_;  // last: no answer comes after its destruction
};

}  // namespace

std::optional<DeviceUuid> find_device_uuid(std::string_view name, const inventory::Snapshot& snapshot) {
  for (const auto& gpu : snapshot.gpus) {
    if (!has_device_name(gpu)) continue;
    const std::string whole = gpu_device_name(gpu);
    if (name == whole) return gpu.uuid;
    if (!name.starts_with(whole + "-")) continue;
    for (const auto& mig : gpu.mig_devices) {
      if (mig.gpu_instance_profile && name == mig_device_name(gpu, mig)) return mig.uuid;
    }
  }
  return std::nullopt;
}

void resolve_claimed_devices(const inventory::Snapshot& snapshot, std::vector<ContainerDevices>& containers) {
  static const ResourceName kDriver{std::string(kDriverName)};
  for (auto& container : containers) {
    const auto claimed = container.devices.find(kDriver);
    if (claimed == container.devices.end()) continue;
    for (auto& id : claimed->second) {
      if (const auto uuid = find_device_uuid(id.str(), snapshot)) id = DeviceId(uuid->str());
    }
  }
}

std::unique_ptr<device_plugin::PodResources> with_claimed_devices(
    std::unique_ptr<device_plugin::PodResources> inner, std::function<inventory::SnapshotPtr()> snapshot) {
  return std::make_unique<ResolvedPodResources>(std::move(inner), std::move(snapshot));
}

}  // namespace gpulet::dra

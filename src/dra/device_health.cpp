#include "dra/device_health.h"

#include <utility>

#include "k8s/objects.h"

namespace gpulet::dra {
namespace {

DeviceCondition condition_of(health::Severity severity, bool is_released) {
  switch (severity) {
    case health::Severity::kHealthy:
    case health::Severity::kDegraded:
    case health::Severity::kCordoned:
      // Nothing shows that it works now.
      return is_released ? DeviceCondition::kUnknown : DeviceCondition::kHealthy;
    case health::Severity::kUnmonitored:
      return DeviceCondition::kUnknown;
    case health::Severity::kWithdrawn:
    case health::Severity::kLost:
      break;
  }
  return DeviceCondition::kUnhealthy;
}

DeviceHealth judge_device(const std::string& name, const health::DeviceView& device,
                          const health::HealthView& view) {
  const bool is_released = view.release.has_value();
  const auto severity =
      is_released ? health::severity_before_release(device.status) : health::severity_of(device.status);
  DeviceHealth judged{name, condition_of(severity, is_released)};
  if (severity == health::Severity::kHealthy) return judged;
  judged.message = judged.condition == DeviceCondition::kUnknown && is_released
                       ? std::string(health::kDriverReleased) + ": " + view.release->reason
                       : health::device_health_text(device);
  judged.message = k8s::truncate_utf8(std::move(judged.message), kMaxHealthMessageBytes);
  return judged;
}

}  // namespace

std::vector<DeviceHealth> make_health_report(const DevicePool& pool,
                                             const std::map<std::string, ClaimRecord>& records,
                                             const health::HealthView& view,
                                             const std::map<DeviceUuid, std::string>& unserved) {
  std::map<std::string, DeviceUuid> named;
  for (const auto& [uid, record] : records) {
    for (const auto& held : record.devices) named.insert_or_assign(held.device, held.uuid);
  }
  std::map<std::string, DeviceUuid> gpus;  // of MIG devices, by name
  for (const auto& offered : pool.devices) {
    const auto& uuid = named.emplace(offered.device.name, offered.uuid).first->second;
    if (uuid == offered.uuid || offered.partition) gpus.emplace(offered.device.name, offered.gpu_uuid);
  }
  std::map<DeviceUuid, const health::DeviceView*> viewed;
  for (const auto& device : view.devices) {
    if (!device.uuid.empty()) viewed.emplace(device.uuid, &device);
  }
  std::vector<DeviceHealth> report;
  for (const auto& [name, uuid] : named) {
    auto found = viewed.find(uuid);
    // The state machine learns of a new MIG device after the inventory does.
    if (const auto gpu = gpus.find(name); found == viewed.end() && gpu != gpus.end()) {
      found = viewed.find(gpu->second);
    }
    report.push_back(found == viewed.end() ? DeviceHealth{name, DeviceCondition::kUnknown,
                                                          uuid.str() + " is not on this node now"}
                                           : judge_device(name, *found->second, view));
    const auto reason = unserved.find(uuid);
    if (reason == unserved.end() || found == viewed.end() || view.release) continue;
    auto& judged = report.back();
    if (judged.condition == DeviceCondition::kUnhealthy) continue;
    judged = {name, DeviceCondition::kUnhealthy, k8s::truncate_utf8(reason->second, kMaxHealthMessageBytes)};
  }
  return report;
}

}  // namespace gpulet::dra

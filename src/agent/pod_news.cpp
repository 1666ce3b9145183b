#include "agent/pod_news.h"

#include <algorithm>
#include <set>

#include "health/telling.h"

namespace gpulet::agent {
namespace {

using health::DeviceView;
using health::Severity;

std::string reason_of(Severity severity) {
  return severity == Severity::kDegraded ? "GpuDegraded" : "GpuFault";
}

// Those that the Pod holds and that have a fault; each once.
std::vector<const DeviceView*> faulty(const health::View& view, const HeldPod& held) {
  std::vector<const DeviceView*> devices;
  for (const auto& scope : held.pod.devices) {
    const auto* device = health::standing_for(view, scope);
    if (device && health::told(*device) && std::ranges::count(devices, device) == 0)
      devices.push_back(device);
  }
  return devices;
}

}  // namespace

void PodNews::update(const health::View& view, const std::vector<HeldPod>& pods, PodNewsWants wants) {
  std::set<cluster::PodRef> there;
  for (const auto& held : pods) {
    const cluster::PodRef pod{held.pod.name_space, held.pod.name, held.pod.uid};
    there.insert(pod);
    tell(pod, view, held, wants);
  }
  std::erase_if(told_, [&](const auto& entry) { return !there.contains(entry.first); });
  std::erase_if(noted_, [&](const auto& pod) {
    if (there.contains(pod)) return false;
    ports_.gone(pod);
    return true;
  });
}

void PodNews::tell(const cluster::PodRef& pod, const health::View& view, const HeldPod& held,
                   PodNewsWants wants) {
  const auto devices = faulty(view, held);
  const bool known = told_.contains(pod);
  if (devices.empty() && !known && !held.note) return;
  Told& told = told_[pod];
  if (!known) told.note = held.note;
  std::map<health::Scope, std::string> now;
  for (const auto* device : devices) {
    const std::string text = health::device_news(*device);
    now[device->scope] = text;
    const auto before = told.devices.find(device->scope);
    const bool same = before != told.devices.end() && before->second == text;
    if (!same && wants.events) {
      ports_.event({.warning = true,
                    .reason = reason_of(health::severity_of(device->standing)),
                    .message = text,
                    .pod = pod});
    }
  }
  for (const auto& [scope, text] : told.devices) {
    const auto* device = now.contains(scope) ? nullptr : health::standing_for(view, scope);
    if (device && wants.events) {
      ports_.event(
          {.warning = false, .reason = "GpuRecovered", .message = health::device_news(*device), .pod = pod});
    }
  }
  told.devices = std::move(now);
  std::optional<std::string> note;
  if (wants.notes && !devices.empty()) note = health::devices_news(devices);
  if (told.note != note) {
    noted_.insert(pod);
    ports_.note(pod, note);
  }
  told.note = std::move(note);
  if (told.devices.empty() && !told.note) told_.erase(pod);
}

}  // namespace gpulet::agent

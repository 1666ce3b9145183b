#include "health/telling.h"

#include <algorithm>

namespace gpulet::health {
namespace {

constexpr std::string_view kNames[] = {"healthy", "unmonitored", "degraded", "cordoned", "withdrawn", "lost"};
constexpr std::string_view kReasons[] = {"GpusHealthy", "NotMonitored", "GpuDegraded",
                                         "GpuCordoned", "GpuWithdrawn", "GpuLost"};

bool by_operator(const Fault& fault) { return fault.fault_class == FaultClass::kCordoned; }

// A MIG device says nothing that its GPU does not.
bool same_as_its_gpu(const View& view, const DeviceView& device) {
  if (device.scope.whole()) return false;
  const auto* gpu = view.find({device.scope.gpu});
  return gpu != nullptr && gpu->standing.state == device.standing.state &&
         gpu->standing.reason == device.standing.reason;
}

std::optional<bool> healthy(Severity severity) {
  if (severity == Severity::kUnmonitored) return std::nullopt;
  return severity < Severity::kWithdrawn;
}

std::string gpus(std::size_t count) { return std::to_string(count) + (count == 1 ? " GPU" : " GPUs"); }

}  // namespace

std::string_view name(Severity severity) { return kNames[static_cast<std::size_t>(severity)]; }

Severity severity_of(const Standing& standing) {
  if (standing.state == State::kUnmonitored) return Severity::kUnmonitored;
  if (standing.state == State::kHealthy) return Severity::kHealthy;
  if (standing.state == State::kDegraded) return Severity::kDegraded;
  const auto faults = [&](auto is) { return std::ranges::any_of(standing.faults, is); };
  const bool cordoned = faults(by_operator);
  if (cordoned && !faults([](const Fault& one) { return one.effect >= Effect::kDrain && !by_operator(one); }))
    return Severity::kCordoned;
  return standing.state == State::kLost ? Severity::kLost : Severity::kWithdrawn;
}

std::string device_news(const DeviceView& device) {
  std::string text = describe(device) + " is " + std::string(name(device.standing.state));
  if (!device.standing.reason.empty()) text += ": " + device.standing.reason;
  if (!device.standing.comes_back.empty()) text += "; comes back " + device.standing.comes_back;
  return text;
}

std::string devices_news(std::span<const DeviceView* const> devices) {
  std::string text;
  for (const auto* device : devices.first(std::min(devices.size(), kMaxToldDevices))) {
    text += (text.empty() ? "" : ". ") + device_news(*device);
  }
  if (devices.size() > kMaxToldDevices) {
    text += ". " + std::to_string(devices.size() - kMaxToldDevices) + " more";
  }
  return text;
}

NodeNews node_news(const View& view) {
  if (view.devices.empty()) return {Severity::kUnmonitored, std::nullopt, "NoGpu", "no GPU is known"};
  NodeNews news;
  std::vector<const DeviceView*> worst_first;
  std::size_t count = 0;
  for (const auto& device : view.devices) {
    if (device.scope.whole()) ++count;
    news.severity = std::max(news.severity, severity_of(device.standing));
    if (told(device) && !same_as_its_gpu(view, device)) worst_first.push_back(&device);
  }
  std::ranges::stable_sort(worst_first, std::greater(),
                           [](const DeviceView* device) { return severity_of(device->standing); });
  news.healthy = healthy(news.severity);
  news.reason = kReasons[static_cast<std::size_t>(news.severity)];
  news.message = devices_news(worst_first);
  if (news.severity == Severity::kHealthy) news.message = gpus(count) + " without a fault";
  if (news.severity == Severity::kUnmonitored) {
    news.message = "no source would tell of a fault of some of " + gpus(count);
  }
  return news;
}

const DeviceView* standing_for(const View& view, const Scope& held) {
  const auto* device = view.find(held);
  return device != nullptr ? device : view.find({held.gpu});
}

}  // namespace gpulet::health

#include "agent/health_words.h"

#include <algorithm>
#include <optional>

namespace gpulet::agent {
namespace {

using health::Change;
using health::State;
using Severity = Reporter::Severity;

bool same_fate(const Change& a, const Change& b) {
  return a.before.state == b.before.state && a.after.state == b.after.state &&
         a.after.reason == b.after.reason;
}

// A MIG device that only shares what is said of its GPU.
bool said_of_its_gpu(const Change& change, const std::vector<Change>& changes) {
  if (change.device.whole()) return false;
  return std::ranges::any_of(changes, [&](const Change& other) {
    return other.device.whole() && other.device.gpu == change.device.gpu && same_fate(other, change);
  });
}

// Withdrawn as before and by the same fault, which is only said in other words: a call that has hung longer.
bool only_words(const Change& change) {
  if (change.before.state != change.after.state) return false;
  const auto& before = change.before.faults;
  const auto& after = change.after.faults;
  return !before.empty() && !after.empty() && before.front().fault_class == after.front().fault_class &&
         before.front().code == after.front().code;
}

// Of a device that is not offered after the change.
HealthNews withdrawn_news(const std::string& device, const Change& change) {
  const auto& after = change.after;
  if (after.state == State::kRecovering) {
    return {Severity::kNormal, "GPURecovering",
            device + " is recovering from " + after.reason + ": offered again " + after.comes_back,
            change.device};
  }
  if (offered(change.before.state)) {
    return {Severity::kWarning, "GPUUnhealthy", device + " is withdrawn: " + after.reason, change.device,
            true};
  }
  return {Severity::kWarning, "GPUHealthChanged",
          device + " stays withdrawn, " + std::string(name(after.state)) + ": " + after.reason,
          change.device};
}

std::optional<HealthNews> offered_news(const std::string& device, const Change& change) {
  const auto& after = change.after;
  const bool back = !offered(change.before.state);
  if (after.state == State::kDegraded) {
    return HealthNews{Severity::kWarning, "GPUDegraded",
                      device + (back ? " is offered again, degraded: " : " is degraded: ") + after.reason,
                      change.device};
  }
  if (back) {
    return HealthNews{Severity::kNormal, "GPUHealthy", device + " is healthy again and offered",
                      change.device};
  }
  if (after.state == State::kUnmonitored) {
    return HealthNews{Severity::kWarning, "GPUUnmonitored",
                      device + " is offered, and nothing would tell of a fault", change.device};
  }
  if (change.before.state == State::kUnmonitored) return std::nullopt;
  return HealthNews{Severity::kNormal, "GPUHealthy", device + " is healthy again", change.device};
}

}  // namespace

std::vector<HealthNews> health_news(const health::View& view, const std::vector<Change>& changes) {
  std::vector<HealthNews> news;
  for (const auto& change : changes) {
    const auto* device = view.find(change.device);
    if (device == nullptr || !device->gpu_index || said_of_its_gpu(change, changes)) continue;
    const auto words = describe(*device);
    if (!offered(change.after.state)) {
      if (only_words(change)) continue;
      news.push_back(withdrawn_news(words, change));
    } else if (auto said = offered_news(words, change)) {
      news.push_back(std::move(*said));
    }
  }
  return news;
}

}  // namespace gpulet::agent

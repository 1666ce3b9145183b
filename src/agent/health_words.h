// What is said of the devices' changes, in the log and as events of the node: one line a change, and one for
// a GPU whose MIG devices all share its fate. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/ports.h"
#include "health/state.h"
#include "health/view.h"

namespace gpulet::agent {

struct HealthNews {
  Reporter::Severity severity = Reporter::Severity::kNormal;
  // GPUUnhealthy: withdrawn. GPUHealthChanged: withdrawn still, for another reason. GPURecovering: proved,
  // its checks are running. GPUHealthy: offered again. GPUDegraded: offered, and flagged. GPUUnmonitored.
  std::string_view reason;
  std::string message;
  health::Scope device;
  bool names_pods = false;  // who holds it belongs to it
};
// Nothing for devices that are no longer in the node, and nothing for one whose first sources have spoken.
std::vector<HealthNews> health_news(const health::View& view, const std::vector<health::Change>& changes);

}  // namespace gpulet::agent

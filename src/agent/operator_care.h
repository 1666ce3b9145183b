// The operator's hand on the running agent: the report that `gpulet health` reads, the cordons that `gpulet
// cordon` writes, and the lock by which both know that an agent lives. Places come from the config, and a
// change of one is a step like any other. Loop's thread only.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "agent/cordon_care.h"
#include "agent/health_report.h"
#include "agent/ports.h"
#include "base/backoff.h"
#include "base/loop.h"
#include "base/presence.h"
#include "health/view.h"

namespace gpulet::agent {

// A lock that another agent holds, or that cannot be made, is tried again within these.
inline constexpr BackoffLimits kPresenceBackoff{std::chrono::seconds(1), std::chrono::seconds(10)};

class OperatorCare {
 public:
  // `take` brings a wish to the agent (Agent::take). `loop` and `reporter` outlive it.
  OperatorCare(Loop& loop, Reporter& reporter, std::function<void(const health::Evidence&)> take,
               std::uint64_t seed);
  OperatorCare(const OperatorCare&) = delete;

  // gpulet.stateDir and gpulet.healthFile. Without a folder nothing is locked and no cordon counts; without a
  // file there is no report.
  void apply(const std::string& state_dir, const std::string& health_file);
  // How the devices stand now: of every round that changed it.
  void on_health(const health::ViewPtr& view);

 private:
  void hold();

  Loop& loop_;
  Reporter& reporter_;
  std::function<void(const health::Evidence&)> take_;
  std::uint64_t seed_;
  std::optional<std::string> state_dir_, health_file_;  // as applied
  health::ViewPtr view_;
  std::optional<HealthReport> report_;
  std::optional<CordonCare> cordons_;
  std::optional<Presence> presence_;
  Backoff backoff_;
  bool told_ = false;
  Subscription again_;
};

}  // namespace gpulet::agent

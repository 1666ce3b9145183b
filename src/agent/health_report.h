// The file that `gpulet health` reads (health/report.h), written as devices' standings change: at once, and
// in a storm of changes so often as kReportPause allows, the newest last. One that cannot be written is
// said once and tried again; nothing waits for it. Loop's thread only.
#pragma once

#include <string>

#include "agent/ports.h"
#include "base/backoff.h"
#include "base/loop.h"
#include "health/view.h"

namespace gpulet::agent {

inline constexpr Duration kReportPause = std::chrono::milliseconds(100);
inline constexpr BackoffLimits kReportBackoff{std::chrono::seconds(1), std::chrono::minutes(1)};

class HealthReport {
 public:
  // `path` empty: nothing is written. `loop` and `reporter` outlive it.
  HealthReport(Loop& loop, Reporter& reporter, std::string path, std::uint64_t seed);
  // Writes what it has not written yet.
  ~HealthReport();
  HealthReport(const HealthReport&) = delete;

  void on_health(const health::ViewPtr& view);

 private:
  void write();

  Loop& loop_;
  Reporter& reporter_;
  std::string path_;
  health::ViewPtr waiting_;  // not on disk yet
  Backoff backoff_;
  bool failing_ = false;
  Subscription next_;  // the next writing, or the pause after the last
};

}  // namespace gpulet::agent

// For tests: records reported events.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "agent/node/ports.h"

namespace gpulet::agent {

class RecordingReporter final : public Reporter {
 public:
  void report_event(Severity, std::string_view reason, const std::string& message) override {
    {
      const std::lock_guard lock(mutex_);
      reasons_.emplace_back(reason);
      texts_.push_back(std::string(reason) + ": " + message);
    }
    if (changed) changed();
  }
  std::vector<std::string> reasons() const {
    const std::lock_guard lock(mutex_);
    return reasons_;
  }
  // "REASON: MESSAGE"
  std::vector<std::string> reported_texts() const {
    const std::lock_guard lock(mutex_);
    return texts_;
  }
  std::function<void()> changed;  // called after each event

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> reasons_, texts_;
};

}  // namespace gpulet::agent

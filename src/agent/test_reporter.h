// For tests: what an agent's part has reported.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "agent/reporter.h"

namespace gpulet::agent {

class Told final : public Reporter {
 public:
  void event(Severity, std::string_view reason, const std::string& message) override {
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
  std::vector<std::string> texts() const {
    const std::lock_guard lock(mutex_);
    return texts_;
  }
  std::function<void()> changed;  // runs after each

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> reasons_, texts_;
};

}  // namespace gpulet::agent

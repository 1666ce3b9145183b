// Keeps what Pods and namespaces have used (metrics/usage_record.h) over restarts of the agent: in a file of
// the state directory, written at a slow pace after a Pod has held or used a GPU, and at the end. Loop's
// thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "metrics/aggregator.h"
#include "metrics/usage_record.h"

namespace gpulet::agent {

// Its name in gpulet.stateDir.
inline constexpr const char* kUsageFile = "usage";
// What a file that cannot be used is renamed to, beside it.
inline constexpr const char* kBrokenUsageSuffix = ".broken";
// From the first change to its write; what a killed agent loses at most.
inline constexpr Duration kUsageSaveInterval = std::chrono::minutes(1);

class UsageStore {
 public:
  // `boot_id`: of the energy counters (health::read_boot_id); empty: unknown.
  UsageStore(Loop& loop, std::string boot_id, Duration interval = kUsageSaveInterval);
  ~UsageStore();
  UsageStore(const UsageStore&) = delete;

  // Where to write from now on; an empty directory: nowhere.
  void set_state_dir(const std::string& directory);
  // Restores `sums` before its first sample: with those of the last, or the file's. `sums` outlives this, or
  // the next detach().
  void attach(metrics::Aggregator& sums);
  void detach();
  // After each sample.
  void save_if_changed();
  // When the sums began; absent before the first attach().
  std::optional<WallTime> since() const;

 private:
  metrics::UsageRecord load_record();
  void update_record();
  void save();
  void report_status(const Status& status);

  Loop& loop_;
  const std::string boot_id_;
  const Duration interval_;
  std::string path_;
  std::optional<metrics::UsageRecord> record_;  // as last read, written or detached
  metrics::Aggregator* sums_ = nullptr;
  std::uint64_t seen_revision_ = 0;
  bool is_changed_ = false;  // since the last write
  bool has_failed_ = false;  // the last write
  Subscription timer_;
  std::shared_ptr<LoopRelay> relay_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent

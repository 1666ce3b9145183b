// Sets the power limit and the clocks of each GPU as they are to be, and restores what was there before. For
// each GPU: reads, decides (power_record.h), writes the record, sets, and reads back. Nothing is polled: it
// looks at a GPU when its target differs or there is another snapshot, and again after a failure.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/node/ports.h"
#include "agent/observe/power_status.h"
#include "agent/power/power_record.h"
#include "base/loop.h"

namespace gpulet::agent {

// Of the Event about a value that is not set, and about another program's.
inline constexpr const char* kPowerReason = "GpuPowerLimit";

// After what the driver or the record's file has failed.
inline constexpr BackoffLimits kPowerRetry = {std::chrono::seconds(1), std::chrono::minutes(5)};

struct PowerPorts {
  Reporter& reporter;
  Loop& loop;
  std::function<Duration()> call_timeout;  // of a call of the driver
  // As read_power() and write_power().
  std::function<void(const DeviceUuid&, Duration limit, std::function<void(Result<PowerReading>)>)> read;
  std::function<void(const DeviceUuid&, const PowerWrites&, Duration limit,
                     std::function<void(Result<PowerWritten>)>)>
      write;
  // A value that the Pods of the GPU ask for does not count. May be called again with the same.
  std::function<void(const DeviceUuid&, const std::string& problem)> on_pod_problem;
};

// Loop's thread only. Does not block, but for small files.
class PowerController {
 public:
  explicit PowerController(PowerPorts ports) : ports_(std::move(ports)) {}
  PowerController(const PowerController&) = delete;

  // Reads the records that an earlier agent left there; before the first set_targets(). Empty: nothing is
  // kept. A later change moves them. A file that cannot be read is renamed (kBrokenPowerSuffix).
  void set_state_dir(const std::string& directory);

  // The GPUs of `snapshot` that are to have something; all others that have a record are restored, but for
  // `kept`, which keep what they have. Calls that are in progress end with the driver: drop_calls().
  void set_targets(std::map<DeviceUuid, partition::PowerTarget> targets,
                   const inventory::SnapshotPtr& snapshot, const std::set<DeviceUuid>& kept = {});
  void drop_calls();
  // Restores every GPU by calls of at most `limit` each, then calls `done` once; a call that fails leaves its
  // record.
  void restore_all(Duration limit, std::function<void()> done);
  // Drops the records of GPUs that are not in `snapshot`, if that has read every GPU.
  void drop_absent_gpus(const inventory::Snapshot& snapshot);
  bool has_work() const { return !gpus_.empty(); }
  std::size_t gpu_count() const { return gpus_.size(); }

  // Of the GPUs with a target or a problem, by UUID.
  std::vector<GpuPowerStatus> statuses() const;
  // Why GPUs could not be read.
  std::vector<std::string> read_errors() const;

 private:
  struct GpuEntry {
    std::optional<partition::PowerTarget> target;
    PowerRecord record;
    std::optional<PowerApplied> applied;
    std::optional<GpuPowerStatus> status;
    std::string read_error;
    bool is_busy = false, is_due = false, has_failed = false;
    Subscription retry;
    std::optional<Backoff> backoff;
  };

  void update_gpu(const DeviceUuid& gpu);
  void on_no_reading(const DeviceUuid& gpu, const Error& error);
  void on_reading(const DeviceUuid& gpu, const Result<PowerReading>& reading);
  // What was decided about a GPU, while it is set.
  struct Attempt {
    PowerStep step{};
    PowerRecord before{};
    PowerApplied applied{};
    GpuPowerStatus status{};
  };
  void on_written(Attempt attempt, const Result<PowerWritten>& written);
  void use_limit(Attempt& attempt, const PowerWritten& written);
  void use_clocks(Attempt& attempt, const Status& result, const std::optional<ClockWrite>& write,
                  const std::string& kind, bool PowerRecord::* flag,
                  std::optional<config::ClockRange>& last) const;
  void finish_gpu(const DeviceUuid& gpu);
  void finish_restore();
  void set_status(GpuEntry& entry, GpuPowerStatus status);
  Status save_records();
  std::string gpu_name(const DeviceUuid& gpu) const;

  PowerPorts ports_;
  std::string path_;  // of the file; empty: none
  std::map<DeviceUuid, GpuEntry> gpus_;
  inventory::SnapshotPtr snapshot_;
  std::function<void()> restored_;
  std::optional<Duration> restore_limit_;  // of a call, since restore_all()
  unsigned round_ = 0;                     // of drop_calls()
  bool has_state_dir_ = false, is_record_lost_ = false;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent

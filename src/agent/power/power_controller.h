// Sets the power limit and the clocks of each GPU as they are to be, and restores what was there before. For
// each GPU: reads, decides (power_record.h), writes the record, sets, and reads back. Nothing is polled: it
// looks at a GPU when its target differs or there is another snapshot.
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

struct PowerPorts {
  Reporter& reporter;
  std::function<void(const DeviceUuid&, std::function<void(Result<PowerReading>)>)> read;
  std::function<void(const DeviceUuid&, const PowerWrites&, std::function<void(Result<PowerWritten>)>)> write;
};

// Loop's thread only. Does not block, but for small files.
class PowerController {
 public:
  explicit PowerController(PowerPorts ports) : ports_(std::move(ports)) {}
  PowerController(const PowerController&) = delete;

  // Reads the records that an earlier agent left there; before the first set_targets(). Empty: nothing is
  // kept. A later change moves them.
  void set_state_dir(const std::string& directory);

  // The GPUs of `snapshot` that are to have something; all others that have a record are restored. Calls that
  // are in progress end with the driver: drop_calls().
  void set_targets(std::map<DeviceUuid, partition::PowerTarget> targets,
                   const inventory::SnapshotPtr& snapshot);
  void drop_calls();
  // Restores every GPU, then calls `done` once; a call that fails leaves its record.
  void restore_all(std::function<void()> done);
  bool has_work() const { return !gpus_.empty(); }

  // Of the GPUs with a target or a problem, by UUID.
  std::vector<GpuPowerStatus> statuses() const;

 private:
  struct GpuEntry {
    std::optional<partition::PowerTarget> target;
    PowerRecord record;
    std::optional<PowerApplied> applied;
    std::optional<GpuPowerStatus> status;
    bool is_busy = false, is_due = false;
  };

  void update_gpu(const DeviceUuid& gpu);
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
  void set_status(GpuEntry& entry, GpuPowerStatus status);
  Status save_records();
  std::string gpu_name(const DeviceUuid& gpu) const;

  PowerPorts ports_;
  std::string path_;  // of the file; empty: none
  std::map<DeviceUuid, GpuEntry> gpus_;
  inventory::SnapshotPtr snapshot_;
  std::function<void()> restored_;
  unsigned round_ = 0;  // of drop_calls()
  bool has_state_dir_ = false;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent

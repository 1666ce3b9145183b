// The health of the node's devices, kept: feeds the Machine (health/machine.h) with what events, polls, the
// kernel's log and an operator say, asks the driver when its policy wants an answer, remembers what outlives
// the process, and publishes every device's standing.
//
// A round is one piece of evidence, or all that one answer brought. A round that changes nothing costs a few
// microseconds and tells nobody: ten thousand XIDs a second of what is known already are no ten thousand
// plans. Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/health_memory.h"
#include "agent/health_polls.h"
#include "agent/ports.h"
#include "base/loop.h"
#include "config/config.h"
#include "health/kmsg.h"
#include "health/machine.h"
#include "health/view.h"

namespace gpulet::agent {

// What a round changed, each device once.
using HealthChanges = std::vector<health::Change>;

struct HealthPorts {
  Loop& loop;
  Driver& driver;
  // What outlives the process; null: nothing does. Outlives the HealthCare.
  HealthMemory* memory = nullptr;
  // Standings differ; without changes of a state: the first reading is judged, or what can be asked about a
  // device, its faults beside the worst, or when it is due differ. At once, within the round. May be empty.
  std::function<void(const health::ViewPtr&, const HealthChanges&)> changed;
  // The driver answers otherwise than the last reading has it (a GPU that was lost or is back): read anew.
  std::function<void()> reread;
};

class HealthCare {
 public:
  HealthCare(HealthPorts ports, const config::Config& config);
  ~HealthCare();
  HealthCare(const HealthCare&) = delete;

  // A new config: what it says counts from the next evidence on, a shorter interval at once. As on_snapshot.
  bool apply(const config::Config& config);

  // What the driver says there is. Whether `changed` was told of changes, or for the first time.
  bool on_snapshot(const inventory::Snapshot& snapshot);
  // The driver cannot be asked for now: polls wait for the next snapshot.
  void driver_away();

  // One piece of evidence of anybody's: an event, an operator's wish, ResetDone. Evidence of a time before
  // its GPU's last is taken as the Machine takes it.
  void take(const health::Evidence& evidence);
  // A line of the kernel's log.
  void take(const health::FaultLine& line);
  // Whether the kernel's log is read: nullopt, or why not.
  void kernel_log(std::optional<std::string> absent);

  // The snapshot with each device's Health (Machine::judge).
  inventory::Snapshot judge(inventory::Snapshot snapshot) const {
    return machine_.judge(std::move(snapshot));
  }
  const health::Policy& policy() const { return machine_.policy(); }
  // Null before the first snapshot.
  health::ViewPtr view() const { return view_; }

 private:
  HealthChanges tell_sources(const DeviceUuid& gpu);
  void on_answer(const Driver::Evidence& evidence);
  void look_at(const DeviceUuid& gpu, const health::HandleReading& handle);
  // As on_snapshot.
  bool end_round(HealthChanges changes, bool tell_anyway = false);

  HealthPorts ports_;
  health::XidFilter filter_;
  health::Machine machine_;
  HealthPolls polls_;
  HealthKeeper keeper_;
  inventory::Snapshot snapshot_;          // the last, unjudged
  bool known_ = false;                    // there was one
  HealthChanges untold_;                  // of before
  std::map<DeviceUuid, bool> answering_;  // the last answer of each
  std::optional<health::SourceNotice> kernel_log_;
  health::ViewPtr view_;
  std::uint64_t told_revision_ = 0;  // the machine's, and its next_due(), when `changed` was last told
  std::optional<Time> told_due_;
};

}  // namespace gpulet::agent

// What breaks in a storm, and when: a plan is made from the seed, and carried out while an operation runs.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

#include "tests/storm/storm_node.h"

namespace gpulet::storm {

enum class Fault {
  kKillAgent,
  kKillListener,
  kRestartKubelet,  // killed; its sockets are removed by the next one, the checkpoint stays
  kResetKubelet,    // the same, and the checkpoint is lost
  kKillMps,
  kDiskFull,  // of the volume with everything that the agent writes
  kReadOnly,
  kIoError,
  kClockForward,   // by a day
  kClockBackward,  // by a day
  kNoDescriptors,  // in the agent
  kNoMemory,       // in the listener child
};
inline constexpr std::size_t kFaults = 12;
std::string_view fault_name(Fault fault);

// One fault. The times are drawn when it is planned, so that they depend on the seed alone.
struct FaultPlan {
  Fault fault;
  std::size_t step;      // of the operation
  milliseconds delay;    // from the step's begin
  milliseconds length;   // of what lasts
  milliseconds restart;  // until a killed process is started again
  unsigned spare;        // descriptors or KiB that are left
  bool stays = false;    // a jump of the clock without another one back
};
FaultPlan plan_fault(Fault fault, std::size_t step, std::mt19937_64& random);

class FaultInjector {
 public:
  explicit FaultInjector(StormNode& node) : node_(node) {}

  // Replaces the plan of an earlier operation, whose faults have been removed.
  void set_plan(std::vector<FaultPlan> plan);
  void begin_step(std::size_t step);
  // Injects and removes what is due.
  void update();
  // Injects what is left of this step: the step ends earlier than planned.
  void finish_step();
  // Removes all faults.
  void remove_faults();
  // What has been injected of the plan.
  std::vector<FaultPlan> injected() const;

 private:
  struct Planned {
    FaultPlan plan;
    std::optional<Clock::time_point> at;   // unset: its step has not begun
    std::optional<Clock::time_point> end;  // set while it is in force
    bool injected = false;
  };
  void inject(Planned& planned);
  void remove(Planned& planned);

  StormNode& node_;
  std::vector<Planned> planned_;
};

}  // namespace gpulet::storm

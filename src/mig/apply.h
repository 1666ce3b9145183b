// Applies a plan to one GPU, step by step. Nothing in use is destroyed, and either all steps are
// done or those done are rolled back.
//
// After a crash at any step, read the state and plan again (plan.h). Nothing is retried here: the
// caller decides when to retry.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "mig/hardware.h"
#include "mig/plan.h"

namespace gpulet::mig {

enum class Outcome {
  kDone,        // the GPU has the layout
  kNeedsReset,  // the new mode is pending: `in_use` says why; plan again when that is over
  kAsBefore,    // `error` has the cause; the GPU is unchanged
  kInBetween,   // `error`, and the rollback failed too: `rollback_error`
};
// "done", "needs-reset", "as-before", "in-between".
std::string_view outcome_name(Outcome outcome);

struct Report {
  Outcome outcome = Outcome::kAsBefore;
  // Steps done and steps rolled back, in order, for people: "destroyed 1g.10gb at 0".
  std::vector<std::string> steps_done, steps_undone;
  // Error of the step that failed; the message names the step. kFailedPrecondition: in use, no
  // room, or the GPU no longer matches the plan (plan again).
  std::optional<Error> error;
  std::optional<Error> rollback_error;  // the first failure of the rollback
  // kNeedsReset: a process, a monitor or an instance holds the GPU, which the driver resets once it is idle
  // and the mode is set again. Otherwise somebody else must reset it.
  bool in_use = false;
  std::vector<DeviceHolder> holders;  // with `in_use`: those that are known
};

// Refuses a blocked plan, and one that does not match the GPU's current state, before any change.
// Checks the holders again before each step that destroys something.
Report apply_plan(Hardware& hardware, const Plan& plan);

// Why a mode is pending: "in use by process 812 (nv-hostengine)", "in use by a process or a monitor", "the
// GPU must be reset".
std::string pending_mode_reason(bool in_use, const std::vector<DeviceHolder>& holders);

// One line: "done: destroyed 1g.10gb at 0; created 2g.20gb at 0-1".
std::string describe_report(const Report& report);

// Whether both have the same mode and the same profiles at the same placements; ids and UUIDs may
// differ.
bool same_layout(const State& a, const State& b);

}  // namespace gpulet::mig

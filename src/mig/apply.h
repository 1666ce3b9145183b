// Carries a plan out on one GPU, step by step, so that nothing in use is ever destroyed and no end leaves the
// GPU in a state that nobody asked for: all steps are done, or those done are taken back.
//
// Killed after any step and started anew, a fresh read and plan go on from there (plan.h). Nothing is tried
// twice in here: who calls decides when to try again.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "mig/plan.h"
#include "mig/state.h"

namespace gpulet::nvml {
class Session;
}

namespace gpulet::mig {

// One GPU to work on. A port, so that a test can fail or end at any of its calls, and so that who knows more
// holders than the driver (the kubelet's Pods) adds them. All calls may block as long as the driver does.
class Hardware {
 public:
  virtual ~Hardware() = default;
  virtual Result<State> read() = 0;
  // Who holds the GPU instance of that id, or the GPU outside MIG for nullopt, as State has it.
  virtual Result<std::vector<std::string>> holders(std::optional<unsigned> instance) = 0;
  // true: the mode is noted, and only a reset of the GPU brings it into force.
  virtual Result<bool> set_mode(bool enabled) = 0;
  virtual Status destroy_compute(unsigned instance, unsigned compute) = 0;
  virtual Status destroy_instance(unsigned instance) = 0;
  // Their ids. A compute instance without a profile id is looked for by its slices, as the driver tells
  // compute profiles only of an instance that is there.
  virtual Result<unsigned> create_instance(unsigned profile, const Placement& placement) = 0;
  virtual Result<unsigned> create_compute(unsigned instance, const NewCompute& compute) = 0;
};

// The GPU of that NVML index, as long as it has that UUID: kFailedPrecondition from every call once another
// GPU has taken its place. The session is held.
std::unique_ptr<Hardware> make_hardware(std::shared_ptr<const nvml::Session> session, unsigned index,
                                        DeviceUuid uuid, const std::string& proc_root = "/proc");

enum class Outcome {
  kDone,        // the layout is there
  kNeedsReset,  // the new mode waits for a reset of the GPU; plan again after it
  kAsBefore,    // `error` says why not; the GPU is as it was
  kInBetween,   // `error`, and not all could be taken back: `rollback_error`
};
// "done", "needs-reset", "as-before", "in-between".
std::string_view name(Outcome outcome);

struct Report {
  Outcome outcome = Outcome::kAsBefore;
  // What was done and then taken back, in order, for people: "destroyed 1g.10gb at 0".
  std::vector<std::string> done, undone;
  // Of the step that failed, which its message names. kFailedPrecondition: in use, no room, or the GPU is no
  // longer what the plan was made for (plan anew).
  std::optional<Error> error;
  std::optional<Error> rollback_error;  // the first of what could not be taken back
};

// A blocked plan and one that does not fit what the GPU has now are refused before anything is touched. Who
// holds an instance is asked again before each step that destroys in it.
Report apply(Hardware& hardware, const Plan& plan);

// One line: "done: destroyed 1g.10gb at 0; created 2g.20gb at 0-1".
std::string describe(const Report& report);

}  // namespace gpulet::mig

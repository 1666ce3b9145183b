// Back to the instances that a GPU had before a plan's steps, as far as the hardware allows. Made from what
// the GPU has now and not from what was done: a call that failed may have had its effect.
#pragma once

#include <string>
#include <vector>

#include "mig/apply.h"

namespace gpulet::mig {

// Whether both have the same mode and the same instances at the same places, by profiles; ids and UUIDs may
// differ.
bool same_layout(const State& a, const State& b);

// Destroys only what `plan` makes and `before` does not have, and nothing that somebody holds. Goes on past
// what fails, and fills report.undone and, with the first failure, report.rollback_error. Afterwards the
// outcome is kAsBefore or kInBetween.
void roll_back(Hardware& hardware, const State& before, const Plan& plan, Report& report);

}  // namespace gpulet::mig

// A layout's names as requests to a GPU's profiles, and what is said when they cannot be met.
#pragma once

#include <vector>

#include "base/result.h"
#include "mig/layout.h"
#include "mig/packing.h"
#include "mig/state.h"

namespace gpulet::mig {

// One for each GPU instance profile that the layout names. Errors: kInvalidArgument, a profile that the GPU
// does not have, or no compute instances of that size in it.
Result<std::vector<Request>> requests_of(const State& state, const Layout& layout);

// For a layout that no packing has: "... do not fit on GPU 0 (...); the nearest that does: ...".
// Precondition: requests_of has no error.
Error does_not_fit(const State& state, const Layout& layout);

}  // namespace gpulet::mig

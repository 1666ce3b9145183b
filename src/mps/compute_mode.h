// The compute mode of a GPU set by the driver's nvidia-smi, for who holds no driver session; NVIDIA's daemon
// does it so too.
#pragma once

#include "mps/daemon.h"

namespace gpulet::mps {

// Each call runs nvidia-smi, one after the other. Errors: those of ProgramCall. Not to be called when `loop`
// has gone; the calls under way end with the last copy of the function.
SetComputeMode compute_mode_by_nvidia_smi(Loop& loop, std::string driver_root,
                                          Duration limit = std::chrono::seconds(30));

}  // namespace gpulet::mps

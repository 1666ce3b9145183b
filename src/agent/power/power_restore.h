// Restores what an agent that was killed has left of power limits and clocks: for `gpulet cleanup`.
#pragma once

#include <string>
#include <vector>

#include "agent/driver/nvml_driver.h"
#include "agent/power/power_controller.h"
#include "base/result.h"

namespace gpulet::agent {

// Ports that call this driver, which outlives them.
PowerPorts make_power_ports(Reporter& reporter, const std::function<NvmlDriver*()>& driver, Loop& loop,
                            std::function<Duration()> call_timeout);

// Blocks. Does nothing without a record in `state_dir`, and then needs no driver. Returns the number of GPUs
// that were restored; the record of one that the driver no longer lists is dropped. Errors: those of the file
// and of opening the driver; kFailedPrecondition with the reasons of those that were not restored.
// Precondition: no agent runs.
Result<std::size_t> restore_recorded_power(const std::string& state_dir, NvmlDriverOptions options);

}  // namespace gpulet::agent

// One round of health polls of a device: what the driver answers, as evidence (health/evidence.h).
//
// Blocks in the driver for as long as that takes: call it on the driver's thread (NvmlDriver::about).
#pragma once

#include <vector>

#include "health/evidence.h"
#include "nvml/health.h"
#include "nvml/session.h"

namespace gpulet::agent {

// Of a GPU (`scope` is all of it): every source that NVML can be polled for, each once, all of the time
// `now`.
//  - A reading for each source that answered. First a HandleReading, which is that of the whole round.
//  - A SourceNotice for each that this GPU or driver does not have or that may not be asked, with why: also
//    in every round, as it costs nothing and the answer may change (MIG, ECC mode).
//  - Nothing for one whose call failed otherwise: it has not spoken, and is waited for. When every call
//    failed, the handle is silent.
//  - When the driver says that the GPU is lost, needs a reset, or that it has gone itself, only the
//    HandleReading that says so: a later call would say the same, or hang. So too (as lost) when the handle
//    is another card's than `scope` names.
// Of a MIG device: only its processes, as all else is the GPU's; of an error only what it says of the GPU.
std::vector<health::Evidence> poll_health(const nvml::Session& session, nvml::Device device,
                                          const health::Scope& scope, Time now);

// The same of the least that tells whether the driver answers for the GPU, and what it wants done with it.
std::vector<health::Evidence> ask_health(const nvml::Session& session, nvml::Device device,
                                         const DeviceUuid& gpu, Time now);

// What a question that failed as a whole says of the GPU.
health::HandleReading handle_of(const Error& error);

// The driver's words as a state. Unhealthy routes and a wrong configuration are a failure, too few links or
// no partition less so: the GPU works alone. Source: nvml.h, NVML_GPU_FABRIC_*.
health::FabricState fabric_state(const nvml::FabricHealth& fabric);

}  // namespace gpulet::agent

// Reads the health of a device from NVML as evidence (health/evidence/evidence.h). Blocks as long as the
// driver does: call it on the driver's thread.
#pragma once

#include <vector>

#include "health/evidence/evidence.h"
#include "nvml/health.h"
#include "nvml/session.h"

namespace gpulet::agent {

// Every NVML health source of a GPU, read once, with the time `now`:
// - First a HandleReading for the whole round, then a reading for each source that answered.
// - A SourceNotice for each source that this GPU or driver does not support or does not permit. It is
// repeated in every round, as the answer may change (MIG, ECC mode).
// - Nothing for a source whose call failed otherwise: the state machine waits for it. If every call failed,
// the handle is silent.
// - If the driver reports that the GPU is lost, needs a reset, or that the driver itself is unavailable: only
// that HandleReading, as further calls would fail alike or hang. The same (as lost) if the handle belongs to
// another card than `scope`.
// For a MIG device: only its processes, or an error that concerns the GPU.
std::vector<health::Evidence> read_health_evidence(const nvml::Session& session, nvml::Device device,
                                                   const health::Scope& scope, Time now);

// The minimal version: whether the driver answers for the GPU, and its recovery action.
std::vector<health::Evidence> read_liveness_evidence(const nvml::Session& session, nvml::Device device,
                                                     const DeviceUuid& gpu, Time now);

// The HandleReading for a poll that failed as a whole.
health::HandleReading handle_reading_of_error(const Error& error);

// Unhealthy routes and a wrong configuration are failures; too few links or no partition only degrade: the
// GPU works alone. Source: nvml.h, NVML_GPU_FABRIC_*.
health::FabricState fabric_state_of(const nvml::FabricHealth& fabric);

}  // namespace gpulet::agent

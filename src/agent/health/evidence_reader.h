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
// - A SourceNotice for each other source. It is transient where the value may come later, and then the state
// machine waits for it; else this GPU or driver does not have the value or does not permit it. It is repeated
// in every round, as the answer may change (MIG, ECC mode).
// - If any call reports that the GPU is lost or needs a reset, or the calls that find and identify the GPU
// fail: only that HandleReading, as further calls would fail alike or hang. The same (as lost) if the handle
// belongs to another card than `scope`. What each return code means: nvml/return_codes.h. For a MIG device:
// only its processes, or an error that concerns the GPU.
// `with_inforom`: also validates the InfoROM, which reads the card's flash memory.
std::vector<health::Evidence> read_health_evidence(const nvml::Session& session, nvml::Device device,
                                                   const health::Scope& scope, Time now,
                                                   bool with_inforom = true);

// The minimal version: whether the driver answers for the GPU, and its recovery action.
std::vector<health::Evidence> read_liveness_evidence(const nvml::Session& session, nvml::Device device,
                                                     const DeviceUuid& gpu, Time now);

// The HandleReading for a poll that failed as a whole.
health::HandleReading handle_reading_of_error(const Error& error);

// Unhealthy routes and a wrong configuration are failures; too few links or no partition only degrade: the
// GPU works alone. Source: nvml.h, NVML_GPU_FABRIC_*.
health::FabricState fabric_state_of(const nvml::FabricHealth& fabric);

}  // namespace gpulet::agent

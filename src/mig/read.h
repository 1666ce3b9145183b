// MIG of one GPU as the driver has it now, as a State to plan on.
//
// Blocking driver calls, a hundred or so: made on a thread that may wait for them (nvml/worker.h in the
// agent).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "mig/state.h"

namespace gpulet::nvml {
class Session;
}

namespace gpulet::mig {

// The state of the GPU of that NVML index. Holders are the processes on it, by pid, named after
// `proc_root`/PID/comm where that can be read ("process 4711 (python3)"): what the kubelet gave to Pods is
// for the caller to add. An instance that goes away while it is read is not there. A driver that does not
// tell processes has no holders; it still refuses to destroy what one holds. Errors: as nvml::Session's. A
// GPU without MIG is none: State::capable is false.
Result<State> read(const nvml::Session& session, unsigned index, const std::string& proc_root = "/proc");

// Only the holders: of the GPU instance of that id, or of the whole GPU for nullopt.
Result<std::vector<std::string>> read_holders(const nvml::Session& session, unsigned index,
                                              std::optional<unsigned> instance,
                                              const std::string& proc_root = "/proc");

}  // namespace gpulet::mig

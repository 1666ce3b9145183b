// The NVLinks of a GPU: their state and counters.
//
// Threads and errors are those of Session; kUnsupported also for a GPU without NVLink. A value that the GPU
// or the driver does not have is missing.
// Source: nvml.h.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "base/result.h"
#include "nvml/session.h"

namespace gpulet::nvml {

// Counters of one link, since the driver was loaded.
enum class LinkCounter {
  kTransmitted,  // KiB of data
  kReceived,
  // Up to NVLink 4.
  kReplayErrors,
  kRecoveryErrors,
  kCrcErrors,      // the next two together
  kCrcFlitErrors,  // of flow control
  kCrcDataErrors,
  // From NVLink 5 on.
  kTransmittedPackets,
  kTransmittedBytes,
  kReceivedPackets,
  kReceivedBytes,
  kMalformedPackets,
  kBufferOverruns,
  kReceiveErrors,
  kRemoteErrors,
  kGeneralErrors,
  kIntegrityErrors,
  kTransmitDiscards,
  kRecoveriesDone,
  kRecoveriesFailed,
  kRecoveries,
  kEffectiveErrors,
  kSymbolErrors,
};

struct NvLinkState {
  unsigned index = 0;
  bool up = false;
  friend bool operator==(const NvLinkState&, const NvLinkState&) = default;
};
struct NvLinkValues {
  bool up = false;
  std::map<LinkCounter, std::uint64_t> counters{};
};

class NvLinks {
 public:
  // `session` must outlive this object.
  NvLinks(const Session& session, Device gpu) : session_(session), gpu_(gpu) {}

  // The GPU's links by index, connected or not: a call for each.
  Result<std::vector<NvLinkState>> read_states() const;
  // The state and the counters of `links`, by index: one call, and one for each value that only an older
  // function returns. A link whose state the driver does not return is missing.
  Result<std::map<unsigned, NvLinkValues>> read_values(const std::vector<unsigned>& links,
                                                       const std::set<LinkCounter>& counters) const;

 private:
  void read_old_counters(unsigned link, const std::set<LinkCounter>& counters, NvLinkValues& values) const;

  const Session& session_;
  Device gpu_;
};

}  // namespace gpulet::nvml

// GPU performance monitoring: how busy the parts of a GPU or GPU instance were between two samples. Hopper
// and later; before that the same numbers need DCGM's own module.
//
// Threads and errors as Session's; kUnsupported where the GPU or the driver cannot.
// Source: nvml.h, "NVML GPM".
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/result.h"
#include "nvml/session.h"

namespace gpulet::nvml {

// Two samples must be at least so far apart.
inline constexpr std::chrono::milliseconds kGpmLeastInterval{100};

// NVML_GPM_METRIC_*. Percent, or MiB/s.
enum class GpmMetric : unsigned {
  kGraphics = 1,
  kSm = 2,
  kSmOccupancy = 3,
  kInteger = 4,
  kAnyTensor = 5,
  kDfmaTensor = 6,
  kHmmaTensor = 7,
  kImmaTensor = 9,
  kDram = 10,
  kFp64 = 11,
  kFp32 = 12,
  kFp16 = 13,
  kPcieTransmitted = 20,
  kPcieReceived = 21,
  kDecoder0 = 30,  // to 7
  kJpeg0 = 40,     // to 7
  kOfa0 = 50,
  kNvLinkReceived = 60,
  kNvLinkTransmitted = 61,
};

// What the monitors said at one time. Keeps the library that made it; later Sessions refuse it.
class GpmSample {
 public:
  GpmSample() = default;
  bool valid() const { return raw_ != nullptr; }

 private:
  friend class Gpm;
  std::shared_ptr<void> raw_;
  std::uint64_t generation_ = 0;
  std::optional<unsigned> gpu_instance_;
};

class Gpm {
 public:
  // `session` outlives it.
  Gpm(const Session& session, Device gpu) : session_(session), gpu_(gpu) {}

  Result<bool> supported() const;
  // Of the GPU, or of one of its GPU instances.
  Result<GpmSample> sample(std::optional<unsigned> gpu_instance = std::nullopt) const;
  // What the driver has of `metrics`, in one call, for the time between: those that it does not have, or that
  // are no number, are not in the answer. kInvalidArgument for samples of different parts.
  Result<std::map<GpmMetric, double>> between(const GpmSample& earlier, const GpmSample& later,
                                              const std::set<GpmMetric>& metrics) const;

 private:
  const Session& session_;
  Device gpu_;
};

}  // namespace gpulet::nvml

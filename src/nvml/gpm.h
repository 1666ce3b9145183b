// GPU performance monitoring: utilisation of the units of a GPU or GPU instance between two
// samples. Hopper and later; on older GPUs the same figures need DCGM's own module.
//
// Threads and errors are those of Session; kUnsupported where the GPU or the driver cannot do it.
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

// Minimum time between two samples.
inline constexpr std::chrono::milliseconds kGpmMinInterval{100};

// NVML_GPM_METRIC_*. In percent or MiB/s. Also those of link_metrics().
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
  kDecoder0 = 30,  // up to 7
  kJpeg0 = 40,     // up to 7
  kOfa0 = 50,
  kNvLinkReceived = 60,
  kNvLinkTransmitted = 61,
};
// The traffic of one link, below kMaxNvLinks.
struct LinkMetrics {
  GpmMetric received, transmitted;
};
constexpr LinkMetrics link_metrics(unsigned link) {
  constexpr unsigned kFirst = 62, kNineteenth = 212, kLinksOfFirst = 18;
  const unsigned id = link < kLinksOfFirst ? kFirst + 2 * link : kNineteenth + 2 * (link - kLinksOfFirst);
  return {static_cast<GpmMetric>(id), static_cast<GpmMetric>(id + 1)};
}

// One reading of the monitors. Keeps its library loaded; later Sessions refuse it.
class GpmSample {
 public:
  GpmSample() = default;
  bool has_sample() const { return raw_ != nullptr; }

 private:
  friend class Gpm;
  std::shared_ptr<void> raw_;
  std::uint64_t generation_ = 0;
  std::optional<unsigned> gpu_instance_;
};

class Gpm {
 public:
  // `session` must outlive this object.
  Gpm(const Session& session, Device gpu) : session_(session), gpu_(gpu) {}

  Result<bool> is_supported() const;
  // Samples the GPU, or one of its GPU instances.
  Result<GpmSample> take_sample(std::optional<unsigned> gpu_instance = std::nullopt) const;
  // Computes `metrics` between the two samples, in one call. Metrics that the driver does not have,
  // or that are not a number, are missing from the result. kInvalidArgument for samples of
  // different devices.
  Result<std::map<GpmMetric, double>> compute_metrics(const GpmSample& earlier, const GpmSample& later,
                                                      const std::set<GpmMetric>& metrics) const;

 private:
  const Session& session_;
  Device gpu_;
};

}  // namespace gpulet::nvml

// What an agent's /metrics page says of each Pod: read as it comes, line by line, so that no page is held
// whole.
//
//   utilization         DCGM_FI_DEV_GPU_UTIL, or of a MIG instance DCGM_FI_PROF_GR_ENGINE_ACTIVE: the mean of
//   the
//                       devices that tell it
//   memory used         gpulet_pod_gpu_memory_bytes, or where an exporter has none DCGM_FI_DEV_FB_USED
//   memory utilization  that, of all that is used and free on its devices (DCGM_FI_DEV_FB_USED, …_FB_FREE)
//   power               DCGM_FI_DEV_POWER_USAGE of whole GPUs: of a part of one the driver does not know
//
// Series without a Pod are nobody's, and only count for how much memory a device has. Sources:
// docs/metrics.md; Prometheus text format 0.0.4. What is not known is absent, never zero.
#pragma once

#include <compare>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/result.h"
#include "metrics_api/metrics.h"

namespace gpulet::metrics_api {

// Larger pages and longer lines are no agent's. 16 GPUs with 48 shares each make about 2 MiB.
inline constexpr std::size_t kMaxPageBytes = 16u << 20;
inline constexpr std::size_t kMaxLineBytes = 64u << 10;
inline constexpr std::size_t kMaxPodsOfPage = 4096;
inline constexpr std::size_t kMaxDevicesOfPage = 4096;

struct PodName {
  std::string name_space, name;
  friend auto operator<=>(const PodName&, const PodName&) = default;
};
using PodValues = std::map<Metric, double>;  // what is known

struct AgentPage {
  std::map<PodName, PodValues> pods;
  double sample_age_s = 0;  // of what it says, when it was served
};

// Pure: any thread.
class AgentPageReader {
 public:
  // The next bytes. Errors: kIo for what is too large; lines that are no samples are passed over.
  Status take(std::string_view bytes);
  // After the last byte; this object is then spent.
  AgentPage finish();

 private:
  using Device = std::string;  // UUID, and of a MIG instance its number
  struct DeviceMemory {
    double used = 0, free = 0;
    bool told_free = false;
  };
  struct Pod {
    std::map<Device, double> utilization, engine, memory, framebuffer, power;
    std::set<Device> devices() const;
  };
  void on_line(std::string_view line);
  PodValues values_of(const Pod& pod) const;

  std::string line_;  // as far as it has come
  std::size_t bytes_ = 0;
  bool too_many_ = false;
  std::map<PodName, Pod> pods_;
  std::map<Device, DeviceMemory> memory_;
  double sample_age_s_ = 0;
};

}  // namespace gpulet::metrics_api

// Pod metrics from the agents: the metrics and their quantities, the parser of an agent's page, and the
// scraper that fetches pages.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/loop.h"
#include "base/result.h"

namespace gpulet::metrics_api {

// The Pod metrics of the API, and Kubernetes' quantity format. Pure.

enum class Metric { kUtilization, kUtilizationForecast, kMemoryUsed, kMemoryUtilization, kPower };

struct MetricInfo {
  Metric metric;
  std::string_view name;
};
inline constexpr std::array<MetricInfo, 5> kMetrics = {{
    {Metric::kUtilization, "gpu_utilization"},  // percent, mean of the Pod's devices
    // Percent: the greater of now and the Pod's part of what its service is expected to need; on no page.
    {Metric::kUtilizationForecast, "gpu_utilization_forecast"},
    {Metric::kMemoryUsed, "gpu_memory_used"},                // bytes, sum of its devices
    {Metric::kMemoryUtilization, "gpu_memory_utilization"},  // percent of the memory that Pods can use on
                                                             // its devices
    {Metric::kPower, "gpu_power_watts"},                     // of the GPUs that it holds alone
}};

std::optional<Metric> find_metric(std::string_view name);

// "42", "42500m": in thousandths, the precision of autoscalers. `value` is finite and not negative. Source:
// Kubernetes API machinery, resource.Quantity.
std::string format_quantity(double value);

// The Pod metrics in an agent's /metrics page, parsed line by line as it arrives, so that no page is held
// whole.
//
//   utilization         DCGM_FI_DEV_GPU_UTIL, or for a MIG instance DCGM_FI_PROF_GR_ENGINE_ACTIVE: the mean
//                       of the devices that report it
//   memory used         gpulet_pod_gpu_memory_bytes, or, without it, DCGM_FI_DEV_FB_USED
//   memory utilization  that, relative to used plus free memory of its devices (DCGM_FI_DEV_FB_USED,
//   …_FB_FREE) power               DCGM_FI_DEV_POWER_USAGE of whole GPUs; the driver does not report it for
//   parts
//
// Series without a Pod only count for a device's memory. Unknown values are absent, never zero.
// Sources: docs/metrics.md; Prometheus text format 0.0.4.

// Limits. 16 GPUs with 48 shares each make about 2 MiB.
inline constexpr std::size_t kMaxPageBytes = 16u << 20;
inline constexpr std::size_t kMaxLineBytes = 64u << 10;
inline constexpr std::size_t kMaxPodsPerPage = 4096;
inline constexpr std::size_t kMaxDevicesPerPage = 4096;

struct PodName {
  std::string name_space, name;
  friend auto operator<=>(const PodName&, const PodName&) = default;
};
using PodMetrics = std::map<Metric, double>;  // known values only

struct AgentPage {
  std::map<PodName, PodMetrics> pods;
  double sample_age_s = 0;  // age of the samples when the page was served
};

// Pure: any thread.
class AgentPageParser {
 public:
  // Parses the next bytes. Errors: kIo above the limits; lines that are not samples are skipped.
  Status parse_chunk(std::string_view bytes);
  // Call after the last byte; the object is then spent.
  AgentPage finish_page();

 private:
  using Device = std::string;  // UUID, with the instance number of a MIG instance
  struct DeviceMemory {
    double used = 0, free = 0;
    bool has_free = false;
  };
  struct Pod {
    std::map<Device, double> utilization, engine, memory, framebuffer, power;
    std::set<Device> device_ids() const;
  };
  void parse_line(std::string_view line);
  PodMetrics pod_values(const Pod& pod) const;

  std::string line_;  // incomplete line
  std::size_t bytes_ = 0;
  bool over_limit_ = false;
  std::map<PodName, Pod> pods_;
  std::map<Device, DeviceMemory> memory_;
  double sample_age_s_ = 0;
};

// Fetches agents' pages, many at once, over plain HTTP or TLS, and parses them as they arrive.

struct ScrapeOptions {
  bool https = false;
  std::uint16_t port = 9400;
  std::string ca_file{};                       // CA bundle with https; empty: system CAs
  std::string server_name{};                   // expected in an agent's certificate; empty: its address
  std::string token_file{};                    // bearer token; all files are read for each page
  std::string basic_auth_file{};               // "name:password", instead of a token
  Duration timeout = std::chrono::seconds(2);  // for one page, from connecting to its last byte
};

inline constexpr std::size_t kMaxConcurrentScrapes = 64;
inline constexpr std::size_t kMaxQueuedScrapes = 16384;

// Loop thread only.
class AgentScraper {
 public:
  using Done = std::function<void(Result<AgentPage>)>;

  AgentScraper(Loop& loop, ScrapeOptions options);
  ~AgentScraper();
  AgentScraper(const AgentScraper&) = delete;

  // Fetches the page of the agent at a numeric address. `done` is called once from the loop, never from
  // inside this call and never after this object is gone. Errors: kUnavailable, also for a response that is
  // not a page; kDeadlineExceeded; kPermissionDenied for an untrusted certificate, 401 and 403; kIo for a
  // page that is too large; errors of reading the files.
  void scrape_agent(const std::string& address, Done done);

 private:
  class Scrape;
  void start_scrapes();

  Loop& loop_;
  const ScrapeOptions options_;
  std::uint64_t next_id_ = 0;
  std::map<std::uint64_t, std::unique_ptr<Scrape>> running_;
  std::deque<std::pair<std::string, Done>> waiting_;
  Subscription start_timer_;
};

}  // namespace gpulet::metrics_api

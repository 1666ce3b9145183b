// Forecasts the load of each GPU from the samples of the metrics: published with the node, for schedulers
// that place by load (scheduler/load/forecast.h). Pure: samples and time are arguments.
//
// Each Pod on a GPU has a forecast, learned from its part of the GPU's use (metrics/attribution.h); the GPU's
// forecast is their sum, so that a Pod that leaves takes its part with it. Unattributed use is divided
// equally among the Pods. A GPU that no Pod holds has no forecast. The use of a GPU in MIG mode is the mean
// over its GPU instances, weighted by compute slices.
//
// A Pod starts with the load of its controller's earlier Pods, where they are known (controller_memory.h).
//
// With the last sample the forecast gives the load by which the node chooses among its own GPUs
// (placement/chooser.h).
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "agent/observe/controller_memory.h"
#include "base/loop.h"
#include "base/types.h"
#include "metrics/aggregator.h"
#include "metrics/gpulet_page.h"
#include "placement/load_board.h"
#include "scheduler/load/forecast.h"

namespace gpulet::agent {

// The fields to sample for forecasts.
std::set<metrics::Field> load_sample_fields();

class GpuLoadForecaster {
 public:
  // Learns from a sample and its attribution. A GPU that failed keeps its forecast; one that is no longer in
  // the sample loses it. Cost: a microsecond and sizeof(Forecast) for each Pod on a GPU.
  void add_load_sample(const metrics::Sample& sample, const metrics::Attribution& uses, WallTime now);

  // The coming day of each GPU that Pods hold, as encoded by the scheduler.
  std::map<DeviceUuid, std::string> encoded_curves(WallTime now) const;

  // What controllers' Pods did here, updated every kLearnInterval.
  static constexpr std::chrono::seconds kLearnInterval{60};
  const ControllerMemory& controllers() const { return controllers_; }
  // What other agents know of controllers. Pods that have just started begin again with it.
  void add_controllers(const std::vector<scheduler::ControllerLoad>& loads, WallTime now);

  // The greatest that each GPU and each of its Pods is expected to use within metrics::kForecastHorizons, in
  // steps of a quarter of an hour. None for a GPU without Pods, or without a sample for kMaxForecastAge:
  // longer than the longest interval between samples.
  static constexpr std::chrono::hours kMaxForecastAge{2};
  std::map<DeviceUuid, metrics::GpuForecast> horizon_forecasts(WallTime now) const;

  // The load of each GPU of the last sample: the greater of what it was and of the forecast for the next
  // kForecastHours. One that fails keeps its last sample for kMaxSampleAge: a slow answer must not make it
  // look idle.
  static constexpr int kForecastHours = 3;
  static constexpr std::chrono::seconds kMaxSampleAge{60};
  placement::LoadsByGpu gpu_loads(WallTime now) const;

  // Who uses a GPU, for rebalancing (scheduler/load/rebalance.h).
  struct PodUse {
    std::optional<double> busy;  // percent of the GPU in the last sample; nullopt: it cannot be attributed
    scheduler::LoadCurve day;    // hours that were not seen are as the last sample
  };
  struct GpuUse {
    std::optional<double> busy;   // percent; nullopt: unknown
    std::optional<double> later;  // expected `ahead` of now; nullopt before each Pod was seen for an hour
    std::map<PodName, PodUse> pods;
  };
  // Of the GPUs that were sampled within kMaxSampleAge.
  std::map<DeviceUuid, GpuUse> gpu_uses(WallTime now, Duration ahead) const;

 private:
  struct Reading {
    WallTime at;
    double busy = 0, memory = 0;  // percent
    bool held_outside_pods = false;
    bool is_busy_known = false;
  };
  struct PodForecast {
    scheduler::Forecast forecast;
    std::uint32_t inherited_hours = 0;  // known of its controller when it started
    std::optional<double> busy{};       // percent in the last sample
    std::uint32_t known_hours() const { return inherited_hours + forecast.whole_hours(); }
  };
  struct Gpu {
    std::map<PodName, PodForecast> pods;
    std::optional<Reading> last;
  };
  PodForecast start_forecast(const PodName& pod) const;
  void learn_controllers(WallTime now);

  std::map<DeviceUuid, Gpu> gpus_;
  ControllerMemory controllers_;
  std::optional<WallTime> learned_at_;
};

}  // namespace gpulet::agent

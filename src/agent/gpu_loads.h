// What each GPU will be used for, learnt from the samples that the metrics take: published with the node, for
// schedulers that place by load (scheduler/forecast.h). Pure: it is told of samples and of the time.
//
// Each Pod on a GPU has a forecast of its own, taught by the part of the GPU's use that is the Pod's
// (metrics/attribution.h); the GPU's is their sum, so that a Pod that leaves takes its part with it and the
// others' stay. Where it is not known whose the use is, and of what is nobody's, each has as much as the
// next. Of a GPU that nobody holds nothing is expected, and nothing published. A GPU in MIG mode has the mean
// of its GPU instances' use by their compute slices.
#pragma once

#include <map>
#include <set>
#include <string>

#include "base/loop.h"
#include "base/strong.h"
#include "metrics/meter.h"
#include "scheduler/forecast.h"

namespace gpulet::agent {

// What is to be sampled for them.
std::set<metrics::Field> load_fields();

class GpuLoads {
 public:
  // A sample and who uses its devices. A GPU that did not answer is as it was; one that is in it no more is
  // forgotten. Cost: a microsecond and sizeof(Forecast) for each Pod on a GPU.
  void add(const metrics::Sample& sample, const metrics::Uses& uses, WallTime now);

  // scheduler::encode() of the coming day of each GPU that somebody holds.
  std::map<DeviceUuid, std::string> curves(WallTime now) const;

 private:
  using Pods = std::map<metrics::PodName, scheduler::Forecast>;
  std::map<DeviceUuid, Pods> gpus_;
};

}  // namespace gpulet::agent

// What each GPU will be used for, learnt from the samples that the metrics take: published with the node, for
// schedulers that place by load (scheduler/forecast.h). Pure: it is told of samples and of the time.
//
// A GPU whose holders change is learnt anew, with what was known as a guess; of one that nobody holds nothing
// is expected, and nothing published. A GPU in MIG mode has the mean of its GPU instances' use by their
// compute slices.
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
  // forgotten. Cost: a microsecond a GPU.
  void add(const metrics::Sample& sample, const metrics::Uses& uses, WallTime now);

  // scheduler::encode() of the coming day of each GPU that somebody holds.
  std::map<DeviceUuid, std::string> curves(WallTime now) const;

 private:
  struct Known {
    std::set<metrics::PodName> holders;
    scheduler::Forecast forecast;
  };
  std::map<DeviceUuid, Known> gpus_;
};

}  // namespace gpulet::agent

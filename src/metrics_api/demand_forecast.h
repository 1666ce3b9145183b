// What the Pods of a service are expected to need together: the sum of their utilization, learned from the
// autoscaler's own questions.
//
// The sum and not each Pod's use, because an autoscaler keeps each Pod near its target whatever the demand:
// only the sum has the daily pattern. It does not depend on which Pods there are, so that it outlives them.
// The model is that of GPU load (scheduler/load/forecast.h). Pure: time is an argument.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "metrics_api/responses.h"
#include "scheduler/load/forecast.h"

namespace gpulet::metrics_api {

inline constexpr std::size_t kMaxServices = 1024;  // some 400 bytes each
// Demand above this many GPUs counts as this many. The resolution is a 25,600th of it.
inline constexpr double kMaxDemandGpus = 100;

// Of a service that nobody asks for. Longer than a week, so that a weekly one is known.
inline constexpr std::chrono::hours kRecordLifetime{8 * 24};
inline constexpr std::size_t kMaxRecordedName = 400;  // so that all of them fit into a ConfigMap of 1 MiB

class DemandForecasts {
 public:
  // Adds the present sum in percent of one GPU: 250 is two and a half. `service`: any name. Beyond
  // kMaxServices the one that was sampled longest ago is forgotten.
  void add_sample(const std::string& service, WallTime now, double percent);
  // The greatest sum from `now` to the end of `horizon` (at most a day), in steps of a quarter of an hour.
  // nullopt for an unknown service, and where no whole hour of that time of the day was seen yet.
  std::optional<double> greatest_demand(const std::string& service, WallTime now, Duration horizon) const;

  // Takes over what a record (the data of a ConfigMap) knows for longer, and returns the entries to change
  // there: what is known for longer here; "" to remove an entry that is malformed or unused for
  // kRecordLifetime.
  std::map<std::string, std::string> merge_record(const std::map<std::string, std::string>& data,
                                                  WallTime now);

  std::size_t service_count() const { return services_.size(); }

 private:
  struct Service {
    scheduler::SeasonalModel model;
    WallTime sampled_at;
  };
  void forget_oldest();

  std::map<std::string, Service> services_;
};

// Adds the same to each value, so that they sum up to at least `sum`.
void raise_to_sum(std::vector<PodValue>& values, double sum);

}  // namespace gpulet::metrics_api

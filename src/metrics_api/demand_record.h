// Keeps what was learned of services' demand in a ConfigMap, for the other replicas of the server and for
// those after a restart. Each reads it every kRecordInterval, takes what another has learned for longer, and
// writes what it has learned for longer itself: at most once an hour for a service, because only whole hours
// count.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "base/loop.h"
#include "k8s/api_client.h"
#include "k8s/client_config.h"
#include "metrics_api/demand_forecast.h"

namespace gpulet::metrics_api {

inline constexpr Duration kRecordInterval = std::chrono::minutes(10);

// Needs get and patch on the ConfigMap, which must exist. Loop's thread only.
class DemandRecord {
 public:
  // Reads at once. `forecasts` must outlive it; `clock` is theirs.
  DemandRecord(Loop& loop, k8s::ClientConfig access, const std::string& config_map,
               DemandForecasts& forecasts, std::function<WallTime()> clock,
               Duration interval = kRecordInterval, k8s::SendTiming timing = {});
  DemandRecord(const DemandRecord&) = delete;

 private:
  void send_next();
  void sync_later();

  Loop& loop_;
  const std::string path_, right_;
  DemandForecasts& forecasts_;
  const std::function<WallTime()> clock_;
  const Duration interval_;
  bool is_due_ = true;
  std::map<std::string, std::string> changes_;  // to be written
  Subscription next_;
  k8s::RetryingSender sending_;
};

}  // namespace gpulet::metrics_api

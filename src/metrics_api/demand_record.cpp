#include "metrics_api/demand_record.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "k8s/objects.h"

namespace gpulet::metrics_api {

using Outcome = k8s::RetryingSender::Outcome;

DemandRecord::DemandRecord(Loop& loop, k8s::ClientConfig access, const std::string& config_map,
                           DemandForecasts& forecasts, std::function<WallTime()> clock, Duration interval,
                           k8s::SendTiming timing)
    : loop_(loop),
      path_("/api/v1/namespaces/" + access.pod_namespace + "/configmaps/" + config_map),
      right_("get and patch on the ConfigMap " + access.pod_namespace + "/" + config_map),
      forecasts_(forecasts),
      clock_(std::move(clock)),
      interval_(interval),
      sending_(loop, std::move(access), timing, "the record of demand", [this] { send_next(); }) {
  sending_.wake();
}

void DemandRecord::send_next() {
  if (is_due_) {
    return sending_.send_request(
        {.method = "GET", .path = path_}, right_, [this](const http::ClientResponse& response) {
          if (response.status != 200) return Outcome::kError;
          is_due_ = false;
          changes_ = forecasts_.merge_record(k8s::json_text_map(parse_json(response.body), "data"), clock_());
          sync_later();
          return Outcome::kNext;
        });
  }
  if (changes_.empty()) return sending_.idle();
  nlohmann::json data = nlohmann::json::object();
  for (const auto& [key, value] : changes_) {
    data[key] = value.empty() ? nlohmann::json() : nlohmann::json(value);
  }
  sending_.send_request({.method = "PATCH",
                         .path = path_,
                         .content_type = "application/merge-patch+json",
                         .body = k8s::serialize_json({{"data", std::move(data)}}),
                         .accept = k8s::kMetadataOnly},
                        right_, [this](const http::ClientResponse& response) {
                          if (response.status != 200) return Outcome::kError;
                          changes_.clear();
                          return Outcome::kDone;
                        });
}

void DemandRecord::sync_later() {
  next_ = loop_.after(interval_, [this] {
    is_due_ = true;
    sending_.wake();
  });
}

}  // namespace gpulet::metrics_api

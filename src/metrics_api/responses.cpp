#include "metrics_api/responses.h"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "base/dns_name.h"
#include "base/text.h"
#include "k8s/objects.h"
#include "metrics_api/agent_scraper.h"

namespace gpulet::metrics_api {
namespace {

// The first parameter of a name wins.
Result<std::map<std::string, std::string>> parse_query(std::string_view target) {
  std::map<std::string, std::string> query;
  const auto query_start = target.find('?');
  if (query_start == std::string_view::npos) return query;
  for (const auto& pair : text::split(target.substr(query_start + 1), '&')) {
    const auto equals = std::min(pair.find('='), pair.size());
    auto name = text::decode_percent(std::string_view(pair).substr(0, equals), true);
    auto value = text::decode_percent(std::string_view(pair).substr(std::min(equals + 1, pair.size())), true);
    if (!name || !value) return fail(Code::kInvalidArgument, "the query has an invalid escape");
    query.try_emplace(std::move(*name), std::move(*value));
  }
  return query;
}

bool is_served_version(std::string_view text) {
  return std::ranges::find(kVersions, text) != std::end(kVersions);
}

// The selector's only form, in the API machinery's notation.
Result<Duration> parse_horizon(std::string_view metric, std::string_view selector) {
  if (find_metric(metric) != Metric::kUtilizationForecast) {
    return fail(Code::kInvalidArgument, "this metric has no labels: remove metricLabelSelector");
  }
  constexpr std::string_view kLabel = "horizon=";
  const auto horizon =
      selector.starts_with(kLabel) ? parse_duration(selector.substr(kLabel.size())) : std::nullopt;
  if (!horizon || *horizon < kMinHorizon || *horizon > kMaxHorizon) {
    return fail(Code::kInvalidArgument, "metricLabelSelector is \"" + std::string(selector.substr(0, 100)) +
                                            "\"; expected horizon= and " + format_duration(kMinHorizon) +
                                            " to " + format_duration(kMaxHorizon));
  }
  return *horizon;
}

Result<RequestTarget> parse_pod_metric(const std::vector<std::string>& parts, std::string_view target) {
  PodMetricRequest request{
      .version = parts[2], .name_space = parts[4], .pod = parts[6], .metric = parts[7], .selector = {}};
  if (!is_dns_label(request.name_space)) {
    return fail(Code::kInvalidArgument, "not a valid namespace name");
  }
  if (!request.selects_all() && !is_dns_subdomain(request.pod)) {
    return fail(Code::kInvalidArgument, "not a valid Pod name");
  }
  GPULET_TRY_ASSIGN(auto query, parse_query(target));
  if (const auto& labels = query["metricLabelSelector"]; !labels.empty()) {
    GPULET_TRY_ASSIGN(request.horizon, parse_horizon(request.metric, labels));
  }
  if (!query["fieldSelector"].empty()) {
    return fail(Code::kInvalidArgument, "Pods can be selected only by labels: remove fieldSelector");
  }
  if (const auto& watch = query["watch"]; !watch.empty() && watch != "false" && watch != "0") {
    return fail(Code::kInvalidArgument, "these metrics cannot be watched");
  }
  request.selector = std::move(query["labelSelector"]);
  return request;
}

}  // namespace

std::string_view target_path(std::string_view target) { return target.substr(0, target.find('?')); }

Result<RequestTarget> parse_request_target(std::string_view target) {
  std::string_view path = target_path(target);
  if (path == "/healthz" || path == "/livez") return HealthRequest{.ready = false};
  if (path == "/readyz") return HealthRequest{.ready = true};
  if (!path.starts_with('/')) return UnknownRequest{};
  path.remove_prefix(1);
  if (path.ends_with('/')) path.remove_suffix(1);
  std::vector<std::string> parts;
  for (const auto& part : text::split(path, '/')) {
    auto plain = text::decode_percent(part, false);
    if (!plain) return fail(Code::kInvalidArgument, "the path has an invalid escape");
    parts.push_back(std::move(*plain));
  }
  if (parts.empty() || parts[0] != "apis") return UnknownRequest{};
  if (parts.size() == 1) return GroupListRequest{};
  if (parts[1] != kGroup) return UnknownRequest{};
  if (parts.size() == 2) return GroupRequest{};
  if (!is_served_version(parts[2])) return UnknownRequest{};
  if (parts.size() == 3) return ResourceListRequest{parts[2]};
  if (parts.size() != 8 || parts[3] != "namespaces" || parts[5] != "pods") return UnknownRequest{};
  return parse_pod_metric(parts, target);
}

namespace {

using nlohmann::json;

std::string group_version_name(std::string_view version) {
  return std::string(kGroup) + "/" + std::string(version);
}

json group_version_json(std::string_view version) {
  return {{"groupVersion", group_version_name(version)}, {"version", version}};
}

json group_fields() {
  json versions = json::array();
  for (const auto version : kVersions) versions.push_back(group_version_json(version));
  return {{"name", kGroup},
          {"versions", std::move(versions)},
          {"preferredVersion", group_version_json(kVersions[0])}};
}

}  // namespace

std::string group_list_json() {
  return k8s::serialize_json(
      {{"kind", "APIGroupList"}, {"apiVersion", "v1"}, {"groups", json::array({group_fields()})}});
}

std::string group_json() {
  json object = group_fields();
  object["kind"] = "APIGroup";
  object["apiVersion"] = "v1";
  return k8s::serialize_json(object);
}

std::string resource_list_json(std::string_view version) {
  json resources = json::array();
  for (const auto& info : kMetrics) {
    resources.push_back({{"name", "pods/" + std::string(info.name)},
                         {"singularName", ""},
                         {"namespaced", true},
                         {"kind", "MetricValueList"},
                         {"verbs", json::array({"get"})}});
  }
  return k8s::serialize_json({{"kind", "APIResourceList"},
                              {"apiVersion", "v1"},
                              {"groupVersion", group_version_name(version)},
                              {"resources", std::move(resources)}});
}

std::string metric_values_json(const PodMetricRequest& request, const std::vector<PodValue>& values) {
  json items = json::array();
  for (const auto& value : values) {
    json item = {
        {"describedObject",
         {{"kind", "Pod"}, {"apiVersion", "v1"}, {"namespace", request.name_space}, {"name", value.pod}}},
        {"timestamp", k8s::format_rfc3339(value.at)},
        {"windowSeconds", 0},  // a reading, not a rate
        {"value", format_quantity(value.value)}};
    if (request.version == "v1beta1") {
      item["metricName"] = request.metric;
    } else {
      item["metric"] = {{"name", request.metric}};
    }
    items.push_back(std::move(item));
  }
  return k8s::serialize_json({{"kind", "MetricValueList"},
                              {"apiVersion", group_version_name(request.version)},
                              {"metadata", json::object()},
                              {"items", std::move(items)}});
}

std::string failure_status_json(int status, std::string_view reason, std::string_view message) {
  return k8s::serialize_json({{"kind", "Status"},
                              {"apiVersion", "v1"},
                              {"metadata", json::object()},
                              {"status", "Failure"},
                              {"message", message},
                              {"reason", reason},
                              {"code", status}});
}

}  // namespace gpulet::metrics_api

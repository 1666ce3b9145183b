#include "metrics_api/answers.h"

#include <nlohmann/json.hpp>

#include "cluster/objects.h"
#include "metrics_api/metrics.h"

namespace gpulet::metrics_api {
namespace {

using nlohmann::json;

std::string group_version(std::string_view version) {
  return std::string(kGroup) + "/" + std::string(version);
}

json version_of(std::string_view version) {
  return {{"groupVersion", group_version(version)}, {"version", version}};
}

json group_object() {
  json versions = json::array();
  for (const auto version : kVersions) versions.push_back(version_of(version));
  return {
      {"name", kGroup}, {"versions", std::move(versions)}, {"preferredVersion", version_of(kVersions[0])}};
}

}  // namespace

std::string group_list() {
  return cluster::body_of(
      {{"kind", "APIGroupList"}, {"apiVersion", "v1"}, {"groups", json::array({group_object()})}});
}

std::string group() {
  json object = group_object();
  object["kind"] = "APIGroup";
  object["apiVersion"] = "v1";
  return cluster::body_of(object);
}

std::string resource_list(std::string_view version) {
  json resources = json::array();
  for (const auto& info : kMetrics) {
    resources.push_back({{"name", "pods/" + std::string(info.name)},
                         {"singularName", ""},
                         {"namespaced", true},
                         {"kind", "MetricValueList"},
                         {"verbs", json::array({"get"})}});
  }
  return cluster::body_of({{"kind", "APIResourceList"},
                           {"apiVersion", "v1"},
                           {"groupVersion", group_version(version)},
                           {"resources", std::move(resources)}});
}

std::string metric_values(const PodMetric& asked, const std::vector<PodValue>& values) {
  json items = json::array();
  for (const auto& value : values) {
    json item = {
        {"describedObject",
         {{"kind", "Pod"}, {"apiVersion", "v1"}, {"namespace", asked.name_space}, {"name", value.pod}}},
        {"timestamp", cluster::rfc3339(value.at)},
        {"windowSeconds", 0},  // a reading, not a rate over some time
        {"value", quantity(value.value)}};
    if (asked.version == "v1beta1") {
      item["metricName"] = asked.metric;
    } else {
      item["metric"] = {{"name", asked.metric}};
    }
    items.push_back(std::move(item));
  }
  return cluster::body_of({{"kind", "MetricValueList"},
                           {"apiVersion", group_version(asked.version)},
                           {"metadata", json::object()},
                           {"items", std::move(items)}});
}

std::string failure(int status, std::string_view reason, std::string_view message) {
  return cluster::body_of({{"kind", "Status"},
                           {"apiVersion", "v1"},
                           {"metadata", json::object()},
                           {"status", "Failure"},
                           {"message", message},
                           {"reason", reason},
                           {"code", status}});
}

}  // namespace gpulet::metrics_api

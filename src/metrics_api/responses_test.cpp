#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "metrics_api/agent_scraper.h"
#include "metrics_api/responses.h"

namespace gpulet::metrics_api {
namespace {

const std::string kServed = "/apis/custom.metrics.k8s.io/v1beta2";

TEST(RequestTarget, ParsesApiPaths) {
  EXPECT_TRUE(std::holds_alternative<GroupListRequest>(*parse_request_target("/apis")));
  EXPECT_TRUE(std::holds_alternative<GroupListRequest>(*parse_request_target("/apis/?timeout=32s")));
  EXPECT_TRUE(std::holds_alternative<GroupRequest>(*parse_request_target("/apis/custom.metrics.k8s.io")));
  EXPECT_EQ(std::get<ResourceListRequest>(*parse_request_target(kServed + "?timeout=32s")).version,
            "v1beta2");
  EXPECT_EQ(
      std::get<ResourceListRequest>(*parse_request_target("/apis/custom.metrics.k8s.io/v1beta1")).version,
      "v1beta1");
  EXPECT_FALSE(std::get<HealthRequest>(*parse_request_target("/healthz")).ready);
  EXPECT_FALSE(std::get<HealthRequest>(*parse_request_target("/livez?verbose")).ready);
  EXPECT_TRUE(std::get<HealthRequest>(*parse_request_target("/readyz")).ready);
  for (const std::string path :
       {"/", "", "*", "apis", "/openapi/v2", "/openapi/v3", "/version", "/apis/other", "/apis//v1beta2",
        "/apis/custom.metrics.k8s.io/v1", "/apis/custom.metrics.k8s.io/v1beta2/nodes/n1/gpu_utilization",
        "/apis/custom.metrics.k8s.io/v1beta2/namespaces/n/pods/p",
        "/apis/custom.metrics.k8s.io/v1beta2/namespaces/n/pods/p/m/more",
        "/apis/custom.metrics.k8s.io/v1beta2/namespaces/n/services/p/m"}) {
    const auto target = parse_request_target(path);
    ASSERT_TRUE(target) << path;
    EXPECT_TRUE(std::holds_alternative<UnknownRequest>(*target)) << path;
  }
}

TEST(RequestTarget, ParsesPodMetricRequests) {
  const auto all = parse_request_target(
      kServed + "/namespaces/models/pods/*/gpu_utilization?labelSelector=app%3Dx%2Ctier+in+%28a%29");
  ASSERT_TRUE(all);
  const auto& request = std::get<PodMetricRequest>(*all);
  EXPECT_EQ(request.version, "v1beta2");
  EXPECT_EQ(request.name_space, "models");
  EXPECT_TRUE(request.selects_all());
  EXPECT_EQ(request.metric, "gpu_utilization");
  EXPECT_EQ(request.selector, "app=x,tier in (a)");
  const auto escaped = parse_request_target(
      kServed + "/namespaces/models/pods/%2A/gpu_utilization?metricLabelSelector=&watch=false");
  ASSERT_TRUE(escaped);
  EXPECT_TRUE(std::get<PodMetricRequest>(*escaped).selects_all());
  EXPECT_EQ(std::get<PodMetricRequest>(*escaped).selector, "");
  const std::string forecast = kServed + "/namespaces/models/pods/*/gpu_utilization_forecast";
  EXPECT_EQ(std::get<PodMetricRequest>(*parse_request_target(forecast)).horizon, std::chrono::hours(1));
  EXPECT_EQ(std::get<PodMetricRequest>(*parse_request_target(forecast + "?metricLabelSelector=horizon%3D90m"))
                .horizon,
            std::chrono::minutes(90));
  const auto one = parse_request_target(kServed + "/namespaces/models/pods/infer-0/gpu_memory_used");
  ASSERT_TRUE(one);
  EXPECT_EQ(std::get<PodMetricRequest>(*one).pod, "infer-0");
  EXPECT_FALSE(std::get<PodMetricRequest>(*one).selects_all());
}

TEST(RequestTarget, RejectsUnsupportedRequests) {
  const std::string pods = kServed + "/namespaces/models/pods/";
  for (const auto& [target, why] : std::vector<std::pair<std::string, std::string>>{
           {pods + "%2/m", "the path has an invalid escape"},
           {pods + "%zz/m", "the path has an invalid escape"},
           {pods + "a%2Fb/m", "not a valid Pod name"},
           {pods + "..%2f..%2fsecrets/m", "not a valid Pod name"},
           {kServed + "/namespaces/a%0Db/pods/*/m", "not a valid namespace name"},
           {pods + "*/m?labelSelector=%", "the query has an invalid escape"},
           {pods + "*/m?metricLabelSelector=a%3Db", "this metric has no labels: remove metricLabelSelector"},
           {pods + "*/gpu_utilization?metricLabelSelector=horizon%3D1h",
            "this metric has no labels: remove metricLabelSelector"},
           {pods + "*/gpu_utilization_forecast?metricLabelSelector=horizon%3D25h",
            "metricLabelSelector is \"horizon=25h\"; expected horizon= and 1m to 24h"},
           {pods + "*/gpu_utilization_forecast?metricLabelSelector=horizon%20in%20%281h%29",
            "metricLabelSelector is \"horizon in (1h)\"; expected horizon= and 1m to 24h"},
           {pods + "*/m?fieldSelector=a%3Db", "Pods can be selected only by labels: remove fieldSelector"},
           {pods + "*/m?watch=true", "these metrics cannot be watched"}}) {
    const auto refused = parse_request_target(target);
    ASSERT_FALSE(refused) << target;
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
    EXPECT_EQ(refused.error().message(), why) << target;
  }
}

using nlohmann::json;

TEST(Responses, Quantities) {
  for (const auto& [value, text] : std::vector<std::pair<double, std::string>>{{0, "0"},
                                                                               {42, "42"},
                                                                               {57.5, "57500m"},
                                                                               {33.33333, "33333m"},
                                                                               {99.9999, "100"},
                                                                               {85899345920, "85899345920"},
                                                                               {1e300, "9000000000000000"}}) {
    EXPECT_EQ(format_quantity(value), text);
  }
}

TEST(Responses, Discovery) {
  EXPECT_EQ(json::parse(group_json()),
            json::parse(R"({"kind":"APIGroup","apiVersion":"v1","name":"custom.metrics.k8s.io",
    "versions":[{"groupVersion":"custom.metrics.k8s.io/v1beta2","version":"v1beta2"},
                {"groupVersion":"custom.metrics.k8s.io/v1beta1","version":"v1beta1"}],
    "preferredVersion":{"groupVersion":"custom.metrics.k8s.io/v1beta2","version":"v1beta2"}})"));
  const auto groups = json::parse(group_list_json());
  ASSERT_EQ(groups["groups"].size(), 1u);
  EXPECT_EQ(groups["groups"][0]["name"], "custom.metrics.k8s.io");
  const auto resources = json::parse(resource_list_json("v1beta2"));
  EXPECT_EQ(resources["kind"], "APIResourceList");
  EXPECT_EQ(resources["groupVersion"], "custom.metrics.k8s.io/v1beta2");
  ASSERT_EQ(resources["resources"].size(), kMetrics.size());
  EXPECT_EQ(resources["resources"][0],
            json::parse(R"({"name":"pods/gpu_utilization","singularName":"","namespaced":true,
                            "kind":"MetricValueList","verbs":["get"]})"));
}

TEST(Responses, Values) {
  PodMetricRequest request{"v1beta2", "models", "*", "gpu_utilization", ""};
  const std::vector<PodValue> values = {{"a", 57.5, WallTime(std::chrono::seconds(1767225600))}};
  EXPECT_EQ(json::parse(metric_values_json(request, values)), json::parse(R"({"kind":"MetricValueList",
    "apiVersion":"custom.metrics.k8s.io/v1beta2","metadata":{},"items":[{"describedObject":{"kind":"Pod",
    "apiVersion":"v1","namespace":"models","name":"a"},"metric":{"name":"gpu_utilization"},
    "timestamp":"2026-01-01T00:00:00Z","windowSeconds":0,"value":"57500m"}]})"));
  request.version = "v1beta1";
  const auto older = json::parse(metric_values_json(request, values));
  EXPECT_EQ(older["apiVersion"], "custom.metrics.k8s.io/v1beta1");
  EXPECT_EQ(older["items"][0]["metricName"], "gpu_utilization");
  EXPECT_FALSE(older["items"][0].contains("metric"));
  EXPECT_EQ(json::parse(metric_values_json(request, {}))["items"], json::array());
}

TEST(Responses, FailureHasAllStatusFields) {
  EXPECT_EQ(json::parse(failure_status_json(403, "Forbidden", "no \"\xff\"")),
            json::parse("{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\","
                        "\"message\":\"no \\\"\xEF\xBF\xBD\\\"\",\"reason\":\"Forbidden\",\"code\":403}"));
}

}  // namespace
}  // namespace gpulet::metrics_api

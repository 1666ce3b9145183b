#include "metrics_api/answers.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "metrics_api/metrics.h"

namespace gpulet::metrics_api {
namespace {

using nlohmann::json;

TEST(Answers, Quantities) {
  for (const auto& [value, text] : std::vector<std::pair<double, std::string>>{{0, "0"},
                                                                               {42, "42"},
                                                                               {57.5, "57500m"},
                                                                               {33.33333, "33333m"},
                                                                               {99.9999, "100"},
                                                                               {85899345920, "85899345920"},
                                                                               {1e300, "9000000000000000"}}) {
    EXPECT_EQ(quantity(value), text);
  }
}

TEST(Answers, Discovery) {
  EXPECT_EQ(json::parse(group()),
            json::parse(R"({"kind":"APIGroup","apiVersion":"v1","name":"custom.metrics.k8s.io",
    "versions":[{"groupVersion":"custom.metrics.k8s.io/v1beta2","version":"v1beta2"},
                {"groupVersion":"custom.metrics.k8s.io/v1beta1","version":"v1beta1"}],
    "preferredVersion":{"groupVersion":"custom.metrics.k8s.io/v1beta2","version":"v1beta2"}})"));
  const auto groups = json::parse(group_list());
  ASSERT_EQ(groups["groups"].size(), 1u);
  EXPECT_EQ(groups["groups"][0]["name"], "custom.metrics.k8s.io");
  const auto resources = json::parse(resource_list("v1beta2"));
  EXPECT_EQ(resources["kind"], "APIResourceList");
  EXPECT_EQ(resources["groupVersion"], "custom.metrics.k8s.io/v1beta2");
  ASSERT_EQ(resources["resources"].size(), kMetrics.size());
  EXPECT_EQ(resources["resources"][0],
            json::parse(R"({"name":"pods/gpu_utilization","singularName":"","namespaced":true,
                            "kind":"MetricValueList","verbs":["get"]})"));
}

TEST(Answers, Values) {
  PodMetric asked{"v1beta2", "models", "*", "gpu_utilization", ""};
  const std::vector<PodValue> values = {{"a", 57.5, WallTime(std::chrono::seconds(1767225600))}};
  EXPECT_EQ(json::parse(metric_values(asked, values)), json::parse(R"({"kind":"MetricValueList",
    "apiVersion":"custom.metrics.k8s.io/v1beta2","metadata":{},"items":[{"describedObject":{"kind":"Pod",
    "apiVersion":"v1","namespace":"models","name":"a"},"metric":{"name":"gpu_utilization"},
    "timestamp":"2026-01-01T00:00:00Z","windowSeconds":0,"value":"57500m"}]})"));
  asked.version = "v1beta1";
  const auto older = json::parse(metric_values(asked, values));
  EXPECT_EQ(older["apiVersion"], "custom.metrics.k8s.io/v1beta1");
  EXPECT_EQ(older["items"][0]["metricName"], "gpu_utilization");
  EXPECT_FALSE(older["items"][0].contains("metric"));
  EXPECT_EQ(json::parse(metric_values(asked, {}))["items"], json::array());
}

TEST(Answers, AFailureSaysAllThatAClientShows) {
  EXPECT_EQ(json::parse(failure(403, "Forbidden", "no \"\xff\"")),
            json::parse("{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\","
                        "\"message\":\"no \\\"\xEF\xBF\xBD\\\"\",\"reason\":\"Forbidden\",\"code\":403}"));
}

}  // namespace
}  // namespace gpulet::metrics_api

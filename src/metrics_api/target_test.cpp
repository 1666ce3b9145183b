#include "metrics_api/target.h"

#include <gtest/gtest.h>

namespace gpulet::metrics_api {
namespace {

const std::string kServed = "/apis/custom.metrics.k8s.io/v1beta2";

TEST(Target, PathsOfTheApi) {
  EXPECT_TRUE(std::holds_alternative<Groups>(*parse_target("/apis")));
  EXPECT_TRUE(std::holds_alternative<Groups>(*parse_target("/apis/?timeout=32s")));
  EXPECT_TRUE(std::holds_alternative<Group>(*parse_target("/apis/custom.metrics.k8s.io")));
  EXPECT_EQ(std::get<Resources>(*parse_target(kServed + "?timeout=32s")).version, "v1beta2");
  EXPECT_EQ(std::get<Resources>(*parse_target("/apis/custom.metrics.k8s.io/v1beta1")).version, "v1beta1");
  EXPECT_FALSE(std::get<Health>(*parse_target("/healthz")).ready);
  EXPECT_FALSE(std::get<Health>(*parse_target("/livez?verbose")).ready);
  EXPECT_TRUE(std::get<Health>(*parse_target("/readyz")).ready);
  for (const std::string path :
       {"/", "", "*", "apis", "/openapi/v2", "/openapi/v3", "/version", "/apis/other", "/apis//v1beta2",
        "/apis/custom.metrics.k8s.io/v1", "/apis/custom.metrics.k8s.io/v1beta2/nodes/n1/gpu_utilization",
        "/apis/custom.metrics.k8s.io/v1beta2/namespaces/n/pods/p",
        "/apis/custom.metrics.k8s.io/v1beta2/namespaces/n/pods/p/m/more",
        "/apis/custom.metrics.k8s.io/v1beta2/namespaces/n/services/p/m"}) {
    const auto target = parse_target(path);
    ASSERT_TRUE(target) << path;
    EXPECT_TRUE(std::holds_alternative<Unknown>(*target)) << path;
  }
}

TEST(Target, AMetricOfPods) {
  const auto all = parse_target(
      kServed + "/namespaces/models/pods/*/gpu_utilization?labelSelector=app%3Dx%2Ctier+in+%28a%29");
  ASSERT_TRUE(all);
  const auto& asked = std::get<PodMetric>(*all);
  EXPECT_EQ(asked.version, "v1beta2");
  EXPECT_EQ(asked.name_space, "models");
  EXPECT_TRUE(asked.all());
  EXPECT_EQ(asked.metric, "gpu_utilization");
  EXPECT_EQ(asked.selector, "app=x,tier in (a)");
  const auto escaped =
      parse_target(kServed + "/namespaces/models/pods/%2A/gpu_utilization?metricLabelSelector=&watch=false");
  ASSERT_TRUE(escaped);
  EXPECT_TRUE(std::get<PodMetric>(*escaped).all());
  EXPECT_EQ(std::get<PodMetric>(*escaped).selector, "");
  const auto one = parse_target(kServed + "/namespaces/models/pods/infer-0/gpu_memory_used");
  ASSERT_TRUE(one);
  EXPECT_EQ(std::get<PodMetric>(*one).pod, "infer-0");
  EXPECT_FALSE(std::get<PodMetric>(*one).all());
}

TEST(Target, WhatIsNotServedIsSaid) {
  const std::string pods = kServed + "/namespaces/models/pods/";
  for (const auto& [target, why] : std::vector<std::pair<std::string, std::string>>{
           {pods + "%2/m", "the path has an escape that is none"},
           {pods + "%zz/m", "the path has an escape that is none"},
           {pods + "a%2Fb/m", "that is no name of a Pod"},
           {pods + "..%2f..%2fsecrets/m", "that is no name of a Pod"},
           {kServed + "/namespaces/a%0Db/pods/*/m", "that is no name of a namespace"},
           {pods + "*/m?labelSelector=%", "the query has an escape that is none"},
           {pods + "*/m?metricLabelSelector=a%3Db",
            "these metrics have no labels to select by: leave metricLabelSelector out"},
           {pods + "*/m?fieldSelector=a%3Db", "Pods are selected by labels only: leave fieldSelector out"},
           {pods + "*/m?watch=true", "these metrics cannot be watched"}}) {
    const auto refused = parse_target(target);
    ASSERT_FALSE(refused) << target;
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
    EXPECT_EQ(refused.error().message(), why) << target;
  }
}

}  // namespace
}  // namespace gpulet::metrics_api

#include "scheduler/core/extender_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace gpulet::scheduler {
namespace {

using nlohmann::json;

const json kPod = {{"metadata", {{"namespace", "a"}, {"name", "b"}}},
                   {"spec", {{"containers", {{{"resources", {{"limits", {{"nvidia.com/gpu", "1"}}}}}}}}}}};

TEST(ExtenderJson, ParsesNodeNames) {
  const std::string body = json{{"Pod", kPod}, {"Nodes", nullptr}, {"NodeNames", {"n1", "n2", "n3"}}}.dump();
  const auto args = ExtenderArgs::parse_body(body);
  ASSERT_TRUE(args.has_value()) << args.error().full_message();
  EXPECT_FALSE(args->has_node_objects());
  EXPECT_EQ(args->pod_request().pod_key(), "a/b");
  EXPECT_EQ(std::vector<std::string_view>(args->node_names().begin(), args->node_names().end()),
            (std::vector<std::string_view>{"n1", "n2", "n3"}));
  const std::vector<std::size_t> passed = {1};
  const std::vector<ExtenderArgs::FailedNode> failed = {{0, true, "1/1 \"held\""},
                                                        {2, false, "no such driver"}};
  EXPECT_EQ(json::parse(args->filter_result_json(passed, failed)),
            (json{{"NodeNames", {"n2"}},
                  {"FailedNodes", {{"n1", "1/1 \"held\""}}},
                  {"FailedAndUnresolvableNodes", {{"n3", "no such driver"}}},
                  {"Error", ""}}));
  EXPECT_EQ(
      json::parse(args->priorities_json(std::vector{0, 5, 10})),
      (json{
          {{"Host", "n1"}, {"Score", 0}}, {{"Host", "n2"}, {"Score", 5}}, {{"Host", "n3"}, {"Score", 10}}}));
}

TEST(ExtenderJson, ReturnsNodeObjectsUnchanged) {
  const json one = {{"metadata", {{"name", "n1"}, {"labels", {{"a", "ü\n"}}}}},
                    {"status", {{"x", {1, 2.5, nullptr}}}}};
  const json two = {{"metadata", {{"name", "n2"}}}};
  const std::string body = json{{"pod", kPod}, {"nodes", {{"items", {one, two}}}}}.dump();
  const auto args = ExtenderArgs::parse_body(body);
  ASSERT_TRUE(args.has_value()) << args.error().full_message();
  EXPECT_TRUE(args->has_node_objects());
  const std::vector<std::size_t> passed = {0};
  const auto result = json::parse(args->filter_result_json(passed, {}));
  EXPECT_EQ(result["Nodes"]["items"], json::array({one}));
  EXPECT_FALSE(result.contains("NodeNames"));
}

TEST(ExtenderJson, AcceptsEmptyNodeLists) {
  for (const json& lists : {json{{"NodeNames", json::array()}}, json{{"Nodes", {{"items", nullptr}}}},
                            json{{"Nodes", json::object()}}}) {
    json all = lists;
    all["Pod"] = kPod;
    const std::string body = all.dump();
    EXPECT_TRUE(ExtenderArgs::parse_body(body).has_value()) << body;
  }
}

TEST(ExtenderJson, RejectsInvalidRequests) {
  const std::pair<std::string, const char*> kWrong[] = {
      {"", "the body is not valid JSON, at byte 0"},
      {"{", "the body is not valid JSON, at byte 1"},
      {std::string(100'000, '['), "the body is nested deeper than 64 levels, at byte 64"},
      {"[]", "the body has no Pod"},
      {json{{"NodeNames", {"n1"}}}.dump(), "the body has no Pod"},
      // What Volcano's plugin `extender` sends.
      {json{{"task", {{"Name", "p"}}}, {"node", {{"Name", "n1"}}}}.dump(), "the body has no Pod"},
      {json{{"Pod", 7}, {"NodeNames", {"n1"}}}.dump(), "not a Pod: metadata.name is missing"},
      {json{{"Pod", kPod}}.dump(), "the body has neither NodeNames nor Nodes"},
      {json{{"Pod", kPod}, {"NodeNames", "n1"}}.dump(), "NodeNames is not a list of at most 100000 names"},
      {json{{"Pod", kPod}, {"Nodes", {{"items", 7}}}}.dump(),
       "Nodes.items is not a list of at most 100000 Nodes"},
      {json{{"Pod", {{"metadata", {{"name", std::string(kMaxPodBytes, 'x')}}}}}, {"NodeNames", {"n1"}}}
           .dump(),
       "not a Pod: larger than 4 MiB"},
  };
  for (const auto& [body, error] : kWrong) {
    const auto args = ExtenderArgs::parse_body(body);
    ASSERT_FALSE(args.has_value()) << body.substr(0, 100);
    EXPECT_EQ(args.error().full_message(), error);
  }
}

TEST(ExtenderJson, InvalidNamesAreUnknownNodes) {
  const std::string body = R"({"NodeNames": [7, null, "n\u0031"], "Pod": )" + kPod.dump() + "}";
  const auto args = ExtenderArgs::parse_body(body);
  ASSERT_TRUE(args.has_value());
  EXPECT_EQ(args->node_names()[0], "");
  EXPECT_EQ(args->node_names()[1], "");
  EXPECT_EQ(args->node_names()[2], "n1");
}

// What preemption asks of a Pod.
PodRequest pod_with(const char* spec, const char* metadata = "{}") {
  json pod = {{"metadata", json::parse(metadata)}, {"spec", json::parse(spec)}};
  pod["metadata"]["name"] = "p";
  json gpu = {{"name", "gpu"}, {"resources", {{"limits", {{"nvidia.com/gpu", 1}}}}}};
  gpu["resources"]["requests"] = {{"cpu", "500m"}, {"memory", "1Ki"}};
  pod["spec"]["containers"].push_back(gpu);
  return parse_pod(pod.dump()).value_or(PodRequest{});
}

TEST(ExtenderJson, CountsCpuAndMemoryAsKubeScheduler) {
  const struct {
    const char* spec;
    std::uint64_t cpu_milli, memory_bytes;
  } kCases[] = {
      {"{}", 500, 1024},
      {R"({"containers":[{"resources":{"requests":{"cpu":2,"memory":"1Ki"}}}]})", 2500, 2048},
      {R"({"initContainers":[{"resources":{"requests":{"cpu":"400m","memory":"1Mi"}}}]})", 500, 1 << 20},
      {R"({"initContainers":[{"restartPolicy":"Always","resources":{"requests":{"cpu":"1"}}},
                             {"resources":{"requests":{"cpu":"600m"}}}]})",
       1600, 1024},
      {R"({"overhead":{"cpu":"100m","memory":"1"}})", 600, 1025},
      {R"({"resources":{"requests":{"cpu":"3"}}})", 3000, 1024},
      {R"({"containers":[{"resources":{"requests":{"cpu":"what"}}}]})", 500, 1024},
  };
  for (const auto& [spec, cpu_milli, memory_bytes] : kCases) {
    const auto needs = pod_with(spec).needs;
    EXPECT_EQ(needs.cpu_milli, cpu_milli) << spec;
    EXPECT_EQ(needs.memory_milli_bytes, memory_bytes * 1000) << spec;
    EXPECT_FALSE(needs.has_other_needs) << spec;
  }
}

TEST(ExtenderJson, SeesWhatOnlyKubeSchedulerChecks) {
  constexpr const char* kPlain =
      R"({"volumes":[{"name":"a","emptyDir":{}},{"name":"b","configMap":{}},{"name":"c","nfs":{}}],
          "topologySpreadConstraints":[{"whenUnsatisfiable":"ScheduleAnyway"}],
          "containers":[{"ports":[{"containerPort":80}]}]})";
  EXPECT_FALSE(pod_with(kPlain).needs.has_other_needs);
  for (const char* const spec : {
           R"({"volumes":[{"name":"a","persistentVolumeClaim":{"claimName":"x"}}]})",
           R"({"volumes":[{"name":"a","ephemeral":{}}]})",
           R"({"containers":[{"ports":[{"containerPort":80},{"hostPort":80}]}]})",
           R"({"containers":[{"resources":{"requests":{"ephemeral-storage":"1Gi"}}}]})",
           R"({"topologySpreadConstraints":[{"whenUnsatisfiable":"DoNotSchedule"}]})",
           R"({"resourceClaims":[{"name":"x"}]})",
           R"({"affinity":{"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{}]}}})",
       })
    EXPECT_TRUE(pod_with(spec).needs.has_other_needs) << spec;
  const auto affine =
      pod_with(R"({"affinity":{"podAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{}]}}})");
  EXPECT_TRUE(affine.needs.needs_pods);
}

TEST(ExtenderJson, ReadsPodsWithClaimsAlone) {
  constexpr const char* kPod =
      R"({"metadata":{"name":"p","deletionTimestamp":"t"},"spec":{"resourceClaims":)";
  const auto pod = parse_pod(kPod + std::string(R"([{"name":"x"}],"priority":7}})"));
  ASSERT_TRUE(pod);
  EXPECT_TRUE(pod->has_claims && pod->leaving && pod->containers.empty());
  EXPECT_EQ(pod->priority, 7);
  EXPECT_FALSE(parse_pod(kPod + std::string("[]}}"))->has_claims);
}

TEST(ExtenderJson, ReadsPriorityLabelsAndDeletion) {
  const auto pod =
      pod_with(R"({"priority":-5})", R"({"labels":{"app":"web","b":""},"deletionTimestamp":"t"})");
  EXPECT_EQ(pod.priority, -5);
  EXPECT_EQ(pod.labels, "app=web\nb=\n");
  EXPECT_TRUE(pod.leaving);
  EXPECT_FALSE(pod_with("{}").leaving);
  EXPECT_EQ(pod_with("{}").priority, 0);
}

}  // namespace
}  // namespace gpulet::scheduler

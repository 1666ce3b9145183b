#include "scheduler/request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "scheduler/policy.h"

namespace gpulet::scheduler {
namespace {

using nlohmann::json;
using Kind = ContainerRequest::Kind;

json container(const std::string& name, const json& limits) {
  return {{"name", name}, {"resources", {{"limits", limits}}}};
}

json pod(const json& annotations = json::object()) {
  return {
      {"metadata", {{"namespace", "team"}, {"name", "train"}, {"uid", "u1"}, {"annotations", annotations}}},
      {"spec", {{"containers", {container("main", {{"nvidia.com/gpu", "4"}, {"cpu", "8"}})}}}},
      {"status", {{"phase", "Pending"}}}};
}

PodRequest parsed(const json& object) {
  auto request = parse_pod(object.dump());
  EXPECT_TRUE(request.has_value()) << request.error().text();
  return request ? *request : PodRequest();
}

TEST(Request, DevicesOfEachContainerInTheOrderOfTheKubelet) {
  json object = pod();
  object["spec"]["nodeName"] = "n1";
  object["spec"]["initContainers"] = {container("fetch", {{"nvidia.com/gpu", 1}}),
                                      container("none", {{"memory", "1Gi"}}),
                                      container("proxy", {{"nvidia.com/gpu.shared", "2"}})};
  object["spec"]["initContainers"][2]["restartPolicy"] = "Always";
  object["status"]["conditions"] = {
      {{"type", "PodScheduled"}, {"status", "True"}, {"lastTransitionTime", "2026-01-31T12:00:00Z"}}};
  const auto request = parsed(object);
  EXPECT_EQ(request.key(), "team/train");
  EXPECT_EQ(request.uid, "u1");
  EXPECT_EQ(request.node, "n1");
  EXPECT_EQ(request.scheduled, "2026-01-31T12:00:00Z");
  ASSERT_EQ(request.containers.size(), 3U);
  EXPECT_EQ(request.containers[0].kind, Kind::kInit);
  EXPECT_EQ(request.containers[1].kind, Kind::kSidecar);
  EXPECT_EQ(request.containers[1].demands, (std::vector{Demand{ResourceName("nvidia.com/gpu.shared"), 2}}));
  EXPECT_EQ(request.containers[2].demands, (std::vector{Demand{ResourceName("nvidia.com/gpu"), 4}}));
}

TEST(Request, KubernetesOwnResourcesAreNotOurs) {
  json object = pod();
  object["spec"]["containers"][0]["resources"]["limits"] = {
      {"cpu", "4"}, {"hugepages-2Mi", "4Mi"}, {"requests.kubernetes.io/x", "1"}, {"kubernetes.io/y", "1"}};
  EXPECT_TRUE(parsed(object).containers.empty());
}

TEST(Request, EveryAnnotation) {
  const auto request =
      parsed(pod({{"gpulet.io/gpu-model", "A100| H100 "},
                  {"gpulet.io/gpu-memory", "40Gi"},
                  {"gpulet.io/gpu-compute", "8"},
                  {"gpulet.io/gpu-driver", "550.54.14"},
                  {"gpulet.io/gpu-cuda", "12.4"},
                  {"gpulet.io/gpu-links", "NV12"},
                  {"gpulet.io/gpu-selector", R"({"architecture":{"op":"In","value":["hopper"]}})"},
                  {"gpulet.io/policy", "binpack"},
                  {"other.io/gpu-model", "none of ours"}}));
  EXPECT_TRUE(request.malformed.empty()) << request.malformed[0].text();
  const auto& wishes = request.wishes;
  EXPECT_EQ(wishes.models, (std::vector<std::string>{"A100", "H100"}));
  EXPECT_EQ(wishes.memory_mib, 40960U);
  EXPECT_EQ(wishes.compute, std::pair(8U, 0U));
  EXPECT_EQ(wishes.driver, "550.54.14");
  EXPECT_EQ(wishes.cuda, "12.4");
  EXPECT_EQ(wishes.links->nvlinks, 12U);
  ASSERT_EQ(wishes.selector.size(), 1U);
  EXPECT_EQ(wishes.selector[0].text(), "architecture In hopper");
  EXPECT_EQ(request.policy, "binpack");
}

TEST(Request, AMalformedOneIsNamedAndTakenAsAbsent) {
  const std::pair<const char*, const char*> kWrong[] = {
      {"gpu-model", "A100||H100"},  {"gpu-memory", "lots"},    {"gpu-memory", "0"},   {"gpu-memory", "1.5Gi"},
      {"gpu-memory", "99999999Ti"}, {"gpu-compute", "hopper"}, {"gpu-driver", "new"}, {"gpu-cuda", "12.x"},
      {"gpu-links", "NV0"},         {"gpu-links", "fast"},     {"gpu-selector", "{"}, {"policy", "bin-pack"},
  };
  for (const auto& [name, value] : kWrong) {
    const std::string annotation = std::string("gpulet.io/") + name;
    const auto request = parsed(pod({{annotation, value}}));
    ASSERT_EQ(request.malformed.size(), 1U) << name << " " << value;
    EXPECT_EQ(request.malformed[0].annotation, annotation);
    EXPECT_EQ(request.malformed[0].found, value);
    EXPECT_NE(request.malformed[0].accepted.find("accepted"), std::string::npos)
        << request.malformed[0].text();
    EXPECT_FALSE(request.wishes.any());
    EXPECT_TRUE(request.policy.empty());
  }
}

TEST(Request, EveryPolicyThatAPodMayNameIsTaken) {
  for (const auto& name : policy_names()) EXPECT_EQ(parse_policy(name).value(), name);
  EXPECT_NE(parse_policy("binpak").error().text().find("did you mean binpack"), std::string::npos);
}

TEST(Request, MemoryByTheSuffixesOfKubernetes) {
  const std::pair<const char*, std::uint64_t> kMemory[] = {{"40Gi", 40960}, {"40G", 38147},    {"1", 1},
                                                           {"512Mi", 512},  {"1Ti", 1u << 20}, {"1500k", 2}};
  for (const auto& [text, mib] : kMemory) {
    EXPECT_EQ(parsed(pod({{"gpulet.io/gpu-memory", text}})).wishes.memory_mib, mib) << text;
  }
}

TEST(Request, LinksAreComparedByKind) {
  const auto wish = [](const char* text) {
    return *parsed(pod({{"gpulet.io/gpu-links", text}})).wishes.links;
  };
  const topology::Pair nvlink{
      .pcie = inventory::PcieDistance::kSystem, .direct_nvlinks = 0, .switched_nvlinks = 18};
  const topology::Pair one_switch{.pcie = inventory::PcieDistance::kSingle};
  const topology::Pair far{.pcie = inventory::PcieDistance::kSystem};
  EXPECT_TRUE(satisfies(nvlink, wish("NV")));
  EXPECT_TRUE(satisfies(nvlink, wish("NV18")));
  EXPECT_FALSE(satisfies(nvlink, wish("NV19")));
  EXPECT_FALSE(satisfies(one_switch, wish("NV")));
  EXPECT_TRUE(satisfies(one_switch, wish("PIX")));
  EXPECT_TRUE(satisfies(one_switch, wish("NODE")));
  EXPECT_TRUE(satisfies(nvlink, wish("PIX")));  // better than any way over PCIe
  EXPECT_FALSE(satisfies(far, wish("NODE")));
}

TEST(Request, WhetherItPrefersNodesItself) {
  const auto prefers = [](const std::string& spec) {
    const auto pod = parse_pod(R"({"metadata": {"name": "p"}, "spec": )" + spec + "}");
    return pod.value().prefers_nodes;
  };
  for (const char* const spec :
       {R"({})", R"({"affinity": null})",
        R"({"affinity": {"nodeAffinity": {}}, "topologySpreadConstraints": []})",
        R"({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}})",
        R"({"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}})",
        R"({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}, 7]})"}) {
    EXPECT_FALSE(prefers(spec)) << spec;
  }
  for (const char* const spec :
       {R"({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}})",
        R"({"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}})",
        R"({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}})",
        R"({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}, )"
        R"({"whenUnsatisfiable": "ScheduleAnyway"}]})"}) {
    EXPECT_TRUE(prefers(spec)) << spec;
  }
}

TEST(Request, WhatIsNoPodIsRefused) {
  for (const char* text : {"", "[]", "7", "{", R"({"metadata":{"namespace":"a"}})"}) {
    EXPECT_FALSE(parse_pod(text).has_value()) << text;
  }
  EXPECT_FALSE(parse_pod(std::string(1'000'000, '[')).has_value());
}

TEST(Request, PartsOfAnotherKindAreAsAbsent) {
  const auto request =
      parse_pod(R"({"metadata":{"name":"a","annotations":[1]},"status":3,)"
                R"("spec":{"containers":{"name":"x"},"initContainers":[7,{"resources":[]}]}})");
  ASSERT_TRUE(request.has_value());
  EXPECT_TRUE(request->containers.empty());
}

}  // namespace
}  // namespace gpulet::scheduler

#include <algorithm>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "scheduler/core/extender_json.h"
#include "scheduler/core/policy.h"
#include "scheduler/model/pod_request.h"

namespace gpulet::scheduler {
namespace {

const DeviceAttributes kH100{.model = "NVIDIA H100 80GB HBM3",
                             .architecture = "hopper",
                             .memory_mib = 81559,
                             .compute = "9.0",
                             .driver = "570.124.06",
                             .cuda = "12.8",
                             .mig_profile = {},
                             .shares = 1,
                             .numa = 1};

bool holds(const std::string& text, const DeviceAttributes& device = kH100) {
  const auto selector = parse_selector(text);
  EXPECT_TRUE(selector.has_value()) << text << ": " << selector.error().full_message();
  return selector &&
         std::ranges::all_of(*selector, [&](const auto& one) { return matches_expression(one, device); });
}

TEST(Selector, ImplementsNfdOperators) {
  EXPECT_TRUE(holds(R"({"memory":{"op":"Gt","value":["40000"]}})"));
  EXPECT_FALSE(holds(R"({"memory":{"op":"Gt","value":["81559"]}})"));
  EXPECT_TRUE(holds(R"({"memory":{"op":"Lt","value":["81560"]}})"));
  EXPECT_TRUE(holds(R"({"compute":{"op":"GtLt","value":["8.9","9.1"]}})"));
  EXPECT_FALSE(holds(R"({"compute":{"op":"GtLt","value":["9.0","10.0"]}})"));
  EXPECT_TRUE(holds(R"({"architecture":{"op":"In","value":["ampere","Hopper"]}})"));
  EXPECT_TRUE(holds(R"({"architecture":{"op":"NotIn","value":["ampere"]}})"));
  EXPECT_TRUE(holds(R"({"model":{"op":"In","value":["H100"]}})"));
  EXPECT_TRUE(holds(R"({"mig":{"op":"DoesNotExist"}})"));
  EXPECT_TRUE(holds(R"({"numa":{"op":"Exists"}})"));
  EXPECT_TRUE(holds(R"({"numa":{"op":"IsTrue"}})"));
  EXPECT_FALSE(holds(R"({"numa":{"op":"IsFalse"}})"));
  EXPECT_TRUE(holds(R"({"driver":{"op":"Gt","value":["550.54"]},"cuda":{"op":"In","value":["12.8"]}})"));
  EXPECT_FALSE(holds(R"({"driver":{"op":"Gt","value":["550.54"]},"shares":{"op":"Gt","value":["1"]}})"));
}

TEST(Selector, UnknownAttributesNeverCompare) {
  const DeviceAttributes unknown{};
  for (const char* attribute : {"driver", "cuda", "compute", "numa"}) {
    const std::string name = std::string("{\"") + attribute;
    EXPECT_FALSE(holds(name + R"(":{"op":"Lt","value":["99"]}})", unknown)) << attribute;
    EXPECT_FALSE(holds(name + R"(":{"op":"In","value":["0"]}})", unknown)) << attribute;
  }
}

TEST(Selector, ErrorsNameWhatIsExpected) {
  const std::pair<const char*, const char*> kWrong[] = {
      {"", "expected a JSON object of attributes"},
      {"[]", "expected a JSON object of attributes"},
      {"{}", "expected a JSON object of attributes"},
      {R"({"colour":{"op":"In","value":["red"]}})",
       "'colour' is not a device attribute; expected one of model, architecture"},
      {R"({"memory":{"op":"Above","value":["1"]}})", "'Above' is not an operator; expected one of In, NotIn"},
      {R"({"memory":["40000"]})", "'memory' has no \"op\""},
      {R"({"memory":{"op":"Gt","value":[40000]}})", "write \"8\", not 8"},
      {R"({"memory":{"op":"Gt","value":"40000"}})", "not a list"},
      {R"({"memory":{"op":"Gt","value":["1","2"]}})", "Gt of 'memory' takes 1 values"},
      {R"({"memory":{"op":"GtLt","value":["1"]}})", "GtLt of 'memory' takes 2 values"},
      {R"({"mig":{"op":"Exists","value":["1"]}})", "Exists of 'mig' takes 0 values"},
  };
  for (const auto& [text, error] : kWrong) {
    const auto selector = parse_selector(text);
    ASSERT_FALSE(selector.has_value()) << text;
    EXPECT_NE(selector.error().full_message().find(error), std::string::npos)
        << selector.error().full_message();
  }
  EXPECT_FALSE(parse_selector(std::string(kMaxSelectorBytes + 1, ' ')).has_value());
}

TEST(Selector, ComparesVersionsByPart) {
  EXPECT_EQ(compare_versions("550.54", "550.54.0"), 0);
  EXPECT_EQ(compare_versions("550.9", "550.54"), -1);
  EXPECT_EQ(compare_versions("12.10", "12.9"), 1);
  EXPECT_EQ(compare_versions("", "0"), 0);
}

TEST(Selector, MatchesModelsByWholeWords) {
  EXPECT_TRUE(matches_model_name("H100", "NVIDIA H100 80GB HBM3"));
  EXPECT_TRUE(matches_model_name("nvidia-h100-80gb-hbm3", "NVIDIA H100 80GB HBM3"));  // as in the label
  EXPECT_TRUE(matches_model_name("a100 SXM4", "NVIDIA A100-SXM4-80GB"));
  EXPECT_FALSE(matches_model_name("A10", "NVIDIA A100-SXM4-80GB"));
  EXPECT_FALSE(matches_model_name("", "NVIDIA A100-SXM4-80GB"));
  EXPECT_FALSE(matches_model_name("80GB H100", "NVIDIA H100 80GB HBM3"));
}

using nlohmann::json;
using Kind = ContainerRequest::Kind;

json container_json(const std::string& name, const json& limits) {
  return {{"name", name}, {"resources", {{"limits", limits}}}};
}

json pod_json(const json& annotations = json::object()) {
  return {
      {"metadata", {{"namespace", "team"}, {"name", "train"}, {"uid", "u1"}, {"annotations", annotations}}},
      {"spec", {{"containers", {container_json("main", {{"nvidia.com/gpu", "4"}, {"cpu", "8"}})}}}},
      {"status", {{"phase", "Pending"}}}};
}

PodRequest parsed_pod(const json& object) {
  auto request = parse_pod(object.dump());
  EXPECT_TRUE(request.has_value()) << request.error().full_message();
  return request ? *request : PodRequest();
}

TEST(Request, ReadsContainersInAdmissionOrder) {
  json object = pod_json();
  object["spec"]["nodeName"] = "n1";
  object["spec"]["initContainers"] = {container_json("fetch", {{"nvidia.com/gpu", 1}}),
                                      container_json("none", {{"memory", "1Gi"}}),
                                      container_json("proxy", {{"nvidia.com/gpu.shared", "2"}})};
  object["spec"]["initContainers"][2]["restartPolicy"] = "Always";
  object["status"]["conditions"] = {
      {{"type", "PodScheduled"}, {"status", "True"}, {"lastTransitionTime", "2026-01-31T12:00:00Z"}}};
  const auto request = parsed_pod(object);
  EXPECT_EQ(request.pod_key(), "team/train");
  EXPECT_EQ(request.uid, "u1");
  EXPECT_EQ(request.node, "n1");
  EXPECT_EQ(request.bound_at, "2026-01-31T12:00:00Z");
  ASSERT_EQ(request.containers.size(), 3U);
  EXPECT_EQ(request.containers[0].kind, Kind::kInit);
  EXPECT_EQ(request.containers[1].kind, Kind::kSidecar);
  EXPECT_EQ(request.containers[1].devices,
            (std::vector{DeviceRequest{ResourceName("nvidia.com/gpu.shared"), 2}}));
  EXPECT_EQ(request.containers[2].devices, (std::vector{DeviceRequest{ResourceName("nvidia.com/gpu"), 4}}));
}

TEST(Request, IgnoresKubernetesOwnResources) {
  json object = pod_json();
  object["spec"]["containers"][0]["resources"]["limits"] = {
      {"cpu", "4"}, {"hugepages-2Mi", "4Mi"}, {"requests.kubernetes.io/x", "1"}, {"kubernetes.io/y", "1"}};
  EXPECT_TRUE(parsed_pod(object).containers.empty());
}

TEST(Request, ReadsEveryAnnotation) {
  const auto request =
      parsed_pod(pod_json({{"gpulet.io/gpu-model", "A100| H100 "},
                           {"gpulet.io/gpu-memory", "40Gi"},
                           {"gpulet.io/gpu-compute", "8"},
                           {"gpulet.io/gpu-driver", "550.54.14"},
                           {"gpulet.io/gpu-cuda", "12.4"},
                           {"gpulet.io/gpu-links", "NV12"},
                           {"gpulet.io/gpu-selector", R"({"architecture":{"op":"In","value":["hopper"]}})"},
                           {"gpulet.io/policy", "binpack"},
                           {"other.io/gpu-model", "none of ours"}}));
  EXPECT_TRUE(request.malformed.empty()) << request.malformed[0].message();
  const auto& constraints = request.constraints;
  EXPECT_EQ(constraints.models, (std::vector<std::string>{"A100", "H100"}));
  EXPECT_EQ(constraints.memory_mib, 40960U);
  EXPECT_EQ(constraints.compute, std::pair(8U, 0U));
  EXPECT_EQ(constraints.driver, "550.54.14");
  EXPECT_EQ(constraints.cuda, "12.4");
  EXPECT_EQ(constraints.links->nvlinks, 12U);
  ASSERT_EQ(constraints.selector.size(), 1U);
  EXPECT_EQ(constraints.selector[0].expression_text(), "architecture In hopper");
  EXPECT_EQ(request.policy, "binpack");
}

TEST(Request, ReportsMalformedAnnotations) {
  const std::pair<const char*, const char*> kWrong[] = {
      {"gpu-model", "A100||H100"},  {"gpu-memory", "lots"},    {"gpu-memory", "0"},   {"gpu-memory", "1.5Gi"},
      {"gpu-memory", "99999999Ti"}, {"gpu-compute", "hopper"}, {"gpu-driver", "new"}, {"gpu-cuda", "12.x"},
      {"gpu-links", "NV0"},         {"gpu-links", "fast"},     {"gpu-selector", "{"}, {"policy", "bin-pack"},
  };
  for (const auto& [name, value] : kWrong) {
    const std::string annotation = std::string("gpulet.io/") + name;
    const auto request = parsed_pod(pod_json({{annotation, value}}));
    ASSERT_EQ(request.malformed.size(), 1U) << name << " " << value;
    EXPECT_EQ(request.malformed[0].annotation, annotation);
    EXPECT_EQ(request.malformed[0].found, value);
    EXPECT_NE(request.malformed[0].accepted.find("expected"), std::string::npos)
        << request.malformed[0].message();
    EXPECT_FALSE(request.constraints.has_any());
    EXPECT_TRUE(request.policy.empty());
  }
}

TEST(Request, AcceptsEveryPodPolicy) {
  for (const auto& name : policy_names()) EXPECT_EQ(parse_policy(name).value(), name);
  EXPECT_NE(parse_policy("binpak").error().full_message().find("did you mean binpack"), std::string::npos);
}

TEST(Request, ParsesMemorySuffixes) {
  const std::pair<const char*, std::uint64_t> kMemory[] = {{"40Gi", 40960}, {"40G", 38147},    {"1", 1},
                                                           {"512Mi", 512},  {"1Ti", 1u << 20}, {"1500k", 2}};
  for (const auto& [text, mib] : kMemory) {
    EXPECT_EQ(parsed_pod(pod_json({{"gpulet.io/gpu-memory", text}})).constraints.memory_mib, mib) << text;
  }
}

PodRequest pod_with_limits(const json& limits, const json& annotations = json::object()) {
  json object = pod_json(annotations);
  object["spec"]["containers"][0]["resources"]["limits"] = limits;
  return parsed_pod(object);
}

TEST(Request, ReadsOtherFormsOfMemory) {
  const auto hami =
      pod_with_limits({{"nvidia.com/gpu", "1"}, {"nvidia.com/gpumem", "3k"}, {"nvidia.com/gpucores", 30}});
  ASSERT_EQ(hami.containers.size(), 1U);
  EXPECT_EQ(hami.containers[0].devices, (std::vector{DeviceRequest{ResourceName("nvidia.com/gpu"), 1}}))
      << "an amount is no device";
  EXPECT_EQ(hami.containers[0].memory, (fraction::MemoryAmount{.mib = 3000}));
  EXPECT_TRUE(hami.requests_compute);
  EXPECT_EQ(hami.containers[0].memory_source, "limit nvidia.com/gpumem of container main");
  EXPECT_EQ(pod_with_limits({{"nvidia.com/gpu", 1}, {"nvidia.com/gpumem", 3000}}).greatest_memory().mib,
            3000U);
  EXPECT_EQ(parsed_pod(pod_json({{"gpu-fraction", "0.25"}})).greatest_memory().mib_of(80'000), 20'000U);
  EXPECT_EQ(
      parsed_pod(pod_json({{"nvidia.com/container.main.gpu-memory.request", "8Gi"}})).greatest_memory().mib,
      8192U);
  const auto own = parsed_pod(pod_json({{"gpulet.io/gpu-memory", "8Gi"}}));
  EXPECT_EQ(own.greatest_memory().mib, 8192U);
  EXPECT_FALSE(own.requests_compute);
  EXPECT_TRUE(own.containers[0].memory.is_zero()) << "the whole Pod's constraint";
  EXPECT_EQ(own.request_error, "");
}

TEST(Request, ContradictionsAreKept) {
  EXPECT_EQ(parsed_pod(pod_json({{"gpu-fraction", "1.5"}})).request_error,
            "annotation gpu-fraction is \"1.5\": expected a number above 0 and at most 1, as 0.5");
  const auto request = pod_with_limits({{"nvidia.com/gpumem", "3000"}});
  EXPECT_EQ(
      request.request_error,
      "limit nvidia.com/gpumem of container main is \"3000\": expected a GPU for container main beside it, "
      "as nvidia.com/gpu: 1");
  EXPECT_TRUE(request.containers.empty());
  EXPECT_EQ(pod_with_limits({{"cpu", "1"}}, {{"gpu-fraction", "0.5"}}).request_error, "")
      << "another scheduler's Pod";
}

TEST(Request, ComparesLinks) {
  const auto constraint = [](const char* text) {
    return *parsed_pod(pod_json({{"gpulet.io/gpu-links", text}})).constraints.links;
  };
  const topology::Pair nvlink{
      .pcie = inventory::PcieDistance::kSystem, .direct_nvlinks = 0, .switched_nvlinks = 18};
  const topology::Pair one_switch{.pcie = inventory::PcieDistance::kSingle};
  const topology::Pair far{.pcie = inventory::PcieDistance::kSystem};
  EXPECT_TRUE(satisfies_links(nvlink, constraint("NV")));
  EXPECT_TRUE(satisfies_links(nvlink, constraint("NV18")));
  EXPECT_FALSE(satisfies_links(nvlink, constraint("NV19")));
  EXPECT_FALSE(satisfies_links(one_switch, constraint("NV")));
  EXPECT_TRUE(satisfies_links(one_switch, constraint("PIX")));
  EXPECT_TRUE(satisfies_links(one_switch, constraint("NODE")));
  EXPECT_TRUE(satisfies_links(nvlink, constraint("PIX")));  // better than any PCIe path
  EXPECT_FALSE(satisfies_links(far, constraint("NODE")));
}

TEST(Request, DetectsNodePreferences) {
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

TEST(Request, RejectsOtherObjects) {
  for (const char* text : {"", "[]", "7", "{", R"({"metadata":{"namespace":"a"}})"}) {
    EXPECT_FALSE(parse_pod(text).has_value()) << text;
  }
  EXPECT_FALSE(parse_pod(std::string(1'000'000, '[')).has_value());
}

TEST(Request, IgnoresFieldsOfAnotherType) {
  const auto request =
      parse_pod(R"({"metadata":{"name":"a","annotations":[1]},"status":3,)"
                R"("spec":{"containers":{"name":"x"},"initContainers":[7,{"resources":[]}]}})");
  ASSERT_TRUE(request.has_value());
  EXPECT_TRUE(request->containers.empty());
}

}  // namespace
}  // namespace gpulet::scheduler

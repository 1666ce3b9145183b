#include "dra/manifest_check.h"

#include <gtest/gtest.h>

#include <string>

namespace gpulet::dra {
namespace {

constexpr FeatureGates kAllGates{.time_slicing_settings = true, .mps_support = true};

ManifestReport check(const std::string& text, const FeatureGates& gates = {}) {
  const auto report = check_manifests(text, "f.yaml", "gpu.nvidia.com", gates);
  EXPECT_TRUE(report) << report.error().full_message();
  return report.value_or(ManifestReport{});
}

std::string problems(const ManifestReport& report) {
  std::string text;
  for (const auto& problem : report.problems) {
    text += std::to_string(problem.line) + ":" + std::to_string(problem.column) + " " +
            std::to_string(problem.document) + " " + problem.object + ": " + problem.field + ": " +
            problem.message + "\n";
  }
  return text;
}

// A claim with one config.
std::string claim(const std::string& parameters, const std::string& driver = "gpu.nvidia.com") {
  return "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: one, namespace: team}\n"
         "spec:\n  devices:\n    requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]\n"
         "    config:\n      - opaque:\n          driver: " +
         driver + "\n          parameters: " + parameters + "\n";
}

TEST(ManifestCheck, RefusesSharingThatCannotBeApplied) {
  const auto sharing = [](const std::string& text) {
    return claim("{apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: " + text + "}");
  };
  EXPECT_EQ(
      problems(check(sharing("{strategy: MPS, mpsConfig: {defaultActiveThreadPercentage: 50}}"), kAllGates)),
      "");
  EXPECT_EQ(problems(check(sharing("{strategy: TimeSlicing}"), kAllGates)), "");
  EXPECT_EQ(
      problems(check(sharing("{strategy: TimeSlicing, timeSlicingConfig: {interval: Long}}"), kAllGates)),
      "10:145 1 ResourceClaim team/one: "
      "spec.devices.config[0].opaque.parameters.sharing.timeSlicingConfig.interval: expected Default, found "
      "Long: NVML has no call that sets the time slice of a GPU\n");
}

TEST(ManifestCheck, FindsTheConfigsOfEveryKind) {
  const auto report = check(R"(# a comment only
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: template}
spec: {spec: {devices: {config: [{opaque: {driver: gpu.nvidia.com, parameters: {kind: A}}}]}}}
---
---
{"apiVersion": "resource.k8s.io/v1beta1", "kind": "DeviceClass", "metadata": {"name": "class"},
 "spec": {"config": [{"opaque": {"driver": "gpu.nvidia.com",
                                 "parameters": {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "B"}}}]}}
---
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Pod, metadata: {name: pod}}
  - apiVersion: resource.k8s.io/v1
    kind: ResourceClaim
    metadata: {generateName: claim-}
    spec:
      devices:
        config:
          - {requests: [gpu]}
          - opaque: {driver: gpu.nvidia.com}
          - opaque: {driver: other.example.com, parameters: 5}
)");
  EXPECT_EQ(report.objects, 4u);
  EXPECT_EQ(report.configs, 3u);
  EXPECT_EQ(
      problems(report),
      "6:80 1 ResourceClaimTemplate template: spec.spec.devices.config[0].opaque.parameters.apiVersion: "
      "required, not set\n"
      "11:102 2 DeviceClass class: spec.config[0].opaque.parameters.kind: unknown kind \"B\", expected "
      "GpuConfig, MigDeviceConfig, VfioDeviceConfig, ComputeDomainChannelConfig or "
      "ComputeDomainDaemonConfig\n"
      "23:13 3 ResourceClaim claim-: spec.devices.config[0]: only opaque parameters are supported by this "
      "driver\n"
      "24:21 3 ResourceClaim claim-: spec.devices.config[1].opaque.parameters: expected an object\n");
}

TEST(ManifestCheck, ReadsConfigsAsTheAgentDoes) {
  const std::string config = "{apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig";
  EXPECT_EQ(problems(check(claim(config + "}"))), "");
  EXPECT_EQ(check(claim(config + "}")).configs, 1u);
  const std::string time_slicing =
      ", sharing: {strategy: TimeSlicing, timeSlicingConfig: {interval: Default}}}";
  EXPECT_EQ(problems(check(claim(config + time_slicing), kAllGates)), "");
  EXPECT_EQ(
      problems(check(claim(config + time_slicing))),
      "10:102 1 ResourceClaim team/one: spec.devices.config[0].opaque.parameters.sharing.strategy: strategy "
      "TimeSlicing needs the feature gate TimeSlicingSettings, which is off\n");
  EXPECT_EQ(check(claim("{kind: X}", "other.example.com")).configs, 0u);
}

TEST(ManifestCheck, SaysThatNoDeviceTakesAKind) {
  const std::string config = "{apiVersion: resource.nvidia.com/v1beta1, kind: ";
  EXPECT_EQ(problems(check(claim(config + "VfioDeviceConfig}"))),
            "10:71 1 ResourceClaim team/one: spec.devices.config[0].opaque.parameters.kind: a "
            "VfioDeviceConfig applies to no device: gpulet offers no GPU that is passed through to virtual "
            "machines; expected GpuConfig or MigDeviceConfig\n");
  EXPECT_NE(problems(check(claim(config + "ComputeDomainChannelConfig, domainID: d}")))
                .find("no channel of a ComputeDomain"),
            std::string::npos);
  auto alternative = claim(config + "VfioDeviceConfig}");
  alternative.insert(alternative.find("opaque:"), "requests: [gpu/vfio]\n        ");
  EXPECT_EQ(problems(check(alternative)), "");
}

TEST(ManifestCheck, KnowsTheAttributesOfLinkedGpus) {
  const auto constraint = [](const std::string& entry) {
    return problems(
        check("apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: two}\n"
              "spec: {spec: {devices: {constraints: [" +
              entry + "]}}}\n"));
  };
  for (const char* const known :
       {"gpulet.io/nvlinkIsland", "gpulet.io/bestPair", "gpulet.io/bestQuad", "gpu.nvidia.com/any"}) {
    EXPECT_EQ(constraint(std::string("{matchAttribute: ") + known + "}"), "");
  }
  const std::string expected =
      "expected one of gpulet.io/nvlinkIsland, gpulet.io/bestPair, gpulet.io/bestQuad\n";
  EXPECT_EQ(
      constraint("{}, {requests: [gpu], matchAttribute: gpulet.io/bestPairs}"),
      "4:77 1 ResourceClaimTemplate two: spec.spec.devices.constraints[1].matchAttribute: unknown attribute "
      "\"gpulet.io/bestPairs\", " +
          expected);
  EXPECT_NE(constraint("{distinctAttribute: gpulet.io/pair}").find("\"gpulet.io/pair\", " + expected),
            std::string::npos);
  EXPECT_EQ(constraint("5, [x], {matchAttribute: [x]}"), "");
}

TEST(ManifestCheck, TypesScalarsAsKubectlDoes) {
  const auto mps = [](const std::string& settings) {
    return problems(
        check(claim("{apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: "
                    "MPS, mpsConfig: {" +
                    settings + "}}}"),
              kAllGates));
  };
  EXPECT_EQ(mps("defaultActiveThreadPercentage: 50, multiUser: true, defaultPinnedDeviceMemoryLimit: 1Gi"),
            "");
  EXPECT_EQ(mps("multiUser: yes, defaultActiveThreadPercentage: ~"), "");
  EXPECT_NE(mps("multiUser: \"true\"").find("multiUser: expected true or false, found \"true\""),
            std::string::npos);
  EXPECT_NE(mps("multiUser: 1").find("found 1"), std::string::npos);
  EXPECT_NE(mps("defaultActiveThreadPercentage: \"50\"").find("found \"50\""), std::string::npos);
  EXPECT_NE(mps("defaultActiveThreadPercentage: 5.5").find("found 5.5"), std::string::npos);
  EXPECT_NE(mps("multiUser: [no]").find("found a list"), std::string::npos);
}

TEST(ManifestCheck, BearsAnyDocument) {
  for (const char* const text : {"", "---\n---\n", "kind: List\nitems: 5",
                                 "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nspec: 5"}) {
    EXPECT_EQ(problems(check(text)), "") << text;
  }
  EXPECT_EQ(problems(check("apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nspec: {config: 5}")),
            "3:16 1 DeviceClass without a name: spec.config: expected a list\n");
  for (const char* const text : {"5", "[1, 2]", "apiVersion: v1\nkind: [x]", "kind: Pod"}) {
    EXPECT_EQ(problems(check(text)),
              "1:1 1 document: : expected a Kubernetes object, with apiVersion and kind\n")
        << text;
  }
  const auto broken = check_manifests("a: [", "f.yaml", "gpu.nvidia.com", {});
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().full_message().find("f.yaml:"), 0u) << broken.error().full_message();
}

}  // namespace
}  // namespace gpulet::dra

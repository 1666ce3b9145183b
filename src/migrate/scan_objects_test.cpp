#include "migrate/scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "http/access_gate.h"
#include "http/message.h"
#include "migrate/components.h"
#include "migrate/test_objects.h"

namespace gpulet::migrate {
namespace {

using nlohmann::json;
using testing::ElementsAre;

std::vector<Program> parse_programs(const json& object) { return parse_workload(object.dump(), "DaemonSet"); }

TEST(Objects, StaticManifestRunsTheImagesEntryPoint) {
  const auto programs = parse_programs(test::static_plugin());
  ASSERT_EQ(programs.size(), 1u);
  EXPECT_EQ(programs[0].component, Component::kDevicePlugin);
  EXPECT_EQ(programs[0].location(),
            "DaemonSet kube-system/nvidia-device-plugin-daemonset, container nvidia-device-plugin-ctr");
  EXPECT_FALSE(programs[0].has_command);
  EXPECT_EQ(programs[0].installed, Installed::kByHand);
  EXPECT_EQ(programs[0].environment.at("FAIL_ON_INIT_ERROR"), "false");
}

TEST(Objects, ChartPodRunsThreePrograms) {
  const auto programs = parse_programs(test::chart_plugin());
  ASSERT_EQ(programs.size(), 3u);
  EXPECT_TRUE(programs[0].is_init_container);
  EXPECT_EQ(programs[0].component, Component::kConfigManager);
  EXPECT_EQ(programs[1].component, Component::kConfigManager);
  EXPECT_EQ(programs[2].component, Component::kDevicePlugin);
  EXPECT_EQ(programs[2].installed, Installed::kByChart);
  EXPECT_EQ(programs[2].release, "nvdp");
  EXPECT_EQ(programs[2].chart, "nvidia-device-plugin-0.17.1");
  EXPECT_THAT(programs[2].config_maps,
              ElementsAre(ConfigMapRef{"gpu", "nvdp-configs", "", ConfigMapRef::Content::kConfigs}));
}

TEST(Objects, RecognizesProgramsBehindTheOperatorsShell) {
  const auto programs = parse_programs(test::operator_plugin());
  ASSERT_EQ(programs.size(), 1u);
  EXPECT_EQ(programs[0].component, Component::kDevicePlugin);
  EXPECT_TRUE(programs[0].runs_in_shell);
  EXPECT_TRUE(programs[0].arguments.empty());
  EXPECT_EQ(programs[0].installed, Installed::kByOperator);
}

TEST(Objects, FindsCountersBehindTheirMount) {
  const auto programs = parse_programs(test::exporter());
  ASSERT_EQ(programs.size(), 1u);
  EXPECT_EQ(programs[0].component, Component::kDcgmExporter);
  EXPECT_THAT(programs[0].config_maps, ElementsAre(ConfigMapRef{"monitoring", "my-counters", "mine.csv",
                                                                ConfigMapRef::Content::kCounters}));
  EXPECT_THAT(programs[0].external_variables,
              ElementsAre("DCGM_EXPORTER_WEB_CONFIG_FILE from secret web, key file"));
}

TEST(Objects, DropsValuesOfUnknownVariables) {
  EXPECT_EQ(parse_programs(test::exporter())[0].environment.at("EXTRA_PASSWORD"), "");
}

TEST(Objects, RecognizesComponentsByImageAndCommand) {
  struct Case {
    const char *image, *command;
    std::optional<Component> part;
  };
  for (const auto& [image, command, part] : std::vector<Case>{
           {"mirror/own-name:1", "nvidia-device-plugin", Component::kDevicePlugin},
           {"mirror/own-name:1", "/usr/bin/gpu-feature-discovery", Component::kFeatureDiscovery},
           {"mirror/own-name:1", "server", std::nullopt},
           {"registry.example/nvidia/k8s-device-plugin", "mps-control-daemon", Component::kMpsControlDaemon},
           {"registry.example/nvidia/cloud-native/k8s-mig-manager:v1", "", Component::kMigManager},
           {"gke.gcr.io/nvidia-gpu-device-plugin@sha256:1", "/usr/bin/nvidia-gpu-device-plugin",
            Component::kCloudPlugin},
           {"registry/gpulet:1", "", Component::kAgent},
           {"registry/gpulet:1", "nvidia-device-plugin", Component::kDevicePlugin},
           {"nginx", "", std::nullopt}}) {
    ContainerFacts container{.name = "c", .image = image};
    if (*command != '\0') container.command = {command};
    EXPECT_EQ(component_of_container(container), part) << image << " " << command;
  }
  EXPECT_EQ(component_of_container({.name = "c", .image = "gpulet", .arguments = {"scheduler"}}),
            std::nullopt);
  EXPECT_EQ(component_of_container({.name = "c", .image = "gpulet", .arguments = {"agent"}}),
            Component::kAgent);
}

TEST(Objects, IgnoresInvalidObjects) {
  for (const char* text :
       {"", "[]", "null", "{", R"({"spec":{"template":{"spec":{"containers":[1,{"image":3}]}}}})",
        R"({"metadata":{"ownerReferences":7},"spec":{"template":[]}})"}) {
    EXPECT_TRUE(parse_workload(text, "DaemonSet").empty()) << text;
    EXPECT_FALSE(parse_cluster_policy(text)) << text;
    EXPECT_FALSE(parse_node(text)) << text;
    EXPECT_TRUE(config_map_data(text).empty()) << text;
    EXPECT_FALSE(parse_helm_release(text)) << text;
  }
}

TEST(Objects, ReadsRelevantPolicyFields) {
  const auto policy = parse_cluster_policy(test::cluster_policy().dump());
  ASSERT_TRUE(policy);
  EXPECT_EQ(policy->fields.at("dcgmExporter.enabled"), "false");
  EXPECT_EQ(policy->fields.at("migManager.config.name"), "default-mig-parted-config");
  EXPECT_EQ(policy->fields.count("devicePlugin.config.name"), 0u);  // an empty name is invalid
}

std::string release_secret(const json& config) {
  const json release{{"name", "nvdp"},
                     {"namespace", "gpu"},
                     {"version", 4},
                     {"chart", {{"metadata", {{"name", "nvidia-device-plugin"}, {"version", "0.17.1"}}}}},
                     {"config", config}};
  const auto packed = text::encode_base64(text::encode_base64(http::gzip(release.dump())));
  return json{{"type", "helm.sh/release.v1"}, {"data", {{"release", packed}}}}.dump();
}

TEST(Helm, KeepsValuesOfSettingsAndNamesOfOthers) {
  const auto release =
      parse_helm_release(release_secret({{"migStrategy", "mixed"},
                                         {"config", {{"map", {{"a", "secret: text"}}}, {"default", "a"}}},
                                         {"gfd", {{"enabled", true}}},
                                         {"imagePullSecrets", {{{"name", "key"}}}},
                                         {"registryPassword", "hunter2"}}));
  ASSERT_TRUE(release) << release.error().full_message();
  EXPECT_EQ(release->revision, "4");
  EXPECT_EQ(release->version, "0.17.1");
  using Pair = std::pair<std::string, std::string>;
  EXPECT_THAT(release->values, ElementsAre(Pair("config.default", "a"), Pair("gfd.enabled", "true"),
                                           Pair("migStrategy", "mixed")));
  EXPECT_THAT(release->other_names, ElementsAre("config.map", "imagePullSecrets", "registryPassword"));
}

TEST(Helm, RejectsInvalidReleasesWithoutTheirContent) {
  const auto error = [](const json& secret) {
    return parse_helm_release(secret.dump()).error().full_message();
  };
  EXPECT_EQ(error({{"type", "Opaque"}, {"data", {{"release", "aHVudGVyMg=="}}}}), "is not a Helm release");
  EXPECT_EQ(error({{"type", "helm.sh/release.v1"}, {"data", {{"release", "aHVudGVyMg=="}}}}),
            "is not gzip, or exceeds 32 MiB unpacked");
}

// A Secret that the API server stores (1 MiB) and that unpacks to more than the limit.
TEST(Helm, RejectsAReleaseThatUnpacksToMoreThanTheLimit) {
  const std::string release = R"({"name":"n","chart":{"metadata":{"name":"c"}}})";
  const std::string padded = release + std::string(kMaxReleaseBytes + 1 - release.size(), ' ');
  const auto packed = text::encode_base64(text::encode_base64(http::gzip(padded)));
  const std::string bomb = json{{"type", "helm.sh/release.v1"}, {"data", {{"release", packed}}}}.dump();
  EXPECT_LT(bomb.size(), 1u << 20);
  EXPECT_EQ(parse_helm_release(bomb).error().message(), "is not gzip, or exceeds 32 MiB unpacked");
}

}  // namespace
}  // namespace gpulet::migrate

#include "migrate/objects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "migrate/helm.h"
#include "migrate/parts.h"
#include "migrate/test_objects.h"
#include "web/document.h"
#include "web/passwords.h"

namespace gpulet::migrate {
namespace {

using nlohmann::json;
using testing::ElementsAre;

std::vector<Program> read(const json& object) { return programs_of(object.dump(), "DaemonSet"); }

TEST(Objects, TheStaticManifestRunsTheImagesOwnProgram) {
  const auto programs = read(test::static_plugin());
  ASSERT_EQ(programs.size(), 1u);
  EXPECT_EQ(programs[0].part, Part::kDevicePlugin);
  EXPECT_EQ(programs[0].where(),
            "DaemonSet kube-system/nvidia-device-plugin-daemonset, container nvidia-device-plugin-ctr");
  EXPECT_FALSE(programs[0].has_command);
  EXPECT_EQ(programs[0].installed, Installed::kByHand);
  EXPECT_EQ(programs[0].environment.at("FAIL_ON_INIT_ERROR"), "false");
}

TEST(Objects, TheChartsPodHasThreeProgramsOfOneImage) {
  const auto programs = read(test::chart_plugin());
  ASSERT_EQ(programs.size(), 3u);
  EXPECT_TRUE(programs[0].initial);
  EXPECT_EQ(programs[0].part, Part::kConfigManager);
  EXPECT_EQ(programs[1].part, Part::kConfigManager);
  EXPECT_EQ(programs[2].part, Part::kDevicePlugin);
  EXPECT_EQ(programs[2].installed, Installed::kByChart);
  EXPECT_EQ(programs[2].release, "nvdp");
  EXPECT_EQ(programs[2].chart, "nvidia-device-plugin-0.17.1");
  EXPECT_THAT(programs[2].maps, ElementsAre(MapRef{"gpu", "nvdp-configs", "", MapRef::Holds::kConfigs}));
}

TEST(Objects, TheOperatorsShellIsSeenThroughAndItsWaitersAreNot) {
  const auto programs = read(test::operator_plugin());
  ASSERT_EQ(programs.size(), 1u);
  EXPECT_EQ(programs[0].part, Part::kDevicePlugin);
  EXPECT_TRUE(programs[0].through_shell);
  EXPECT_TRUE(programs[0].arguments.empty());
  EXPECT_EQ(programs[0].installed, Installed::kByOperator);
}

TEST(Objects, AnExportersCountersAreFoundBehindTheirMount) {
  const auto programs = read(test::exporter());
  ASSERT_EQ(programs.size(), 1u);
  EXPECT_EQ(programs[0].part, Part::kDcgmExporter);
  EXPECT_THAT(programs[0].maps,
              ElementsAre(MapRef{"monitoring", "my-counters", "mine.csv", MapRef::Holds::kCounters}));
  EXPECT_THAT(programs[0].elsewhere, ElementsAre("DCGM_EXPORTER_WEB_CONFIG_FILE from secret web, key file"));
}

TEST(Objects, AValueThatIsNoSettingIsNotKept) {
  EXPECT_EQ(read(test::exporter())[0].environment.at("EXTRA_PASSWORD"), "");
}

TEST(Objects, WhoseItIsFollowsFromImageAndCommand) {
  struct Case {
    const char *image, *command;
    std::optional<Part> part;
  };
  for (const auto& [image, command, part] :
       std::vector<Case>{{"mirror/own-name:1", "nvidia-device-plugin", Part::kDevicePlugin},
                         {"mirror/own-name:1", "/usr/bin/gpu-feature-discovery", Part::kFeatureDiscovery},
                         {"mirror/own-name:1", "server", std::nullopt},
                         {"registry.example/nvidia/k8s-device-plugin", "mps-control-daemon", Part::kMpsControlDaemon},
                         {"registry.example/nvidia/cloud-native/k8s-mig-manager:v1", "", Part::kMigManager},
                         {"gke.gcr.io/nvidia-gpu-device-plugin@sha256:1", "/usr/bin/nvidia-gpu-device-plugin",
                          Part::kCloudPlugin},
                         {"registry/gpulet:1", "", Part::kAgent},
                         {"registry/gpulet:1", "nvidia-device-plugin", Part::kDevicePlugin},
                         {"nginx", "", std::nullopt}}) {
    ContainerFacts container{.name = "c", .image = image};
    if (*command != '\0') container.command = {command};
    EXPECT_EQ(part_of_container(container), part) << image << " " << command;
  }
  EXPECT_EQ(part_of_container({.name = "c", .image = "gpulet", .arguments = {"scheduler"}}), std::nullopt);
  EXPECT_EQ(part_of_container({.name = "c", .image = "gpulet", .arguments = {"agent"}}), Part::kAgent);
}

TEST(Objects, WhatIsNoObjectGivesNothing) {
  for (const char* text :
       {"", "[]", "null", "{", R"({"spec":{"template":{"spec":{"containers":[1,{"image":3}]}}}})",
        R"({"metadata":{"ownerReferences":7},"spec":{"template":[]}})"}) {
    EXPECT_TRUE(programs_of(text, "DaemonSet").empty()) << text;
    EXPECT_FALSE(policy_of(text)) << text;
    EXPECT_FALSE(node_of(text)) << text;
    EXPECT_TRUE(data_of(text).empty()) << text;
    EXPECT_FALSE(release_of(text)) << text;
  }
}

TEST(Objects, APolicysFieldsThatCount) {
  const auto policy = policy_of(test::cluster_policy().dump());
  ASSERT_TRUE(policy);
  EXPECT_EQ(policy->fields.at("dcgmExporter.enabled"), "false");
  EXPECT_EQ(policy->fields.at("migManager.config.name"), "default-mig-parted-config");
  EXPECT_EQ(policy->fields.count("devicePlugin.config.name"), 0u);  // an empty name is none
}

std::string release_secret(const json& config) {
  const json release{{"name", "nvdp"},
                     {"namespace", "gpu"},
                     {"version", 4},
                     {"chart", {{"metadata", {{"name", "nvidia-device-plugin"}, {"version", "0.17.1"}}}}},
                     {"config", config}};
  const auto packed = web::encode_base64(web::encode_base64(web::gzip(release.dump())));
  return json{{"type", "helm.sh/release.v1"}, {"data", {{"release", packed}}}}.dump();
}

TEST(Helm, ValuesThatAreSettingsAreReadAndOfOthersTheNameAlone) {
  const auto release =
      release_of(release_secret({{"migStrategy", "mixed"},
                                 {"config", {{"map", {{"a", "secret: text"}}}, {"default", "a"}}},
                                 {"gfd", {{"enabled", true}}},
                                 {"imagePullSecrets", {{{"name", "key"}}}},
                                 {"registryPassword", "hunter2"}}));
  ASSERT_TRUE(release) << release.error().text();
  EXPECT_EQ(release->revision, "4");
  EXPECT_EQ(release->version, "0.17.1");
  using Pair = std::pair<std::string, std::string>;
  EXPECT_THAT(release->values, ElementsAre(Pair("config.default", "a"), Pair("gfd.enabled", "true"),
                                           Pair("migStrategy", "mixed")));
  EXPECT_THAT(release->others, ElementsAre("config.map", "imagePullSecrets", "registryPassword"));
}

TEST(Helm, WhatIsNoReleaseIsRefusedWithoutItsContent) {
  const auto error = [](const json& secret) { return release_of(secret.dump()).error().text(); };
  EXPECT_EQ(error({{"type", "Opaque"}, {"data", {{"release", "aHVudGVyMg=="}}}}), "is no release of Helm's");
  EXPECT_EQ(error({{"type", "helm.sh/release.v1"}, {"data", {{"release", "aHVudGVyMg=="}}}}),
            "is no gzip, or unpacked larger than 32 MiB");
}

}  // namespace
}  // namespace gpulet::migrate

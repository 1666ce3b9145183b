#include "migrate/analyse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "migrate/objects.h"
#include "migrate/parts.h"
#include "migrate/test_objects.h"

namespace gpulet::migrate {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

Facts facts_of(const std::vector<json>& objects) {
  Facts facts{.of_cluster = true, .place = "test"};
  for (const auto& object : objects) {
    for (auto& program : programs_of(object.dump(), "DaemonSet"))
      facts.programs.push_back(std::move(program));
  }
  return facts;
}

// "carries", "wrong", …; empty where the report says nothing of it.
std::string fate(const Report& report, const std::string& name) {
  for (const auto& setting : report.settings) {
    if (setting.name == name) return std::string(key(setting.fate));
  }
  return {};
}
std::string note(const Report& report, const std::string& name) {
  for (const auto& setting : report.settings) {
    if (setting.name == name) return setting.note;
  }
  return {};
}
std::vector<std::string> pages(const Report& report) {
  std::vector<std::string> numbers;
  for (const auto& difference : report.differences) numbers.push_back(difference.page.substr(9, 4));
  return numbers;
}
void configure(Facts& facts, const std::map<std::string, std::string>& data) {
  fill(facts.programs, {"gpu", "nvdp-configs", "", MapRef::Holds::kConfigs}, data);
}

TEST(Analyse, NothingFoundIsClear) {
  const auto report = analyse({.of_cluster = true, .place = "test"});
  EXPECT_TRUE(report.clear());
  EXPECT_THAT(report.found, IsEmpty());
  EXPECT_THAT(report.next, IsEmpty());
  EXPECT_THAT(report.differences, IsEmpty());
}

TEST(Analyse, TheStaticManifestNeedsItsCommandSaid) {
  const auto report = analyse(facts_of({test::static_plugin()}));
  EXPECT_TRUE(report.clear());
  EXPECT_EQ(fate(report, "FAIL_ON_INIT_ERROR"), "carries");
  EXPECT_THAT(
      report.next,
      Contains(HasSubstr(
          R"(kubectl -n kube-system patch daemonset/nvidia-device-plugin-daemonset -p '{"spec":{"template":)"
          R"({"spec":{"containers":[{"name":"nvidia-device-plugin-ctr","image":"REGISTRY/gpulet:VERSION",)"
          R"("command":["nvidia-device-plugin"]}]}}}}')")));
  EXPECT_THAT(report.back,
              Contains("`kubectl -n kube-system rollout undo daemonset/nvidia-device-plugin-daemonset`"));
  EXPECT_THAT(pages(report), ElementsAre("0002", "0003", "0004", "0005", "0006", "0009"));
}

TEST(Analyse, TheChartIsUpgradedByItsImageAndRolledBack) {
  auto facts = facts_of({test::chart_plugin(), test::chart_discovery(), test::chart_mps()});
  facts.releases.push_back({.name = "nvdp",
                            .name_space = "gpu",
                            .chart = "nvidia-device-plugin",
                            .version = "0.17.1",
                            .revision = "4",
                            .values = {{"migStrategy", "mixed"}},
                            .others = {"imagePullSecrets"}});
  configure(facts, {{"default",
                     "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: nvidia.com/gpu, "
                     "replicas: 4}\n"}});
  const auto report = analyse(facts);
  EXPECT_TRUE(report.clear()) << testing::PrintToString(report.decide);
  EXPECT_THAT(report.next,
              Contains(HasSubstr("helm upgrade nvdp NVIDIA-CHART -n gpu --version 0.17.1 --reuse-values "
                                 "--set image.repository=REGISTRY/gpulet --set image.tag=VERSION")));
  EXPECT_EQ(std::ranges::count_if(report.next,
                                  [](const auto& step) { return step.find("helm upgrade") != step.npos; }),
            1);  // one release, three workloads
  EXPECT_THAT(report.back, Contains("`helm rollback nvdp 4 -n gpu`"));
  EXPECT_EQ(fate(report, "MIG_STRATEGY"), "carries");
  EXPECT_EQ(fate(report, "NVIDIA_VISIBLE_DEVICES"), "needless");
  EXPECT_EQ(fate(report, "GFD_SLEEP_INTERVAL"), "carries");
  EXPECT_EQ(fate(report, "PROCESS_TO_SIGNAL"), "carries");
  EXPECT_EQ(fate(report, "sharing.timeSlicing"), "carries");
  EXPECT_EQ(fate(report, "migStrategy"), "carries");
  EXPECT_EQ(fate(report, "imagePullSecrets"), "needless");
  EXPECT_THAT(report.next, Contains(HasSubstr("MIG_STRATEGY=mixed")));
  EXPECT_THAT(pages(report), ElementsAre("0002", "0003", "0004", "0005", "0006", "0009", "0015", "0016",
                                         "0017", "0018", "0021"));
}

TEST(Analyse, AConfigIsJudgedByThePluginsOwnRules) {
  struct Case {
    const char *text, *name, *fate, *says;
  };
  for (const auto& [text, name, wanted, says] : std::vector<Case>{
           {"flags: {migStrategy: none}\nresources: {gpus: [{pattern: \"*A100*\", name: a100}]}\n",
            "resources", "differs", "in force here"},
           {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}", "", "wrong", "must be >= 2"},
           {"sharing: {timeSlicing: {resources: [{name: gpu, rename: mine, replicas: 2}]}}",
            "sharing.timeSlicing.rename", "differs", "resets it"},
           {"sharing: {timeSlicing: {resources: [{name: gpu, devices: [0], replicas: 2}]}}",
            "sharing.timeSlicing.devices", "differs", "resets it"},
           {"flags: {migStrategie: mixed}", "", "differs", "migStrategie"},
           {"sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}", "", "wrong",
            "not supported with MPS"}}) {
    auto facts = facts_of({test::chart_plugin()});
    configure(facts, {{"a", text}});
    const auto report = analyse(facts);
    bool said = false;
    for (const auto& setting : report.settings) {
      said =
          said || (setting.of == "configmap gpu/nvdp-configs, key a" && key(setting.fate) == wanted &&
                   setting.note.find(says) != std::string::npos && (*name == '\0' || setting.name == name));
    }
    EXPECT_TRUE(said) << text;
    EXPECT_EQ(report.clear(), std::string(wanted) == "differs" && std::string(says) != "migStrategie")
        << text;
  }
}

TEST(Analyse, AMistypedKeyIsNamedForTheAgentToo) {
  auto facts = facts_of({test::chart_plugin()});
  configure(facts, {{"a", "flags: {migStrategie: mixed}"}});
  const auto report = analyse(facts);
  EXPECT_THAT(report.decide,
              ElementsAre(HasSubstr("`gpulet agent` refuses what NVIDIA's program passes over")));
  EXPECT_THAT(pages(report), Contains("0007"));
}

TEST(Analyse, MpsHasItsOwnDifferences) {
  auto plugin = test::chart_plugin();
  for (auto& one : plugin["spec"]["template"]["spec"]["containers"][1]["env"]) {
    if (one["name"] == "MIG_STRATEGY") one["value"] = "none";
  }
  auto facts = facts_of({plugin, test::chart_mps()});
  configure(facts, {{"a", "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}"}});
  const auto report = analyse(facts);
  EXPECT_TRUE(report.clear()) << testing::PrintToString(report.decide);
  EXPECT_THAT(pages(report), Contains("0013"));
  EXPECT_THAT(pages(report), Contains("0014"));
}

TEST(Analyse, AFlagThatTheProgramWouldNotTakeIsNamed) {
  auto plugin = test::static_plugin();
  auto& container = plugin["spec"]["template"]["spec"]["containers"][0];
  container["args"] = {"--mig-strategy=many", "-pass-device-specs", "--device-split-count", "5"};
  const auto report = analyse(facts_of({plugin}));
  EXPECT_FALSE(report.clear());
  EXPECT_EQ(fate(report, "--mig-strategy"), "wrong");
  EXPECT_THAT(note(report, "--mig-strategy"), HasSubstr("unknown MIG strategy: many"));
  EXPECT_EQ(fate(report, "--pass-device-specs"), "carries");
  EXPECT_EQ(fate(report, "--device-split-count"), "wrong");
  EXPECT_EQ(report.next.front(), "Settle what is to be decided.");
}

TEST(Analyse, AnExportersOptionsAndCounters) {
  auto facts = facts_of({test::exporter()});
  fill(facts.programs, {"monitoring", "my-counters", "mine.csv", MapRef::Holds::kCounters},
       {{"mine.csv",
         "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n"
         "DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT, gauge, Not of a GPU.\n"}});
  const auto report = analyse(facts);
  EXPECT_EQ(fate(report, "-f"), "carries");
  EXPECT_EQ(fate(report, "-c"), "carries");
  EXPECT_EQ(fate(report, "--switch-devices"), "lost");
  EXPECT_EQ(fate(report, "DCGM_EXPORTER_KUBERNETES"), "needless");
  EXPECT_EQ(fate(report, "DCGM_EXPORTER_LISTEN"), "carries");
  EXPECT_EQ(fate(report, "KUBERNETES_VIRTUAL_GPUS"), "carries");
  EXPECT_EQ(fate(report, "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE"), "wrong");
  EXPECT_EQ(fate(report, "DCGM_EXPORTER_WEB_CONFIG_FILE from secret web, key file"), "carries");
  EXPECT_THAT(report.decide, Contains(HasSubstr("DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT")));
  EXPECT_THAT(report.next, Contains(HasSubstr("DCGM_EXPORTER_INTERVAL=10000")));
  EXPECT_THAT(pages(report), ElementsAre("0009", "0019"));
  for (const auto& setting : report.settings) EXPECT_THAT(setting.value, Not(HasSubstr("hunter2")));
}

TEST(Analyse, CountersOfTheExportersImageAreNotInOurs) {
  for (const auto& [file, wanted] :
       {std::pair("default-counters.csv", "needless"), std::pair("dcp-metrics-included.csv", "lost")}) {
    auto exporter = test::exporter();
    auto& pod = exporter["spec"]["template"]["spec"];
    pod["containers"][0]["args"] = {"-f", "/etc/dcgm-exporter/" + std::string(file)};
    pod.erase("volumes");
    EXPECT_EQ(fate(analyse(facts_of({exporter})), "-f"), wanted) << file;
  }
}

TEST(Analyse, TheOperatorLetsGoOfWhatRunsAndKeepsTheRest) {
  auto facts = facts_of({test::operator_plugin()});
  facts.policies.push_back(*policy_of(test::cluster_policy().dump()));
  const auto report = analyse(facts);
  EXPECT_TRUE(report.clear()) << testing::PrintToString(report.decide);
  EXPECT_THAT(report.next,
              Contains(HasSubstr(
                  R"(kubectl patch clusterpolicies.nvidia.com cluster-policy --type merge -p '{"spec":)"
                  R"({"devicePlugin":{"enabled":false},"gfd":{"enabled":false},"migManager":)"
                  R"({"enabled":false}}}')")));
  EXPECT_THAT(report.next, Contains(HasSubstr("default-mig-parted-config")));
  EXPECT_THAT(report.next, Contains(HasSubstr("/run/nvidia/driver")));
  EXPECT_THAT(report.back, Contains(HasSubstr(R"("devicePlugin":{"enabled":true},"gfd":{"enabled":true})")));
  EXPECT_THAT(report.back, Not(Contains(HasSubstr("dcgmExporter"))));  // it was off before
  EXPECT_THAT(report.next, Not(Contains(HasSubstr("The image alone"))));
  EXPECT_THAT(report.next, Not(Contains(HasSubstr("Take away"))));
}

TEST(Analyse, TwoDevicePluginsAreADanger) {
  auto ours =
      test::workload("gpulet", "gpulet",
                     {{"containers", {{{"name", "gpulet"}, {"image", "r/gpulet:1"}, {"args", {"agent"}}}}}});
  EXPECT_THAT(analyse(facts_of({test::static_plugin(), ours})).decide,
              ElementsAre(HasSubstr(
                  "more than one device plugin: DaemonSet kube-system/nvidia-device-plugin-daemonset, "
                  "DaemonSet gpulet/gpulet;")));
  auto cloud = test::workload("kube-system", "nvidia-gpu-device-plugin",
                              {{"containers", {{{"name", "p"}, {"image", "g/nvidia-gpu-device-plugin"}}}}});
  EXPECT_FALSE(analyse(facts_of({cloud})).clear());
  auto pool = ours;  // gpulet's own, of other nodes
  pool["spec"]["template"]["spec"]["nodeSelector"] = {{"pool", "b"}};
  EXPECT_TRUE(analyse(facts_of({ours, pool})).clear());
}

TEST(Analyse, PluginsOfDifferentNodesAreNone) {
  auto other = test::chart_plugin();
  EXPECT_FALSE(analyse(facts_of({test::static_plugin(), other})).clear());
  other["spec"]["template"]["spec"]["nodeSelector"] = {{"pool", "b"}};
  EXPECT_TRUE(analyse(facts_of({test::static_plugin(), other})).clear());
}

TEST(Analyse, TheAgentsVariablesAreEachToldOnce) {
  auto other = test::chart_plugin();
  other["spec"]["template"]["spec"]["nodeSelector"] = {{"pool", "b"}};
  const auto report = analyse(facts_of({test::static_plugin(), other}));
  EXPECT_THAT(report.next, Contains(HasSubstr(" FAIL_ON_INIT_ERROR=false|true ")));
  EXPECT_THAT(report.next, Contains(HasSubstr("CONFIG_FILE_SRCDIR=/available-configs ")));
  EXPECT_THAT(report.next, Not(Contains(HasSubstr("CONFIG_FILE=/config/config.yaml"))));
}

TEST(Analyse, WhatAnImageOfOursCannotRunIsSaid) {
  auto plugin = test::static_plugin();
  plugin["spec"]["template"]["spec"]["containers"][0]["command"] = {"sh", "-c", "nvidia-device-plugin"};
  EXPECT_THAT(analyse(facts_of({plugin})).decide, ElementsAre(HasSubstr("runs through a shell")));
}

TEST(Analyse, NodesLabelsAndCountsAreTold) {
  auto facts = facts_of({test::static_plugin()});
  for (const char* name : {"a", "b"}) {
    facts.nodes.push_back(*node_of(
        json{{"metadata", {{"name", name}, {"labels", {{"nvidia.com/device-plugin.config", "shared"}}}}},
             {"status", {{"allocatable", {{"nvidia.com/gpu", "8"}, {"cpu", "4"}}}}}}
            .dump()));
  }
  const auto report = analyse(facts);
  EXPECT_EQ(fate(report, "nvidia.com/device-plugin.config"), "carries");
  EXPECT_THAT(report.next, Contains(HasSubstr("now nvidia.com/gpu=8 on 2 nodes")));
}

TEST(Analyse, EveryPageThatIsNamedIsThere) {
  auto facts = facts_of({test::chart_plugin(), test::chart_discovery(), test::chart_mps(), test::exporter()});
  configure(facts, {{"a", "flags: {migStrategie: x}\nresources: {gpus: [{pattern: \"*\", name: a}]}"},
                    {"b", "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}"}});
  const auto report = analyse(facts);
  EXPECT_GE(report.differences.size(), 14u);
  for (const auto& difference : report.differences)
    EXPECT_TRUE(std::filesystem::exists(difference.page)) << difference.page;
}

}  // namespace
}  // namespace gpulet::migrate

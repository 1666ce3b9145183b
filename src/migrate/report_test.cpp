#include "migrate/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "migrate/components.h"
#include "migrate/scan.h"
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
  Facts facts{.is_cluster = true, .location = "test"};
  for (const auto& object : objects) {
    for (auto& program : parse_workload(object.dump(), "DaemonSet"))
      facts.programs.push_back(std::move(program));
  }
  return facts;
}

// "carries", "wrong", …; empty if the report does not have it.
std::string outcome_of(const Report& report, const std::string& name) {
  for (const auto& setting : report.settings) {
    if (setting.name == name) return std::string(json_key(setting.outcome));
  }
  return {};
}
std::string note_of(const Report& report, const std::string& name) {
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
void set_config_data(Facts& facts, const std::map<std::string, std::string>& data) {
  attach_config_map(facts.programs, {"gpu", "nvdp-configs", "", ConfigMapRef::Content::kConfigs}, data);
}

TEST(Report, EmptyFactsAreClear) {
  const auto report = build_report({.is_cluster = true, .location = "test"});
  EXPECT_TRUE(report.is_clear());
  EXPECT_THAT(report.found, IsEmpty());
  EXPECT_THAT(report.next_steps, IsEmpty());
  EXPECT_THAT(report.differences, IsEmpty());
}

TEST(Report, StaticManifestNeedsACommand) {
  const auto report = build_report(facts_of({test::static_plugin()}));
  EXPECT_TRUE(report.is_clear());
  EXPECT_EQ(outcome_of(report, "FAIL_ON_INIT_ERROR"), "carries");
  EXPECT_THAT(
      report.next_steps,
      Contains(HasSubstr(
          R"(kubectl -n kube-system patch daemonset/nvidia-device-plugin-daemonset -p '{"spec":{"template":)"
          R"({"spec":{"containers":[{"name":"nvidia-device-plugin-ctr","image":"REGISTRY/gpulet:VERSION-operator",)"
          R"("command":["nvidia-device-plugin"]}]}}}}')")));
  EXPECT_THAT(report.rollback_steps,
              Contains("`kubectl -n kube-system rollout undo daemonset/nvidia-device-plugin-daemonset`"));
  EXPECT_THAT(pages(report), ElementsAre("0002", "0003", "0004", "0005", "0006", "0009"));
}

TEST(Report, ChartIsUpgradedAndRolledBack) {
  auto facts = facts_of({test::chart_plugin(), test::chart_discovery(), test::chart_mps()});
  facts.releases.push_back({.name = "nvdp",
                            .name_space = "gpu",
                            .chart = "nvidia-device-plugin",
                            .version = "0.17.1",
                            .revision = "4",
                            .values = {{"migStrategy", "mixed"}},
                            .other_names = {"imagePullSecrets"}});
  set_config_data(facts,
                  {{"default",
                    "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: nvidia.com/gpu, "
                    "replicas: 4}\n"}});
  const auto report = build_report(facts);
  EXPECT_TRUE(report.is_clear()) << testing::PrintToString(report.decisions);
  EXPECT_THAT(
      report.next_steps,
      Contains(HasSubstr("helm upgrade nvdp NVIDIA-CHART -n gpu --version 0.17.1 --reuse-values "
                         "--set image.repository=REGISTRY/gpulet --set image.tag=VERSION-operator`")));
  EXPECT_EQ(std::ranges::count_if(report.next_steps,
                                  [](const auto& step) { return step.find("helm upgrade") != step.npos; }),
            1);  // one release, three workloads
  EXPECT_THAT(report.rollback_steps, Contains("`helm rollback nvdp 4 -n gpu`"));
  EXPECT_EQ(outcome_of(report, "MIG_STRATEGY"), "carries");
  EXPECT_EQ(outcome_of(report, "NVIDIA_VISIBLE_DEVICES"), "needless");
  EXPECT_EQ(outcome_of(report, "GFD_SLEEP_INTERVAL"), "carries");
  EXPECT_EQ(outcome_of(report, "PROCESS_TO_SIGNAL"), "carries");
  EXPECT_EQ(outcome_of(report, "sharing.timeSlicing"), "carries");
  EXPECT_EQ(outcome_of(report, "migStrategy"), "carries");
  EXPECT_EQ(outcome_of(report, "imagePullSecrets"), "needless");
  EXPECT_THAT(report.next_steps, Contains(HasSubstr("MIG_STRATEGY=mixed")));
  EXPECT_THAT(pages(report), ElementsAre("0002", "0003", "0004", "0005", "0006", "0009", "0015", "0016",
                                         "0017", "0018", "0021"));
}

TEST(Report, EvaluatesConfigFilesWithTheParser) {
  struct Case {
    const char *text, *name, *outcome, *note;
  };
  for (const auto& [text, name, expected, note] : std::vector<Case>{
           {"flags: {migStrategy: none}\nresources: {gpus: [{pattern: \"*A100*\", name: a100}]}\n",
            "resources", "differs", "takes effect"},
           {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}", "", "wrong", "must be >= 2"},
           {"sharing: {timeSlicing: {resources: [{name: gpu, rename: mine, replicas: 2}]}}",
            "sharing.timeSlicing.rename", "differs", "resets it"},
           {"sharing: {timeSlicing: {resources: [{name: gpu, devices: [0], replicas: 2}]}}",
            "sharing.timeSlicing.devices", "differs", "resets it"},
           {"flags: {migStrategie: mixed}", "", "differs", "migStrategie"},
           {"flags: {deviceDiscoveryStrategy: tegra}", "", "wrong", "integrated GPUs of Tegra"},
           {"flags: {deviceDiscoveryStrategy: vfio}", "", "wrong", "gpu-feature-discovery only"},
           {"sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}", "", "wrong",
            "not supported with MPS"}}) {
    auto facts = facts_of({test::chart_plugin()});
    set_config_data(facts, {{"a", text}});
    const auto report = build_report(facts);
    bool found = false;
    for (const auto& setting : report.settings) {
      found =
          found ||
          (setting.source == "configmap gpu/nvdp-configs, key a" && json_key(setting.outcome) == expected &&
           setting.note.find(note) != std::string::npos && (*name == '\0' || setting.name == name));
    }
    EXPECT_TRUE(found) << text;
    EXPECT_EQ(report.is_clear(), std::string(expected) == "differs" && std::string(note) != "migStrategie")
        << text;
  }
}

TEST(Report, ReportsMistypedKeysForTheAgent) {
  auto facts = facts_of({test::chart_plugin()});
  set_config_data(facts, {{"a", "flags: {migStrategie: mixed}"}});
  const auto report = build_report(facts);
  EXPECT_THAT(report.decisions,
              ElementsAre(HasSubstr("`gpulet agent` rejects what NVIDIA's program ignores")));
  EXPECT_THAT(pages(report), Contains("0007"));
}

TEST(Report, ListsDifferencesOfMps) {
  auto plugin = test::chart_plugin();
  for (auto& one : plugin["spec"]["template"]["spec"]["containers"][1]["env"]) {
    if (one["name"] == "MIG_STRATEGY") one["value"] = "none";
  }
  auto facts = facts_of({plugin, test::chart_mps()});
  set_config_data(facts, {{"a", "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}"}});
  const auto report = build_report(facts);
  EXPECT_TRUE(report.is_clear()) << testing::PrintToString(report.decisions);
  EXPECT_THAT(pages(report), Contains("0013"));
  EXPECT_THAT(pages(report), Contains("0014"));
}

TEST(Report, ReportsUnknownFlags) {
  auto plugin = test::static_plugin();
  auto& container = plugin["spec"]["template"]["spec"]["containers"][0];
  container["args"] = {"--mig-strategy=many", "-pass-device-specs", "--device-split-count", "5"};
  const auto report = build_report(facts_of({plugin}));
  EXPECT_FALSE(report.is_clear());
  EXPECT_EQ(outcome_of(report, "--mig-strategy"), "wrong");
  EXPECT_THAT(note_of(report, "--mig-strategy"), HasSubstr("unknown MIG strategy: many"));
  EXPECT_EQ(outcome_of(report, "--pass-device-specs"), "carries");
  EXPECT_EQ(outcome_of(report, "--device-split-count"), "wrong");
  EXPECT_EQ(report.next_steps.front(), "Resolve the decisions above.");
}

TEST(Report, EvaluatesExporterOptionsAndCounters) {
  auto facts = facts_of({test::exporter()});
  attach_config_map(facts.programs,
                    {"monitoring", "my-counters", "mine.csv", ConfigMapRef::Content::kCounters},
                    {{"mine.csv",
                      "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n"
                      "DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT, gauge, Not of a GPU.\n"}});
  const auto report = build_report(facts);
  EXPECT_EQ(outcome_of(report, "-f"), "carries");
  EXPECT_EQ(outcome_of(report, "-c"), "carries");
  EXPECT_EQ(outcome_of(report, "--switch-devices"), "lost");
  EXPECT_EQ(outcome_of(report, "DCGM_EXPORTER_KUBERNETES"), "needless");
  EXPECT_EQ(outcome_of(report, "DCGM_EXPORTER_LISTEN"), "carries");
  EXPECT_EQ(outcome_of(report, "KUBERNETES_VIRTUAL_GPUS"), "carries");
  EXPECT_EQ(outcome_of(report, "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE"), "wrong");
  EXPECT_EQ(outcome_of(report, "DCGM_EXPORTER_WEB_CONFIG_FILE from secret web, key file"), "carries");
  EXPECT_THAT(report.decisions, Contains(HasSubstr("DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT")));
  EXPECT_THAT(report.next_steps, Contains(HasSubstr("DCGM_EXPORTER_INTERVAL=10000")));
  EXPECT_THAT(pages(report), ElementsAre("0009", "0019"));
  for (const auto& setting : report.settings) EXPECT_THAT(setting.value, Not(HasSubstr("hunter2")));
}

TEST(Report, ReportsCountersInTheExportersImage) {
  for (const auto& [file, expected] :
       {std::pair("default-counters.csv", "carries"), std::pair("dcp-metrics-included.csv", "carries"),
        std::pair("1.x-compatibility-metrics.csv", "lost")}) {
    auto exporter = test::exporter();
    auto& pod = exporter["spec"]["template"]["spec"];
    pod["containers"][0]["args"] = {"-f", "/etc/dcgm-exporter/" + std::string(file)};
    pod.erase("volumes");
    EXPECT_EQ(outcome_of(build_report(facts_of({exporter})), "-f"), expected) << file;
  }
}

TEST(Report, TurnsOffReplacedPartsOfTheOperator) {
  auto facts = facts_of({test::operator_plugin()});
  facts.policies.push_back(*parse_cluster_policy(test::cluster_policy().dump()));
  const auto report = build_report(facts);
  EXPECT_TRUE(report.is_clear()) << testing::PrintToString(report.decisions);
  EXPECT_THAT(report.next_steps,
              Contains(HasSubstr(
                  R"(kubectl patch clusterpolicies.nvidia.com cluster-policy --type merge -p '{"spec":)"
                  R"({"devicePlugin":{"enabled":false},"gfd":{"enabled":false},"migManager":)"
                  R"({"enabled":false}}}')")));
  EXPECT_THAT(report.next_steps, Contains(HasSubstr("default-mig-parted-config")));
  EXPECT_THAT(report.next_steps, Contains(HasSubstr("/run/nvidia/driver")));
  EXPECT_THAT(report.rollback_steps,
              Contains(HasSubstr(R"("devicePlugin":{"enabled":true},"gfd":{"enabled":true})")));
  EXPECT_THAT(report.rollback_steps, Not(Contains(HasSubstr("dcgmExporter"))));  // it was off before
  EXPECT_THAT(report.next_steps, Not(Contains(HasSubstr("Remove what it replaces"))));
}

TEST(Report, ChangesTheImageOfTheOperatorsPods) {
  auto facts = facts_of({test::operator_plugin()});
  auto policy = test::cluster_policy();
  policy["spec"]["dcgmExporter"]["enabled"] = policy["spec"]["dcgm"]["enabled"] = true;
  policy["spec"]["migManager"]["enabled"] = false;
  facts.policies.push_back(*parse_cluster_policy(policy.dump()));
  const auto report = build_report(facts);
  const std::string image = R"({"repository":"REGISTRY","image":"gpulet","version":"VERSION-operator"})";
  EXPECT_THAT(report.next_steps,
              Contains(HasSubstr(R"(-p '{"spec":{"devicePlugin":)" + image + R"(,"gfd":)" + image +
                                 R"(,"dcgmExporter":)" + image + R"(,"dcgm":{"enabled":false}}}')")));
  EXPECT_THAT(report.rollback_steps,
              Contains(HasSubstr("kubectl get clusterpolicies.nvidia.com cluster-policy -o yaml")));
}

TEST(Report, ReportsTwoDevicePlugins) {
  auto own = test::workload_object(
      "gpulet", "gpulet",
      {{"containers", {{{"name", "gpulet"}, {"image", "r/gpulet:1"}, {"args", {"agent"}}}}}});
  EXPECT_THAT(build_report(facts_of({test::static_plugin(), own})).decisions,
              ElementsAre(HasSubstr(
                  "more than one device plugin: DaemonSet kube-system/nvidia-device-plugin-daemonset, "
                  "DaemonSet gpulet/gpulet;")));
  auto cloud =
      test::workload_object("kube-system", "nvidia-gpu-device-plugin",
                            {{"containers", {{{"name", "p"}, {"image", "g/nvidia-gpu-device-plugin"}}}}});
  EXPECT_FALSE(build_report(facts_of({cloud})).is_clear());
  auto pool = own;  // gpulet's own, on other nodes
  pool["spec"]["template"]["spec"]["nodeSelector"] = {{"pool", "b"}};
  EXPECT_TRUE(build_report(facts_of({own, pool})).is_clear());
}

TEST(Report, AcceptsPluginsOnDifferentNodes) {
  auto other = test::chart_plugin();
  EXPECT_FALSE(build_report(facts_of({test::static_plugin(), other})).is_clear());
  other["spec"]["template"]["spec"]["nodeSelector"] = {{"pool", "b"}};
  EXPECT_TRUE(build_report(facts_of({test::static_plugin(), other})).is_clear());
}

TEST(Report, ListsEachAgentVariableOnce) {
  auto other = test::chart_plugin();
  other["spec"]["template"]["spec"]["nodeSelector"] = {{"pool", "b"}};
  const auto report = build_report(facts_of({test::static_plugin(), other}));
  EXPECT_THAT(report.next_steps, Contains(HasSubstr(" FAIL_ON_INIT_ERROR=false|true ")));
  EXPECT_THAT(report.next_steps, Contains(HasSubstr("CONFIG_FILE_SRCDIR=/available-configs ")));
  EXPECT_THAT(report.next_steps, Not(Contains(HasSubstr("CONFIG_FILE=/config/config.yaml"))));
}

TEST(Report, ReportsShellCommands) {
  auto plugin = test::static_plugin();
  plugin["spec"]["template"]["spec"]["containers"][0]["command"] = {"sh", "-c", "nvidia-device-plugin"};
  EXPECT_THAT(build_report(facts_of({plugin})).decisions, ElementsAre(HasSubstr("runs through a shell")));
}

TEST(Report, ReportsNodeLabelsAndCounts) {
  auto facts = facts_of({test::static_plugin()});
  for (const char* name : {"a", "b"}) {
    facts.nodes.push_back(*parse_node(
        json{{"metadata", {{"name", name}, {"labels", {{"nvidia.com/device-plugin.config", "shared"}}}}},
             {"status", {{"allocatable", {{"nvidia.com/gpu", "8"}, {"cpu", "4"}}}}}}
            .dump()));
  }
  const auto report = build_report(facts);
  EXPECT_EQ(outcome_of(report, "nvidia.com/device-plugin.config"), "carries");
  EXPECT_THAT(report.next_steps, Contains(HasSubstr("currently nvidia.com/gpu=8 on 2 nodes")));
}

TEST(Report, EveryReferencedPageExists) {
  auto facts = facts_of({test::chart_plugin(), test::chart_discovery(), test::chart_mps(), test::exporter()});
  set_config_data(facts, {{"a", "flags: {migStrategie: x}\nresources: {gpus: [{pattern: \"*\", name: a}]}"},
                          {"b", "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}"}});
  const auto report = build_report(facts);
  EXPECT_GE(report.differences.size(), 14u);
  for (const auto& difference : report.differences)
    EXPECT_TRUE(std::filesystem::exists(difference.page)) << difference.page;
}

}  // namespace
}  // namespace gpulet::migrate

#include "config/load.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/file.h"

namespace gpulet::config {
namespace {

LoadedConfig loaded_from(const Sources& sources) {
  auto loaded = load(sources);
  EXPECT_TRUE(loaded) << loaded.error().full_message();
  return loaded ? std::move(*loaded) : LoadedConfig{};
}

Sources everything() {
  Sources sources;
  sources.file_path = "node.yaml";
  sources.file_content = R"(version: v1
flags:
  migStrategy: single
  mpsRoot: /run/nvidia/mps
  useNodeFeatureAPI: true
  plugin: {deviceListStrategy: [envvar, cdi-cri]}
  gfd: {sleepInterval: 60s}
resources:
  gpus: [{pattern: "*A100*", name: a100}]
  mig: [{pattern: 1g.5gb, name: small}]
sharing:
  mps:
    renameByDefault: true
    resources:
    - {name: a100, replicas: 4, devices: [0, "0:1"]}
    - {name: gpu, rename: half, replicas: 2, devices: 3}
gpulet:
  logFormat: json
  driverCallTimeout: 90s
  mig: {configFile: /etc/mig.yaml, drain: true}
  mps: {manage: false}
  dra: {enabled: true}
  partition:
  - {devices: [0-3], model: "*H100*", nodeLabel: pool=inference, offer: claims, whole: }
  - {devices: [4, GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0], timeSlicing: {replicas: 4, sharesOn: oneGPU}}
  - {devices: [6], mps: {shares: [60, {memory: 40, threads: 30, name: small}]}}
  - {devices: 1, mps: {replicas: 4, name: gpu.quarter, failRequestsGreaterThanOne: false}}
  - {devices: [8], mig: {layout: all-balanced, onDemand: true}, offer: devicePlugin}
  - {devices: [9, "0000:1B:00.0"], exclude: true}
  - {devices: [10], dynamicMig: {profiles: [1g.10gb, 3g.40gb]}}
  - {devices: [11], whole: {consumableShares: 4}}
  - {devices: [12], whole: {consumableShares: memory}}
  - {model: "*T400*", display: true, exclude: true}
  - nodeLabel: cut
    mig: {devices: {1g.10gb: 7}, strategy: single, name: slice}
  power:
    rules:
    - {devices: [0], limit: 80%, clocks: {graphics: 210-1410, memory: 2619}}
    - model: "*H100*"
      nodeLabel: pool=night
      limit: 650W
      schedule:
      - {days: [Mon-Fri], from: "22:00", to: "06:00", limit: 60%}
      - {days: [Sat, Sun], clocks: {graphics: 1200}}
    podAnnotation: {enabled: true, min: 50%}
)";
  sources.environment = {
      {"PASS_DEVICE_SPECS", "true"}, {"CDI_DISABLE_HOOKS", "all"}, {"IMEX_CHANNEL_IDS", "0"}};
  sources.flags = {{"driver-root", {"/run/nvidia/driver"}}, {"listen", {"127.0.0.1:9400"}}};
  return sources;
}

void expect_golden(const std::string& name, const std::string& text) {
  const std::string path = "tests/golden/config/" + name;
  if (std::getenv("UPDATE_GOLDEN")) {
    ASSERT_TRUE(write_file_atomic(path, text));
  }
  const auto golden = read_file(path);
  ASSERT_TRUE(golden) << golden.error().full_message() << " (UPDATE_GOLDEN=1 writes it)";
  EXPECT_EQ(text, *golden);
}

TEST(Print, Defaults) {
  const auto loaded = loaded_from({});
  expect_golden("defaults.yaml", print_yaml(loaded));
  expect_golden("defaults.json", print_json(loaded));
}

TEST(Print, Everything) {
  const auto loaded = loaded_from(everything());
  expect_golden("everything.yaml", print_yaml(loaded));
  expect_golden("everything.json", print_json(loaded));
}

// The output is a file of the same form that loads to the same config.
TEST(Print, LoadsItsOwnOutput) {
  Sources whole_days;
  whole_days.file_path = "node.yaml";
  whole_days.file_content =
      "gpulet: {power: {rules: [{schedule: [{days: [Mon], from: '08:00', to: '08:00', limit: 60%}, "
      "{from: '00:00', to: '00:00', limit: 70%}, {from: '00:00', to: '08:00', limit: 80%}]}]}}\n";
  for (const Sources& sources : {Sources{}, everything(), whole_days}) {
    const auto first = loaded_from(sources);
    Sources again;
    again.file_path = "printed.yaml";
    again.file_content = print_yaml(first);
    const auto second = loaded_from(again);
    ASSERT_EQ(first.values.size(), second.values.size());
    for (std::size_t i = 0; i < first.values.size(); ++i) {
      ASSERT_EQ(first.values[i].has_value(), second.values[i].has_value()) << settings()[i].path;
      if (first.values[i] && settings()[i].kind != Kind::kDuration) {
        EXPECT_EQ(first.values[i]->value, second.values[i]->value) << settings()[i].path;
      }
    }
    EXPECT_EQ(first.config.gpulet.driver_call_timeout, second.config.gpulet.driver_call_timeout);
    ASSERT_EQ(first.config.sharing.resources.size(), second.config.sharing.resources.size());
    for (std::size_t i = 0; i < first.config.sharing.resources.size(); ++i) {
      EXPECT_EQ(first.config.sharing.resources[i].rename, second.config.sharing.resources[i].rename);
      EXPECT_EQ(first.config.sharing.resources[i].replicas, second.config.sharing.resources[i].replicas);
    }
    EXPECT_EQ(first.config.sharing.fail_requests_greater_than_one,
              second.config.sharing.fail_requests_greater_than_one);
    EXPECT_EQ(first.config.gpu_resources.size(), second.config.gpu_resources.size());
    EXPECT_EQ(first.config.gpulet.partition, second.config.gpulet.partition);
    EXPECT_EQ(first.config.gpulet.power, second.config.gpulet.power);
    EXPECT_EQ(first.config.gpulet.mig, second.config.gpulet.mig);
    EXPECT_EQ(first.config.gpulet.mps, second.config.gpulet.mps);
  }
}

TEST(Print, QuotesAmbiguousStrings) {
  Sources sources;
  sources.environment = {
      {"MPS_ROOT", "yes"}, {"NVIDIA_CTK_PATH", "a: \"b\" # \n\\"}, {"NVIDIA_DRIVER_ROOT", "007"}};
  const auto first = loaded_from(sources);
  Sources again;
  again.file_path = "printed.yaml";
  again.file_content = print_yaml(first);
  const auto second = loaded_from(again);
  EXPECT_EQ(second.config.flags.mps_root, "yes");
  EXPECT_EQ(second.config.flags.nvidia_cdi_hook_path, "a: \"b\" # \n\\");
  EXPECT_EQ(second.config.flags.nvidia_driver_root, "007");
}

}  // namespace
}  // namespace gpulet::config

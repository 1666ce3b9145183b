#include "config/load.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "config/test_sources.h"

namespace gpulet::config {
namespace {

Sources flag(const std::string& name, std::vector<std::string> values) {
  Sources sources;
  sources.flags[name] = std::move(values);
  return sources;
}
Sources env(const std::string& name, const std::string& value) {
  Sources sources;
  sources.environment[name] = value;
  return sources;
}

const EffectiveValue& given(const LoadedConfig& loaded, std::string_view path) {
  const auto& value = loaded.values[static_cast<std::size_t>(find_setting_by_path(path) - settings().data())];
  EXPECT_TRUE(value) << path;
  return *value;
}

TEST(Schema, NamesAreUnique) {
  std::vector<std::string_view> flags, variables, paths;
  for (const auto& setting : settings()) {
    if (!setting.flag.empty()) flags.push_back(setting.flag);
    flags.insert(flags.end(), setting.flag_aliases.begin(), setting.flag_aliases.end());
    variables.insert(variables.end(), setting.environment.begin(), setting.environment.end());
    if (!setting.path.empty()) paths.push_back(setting.path);
    EXPECT_FALSE(setting.help.empty()) << setting.path;
    EXPECT_EQ(setting.kind == Kind::kChoice || setting.kind == Kind::kChoices, !setting.choices.empty())
        << setting.path;
  }
  for (auto* names : {&flags, &variables, &paths}) {
    std::ranges::sort(*names);
    EXPECT_EQ(std::ranges::adjacent_find(*names), names->end());
  }
}

// Every flag of NVIDIA's plugin with its alias, its variables and its place in the file.
TEST(Schema, HasEveryNvidiaSetting) {
  struct Row {
    const char *flag, *alias, *variable, *second_variable, *path;
  };
  const Row rows[] = {
      {"mig-strategy", "", "MIG_STRATEGY", "", "flags.migStrategy"},
      {"fail-on-init-error", "", "FAIL_ON_INIT_ERROR", "", "flags.failOnInitError"},
      {"driver-root", "nvidia-driver-root", "NVIDIA_DRIVER_ROOT", "", "flags.nvidiaDriverRoot"},
      {"dev-root", "nvidia-dev-root", "NVIDIA_DEV_ROOT", "", "flags.nvidiaDevRoot"},
      {"pass-device-specs", "", "PASS_DEVICE_SPECS", "", "flags.plugin.passDeviceSpecs"},
      {"device-list-strategy", "", "DEVICE_LIST_STRATEGY", "", "flags.plugin.deviceListStrategy"},
      {"device-id-strategy", "", "DEVICE_ID_STRATEGY", "", "flags.plugin.deviceIDStrategy"},
      {"gdrcopy-enabled", "", "GDRCOPY_ENABLED", "", "flags.gdrcopyEnabled"},
      {"gds-enabled", "", "GDS_ENABLED", "", "flags.gdsEnabled"},
      {"mofed-enabled", "", "MOFED_ENABLED", "", "flags.mofedEnabled"},
      {"cdi-annotation-prefix", "", "CDI_ANNOTATION_PREFIX", "", "flags.plugin.cdiAnnotationPrefix"},
      {"nvidia-cdi-hook-path", "nvidia-ctk-path", "NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH",
       "flags.plugin.nvidiaCTKPath"},
      {"driver-root-ctr-path", "container-driver-root", "DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT",
       "flags.plugin.containerDriverRoot"},
      {"mps-root", "", "MPS_ROOT", "", "flags.mpsRoot"},
      {"shared-devices-allocation-policy", "", "SHARED_DEVICES_ALLOCATION_POLICY", "",
       "flags.plugin.sharedDevicesAllocationPolicy"},
      {"device-discovery-strategy", "", "DEVICE_DISCOVERY_STRATEGY", "", "flags.deviceDiscoveryStrategy"},
      {"imex-channel-ids", "", "IMEX_CHANNEL_IDS", "", "imex.channelIDs"},
      {"imex-required", "", "IMEX_REQUIRED", "", "imex.required"},
      {"kubelet-socket", "", "KUBELET_SOCKET", "", "gpulet.kubeletSocket"},
      {"config-file", "", "CONFIG_FILE", "", ""},
      {"cdi-feature-flags", "", "CDI_FEATURE_FLAGS", "", "gpulet.cdiFeatureFlags"},
      {"cdi-disable-hooks", "", "CDI_DISABLE_HOOKS", "", "gpulet.cdiDisableHooks"},
  };
  for (const auto& row : rows) {
    const auto* setting = find_setting_by_flag(row.flag);
    ASSERT_TRUE(setting) << row.flag;
    if (*row.alias) {
      EXPECT_EQ(find_setting_by_flag(row.alias), setting) << row.alias;
    }
    ASSERT_FALSE(setting->environment.empty()) << row.flag;
    EXPECT_EQ(setting->environment[0], row.variable);
    EXPECT_EQ(setting->environment.size() > 1 ? setting->environment[1] : "", row.second_variable);
    EXPECT_EQ(setting->path, row.path);
  }
  EXPECT_EQ(find_setting_by_flag("nothing"), nullptr);
  EXPECT_EQ(find_setting_by_flag(""), nullptr);
}

TEST(Load, EmptySourcesGiveTheDefaults) {
  const auto loaded = load({});
  ASSERT_TRUE(loaded) << loaded.error().full_message();
  const auto& c = loaded->config;
  EXPECT_EQ(c.flags.mig_strategy, MigStrategy::kNone);
  EXPECT_TRUE(c.flags.fail_on_init_error);
  EXPECT_EQ(c.flags.mps_root, "");
  EXPECT_EQ(c.flags.nvidia_driver_root, "/");
  EXPECT_EQ(c.flags.nvidia_dev_root, "/");
  EXPECT_FALSE(c.flags.gdrcopy_enabled || c.flags.gds_enabled || c.flags.mofed_enabled ||
               c.flags.pass_device_specs);
  EXPECT_EQ(c.flags.device_discovery_strategy, DeviceDiscoveryStrategy::kAuto);
  EXPECT_EQ(c.flags.device_list_strategy, std::vector{DeviceListStrategy::kEnvvar});
  EXPECT_EQ(c.flags.device_id_strategy, DeviceIdStrategy::kUuid);
  EXPECT_EQ(c.flags.cdi_annotation_prefix, "cdi.k8s.io/");
  EXPECT_EQ(c.flags.nvidia_cdi_hook_path, "/usr/bin/nvidia-ctk");
  EXPECT_EQ(c.flags.container_driver_root, "/driver-root");
  EXPECT_EQ(c.flags.shared_devices_allocation_policy, SharedDevicesAllocationPolicy::kDistributed);
  EXPECT_TRUE(c.flags.cdi_feature_flags.empty() && c.flags.cdi_disable_hooks.empty());
  EXPECT_EQ(c.flags.disable_healthchecks + c.flags.enable_healthchecks, "");
  EXPECT_TRUE(c.imex.channel_ids.empty());
  EXPECT_FALSE(c.imex.required);
  EXPECT_EQ(c.sharing.strategy, SharingStrategy::kNone);
  EXPECT_EQ(c.config_file, "");
  EXPECT_FALSE(c.kubelet_socket);
  ASSERT_EQ(c.gpu_resources.size(), 1u);
  EXPECT_EQ(c.gpu_resources[0].pattern, "*");
  EXPECT_EQ(c.gpu_resources[0].name.str(), "nvidia.com/gpu");
  EXPECT_TRUE(c.mig_resources.empty());
  const GpuletSettings own;
  EXPECT_EQ(c.gpulet.placement_policy, own.placement_policy);
  EXPECT_EQ(c.gpulet.kubelet_dir, own.kubelet_dir);
  EXPECT_EQ(c.gpulet.listen, own.listen);
  EXPECT_EQ(c.gpulet.socket, own.socket);
  EXPECT_EQ(c.gpulet.socket_mode, own.socket_mode);
  EXPECT_EQ(c.gpulet.log_format, own.log_format);
  EXPECT_EQ(c.gpulet.log_level, own.log_level);
  EXPECT_EQ(c.gpulet.driver_call_timeout, own.driver_call_timeout);
  for (const auto& setting : health::policy_settings()) {
    EXPECT_EQ(policy_value(c.gpulet.health, setting), policy_value(own.health, setting)) << setting.key;
  }
  EXPECT_EQ(c.gpulet.health.trust_recovery_action, own.health.trust_recovery_action);
  EXPECT_TRUE(c.gpulet.health.class_effects.empty() && c.gpulet.health.class_holds.empty());
  EXPECT_EQ(c.gpulet.state_dir, own.state_dir);
  EXPECT_EQ(c.gpulet.kernel_log, own.kernel_log);
  EXPECT_EQ(c.gpulet.health_file, own.health_file);
  EXPECT_EQ(given(*loaded, "gpulet.kubeletSocket").origin, "default, below gpulet.kubeletDir");
  EXPECT_EQ(std::get<std::string>(given(*loaded, "gpulet.kubeletSocket").value),
            "/var/lib/kubelet/device-plugins/kubelet.sock");
  EXPECT_TRUE(loaded->warnings.empty());
}

TEST(Load, FlagThenEnvironmentThenFileThenDefault) {
  Sources sources = file_source("version: v1\nflags:\n  migStrategy: mixed\n");
  auto loaded = load(sources);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->config.flags.mig_strategy, MigStrategy::kMixed);
  EXPECT_EQ(given(*loaded, "flags.migStrategy").origin, "file x.yaml:3:16");
  EXPECT_EQ(given(*loaded, "flags.failOnInitError").origin, "default");
  sources.environment["MIG_STRATEGY"] = "single";
  loaded = load(sources);
  EXPECT_EQ(loaded->config.flags.mig_strategy, MigStrategy::kSingle);
  EXPECT_EQ(given(*loaded, "flags.migStrategy").origin, "env MIG_STRATEGY");
  sources.flags["mig-strategy"] = {"mixed", "none"};  // the last one counts
  loaded = load(sources);
  EXPECT_EQ(loaded->config.flags.mig_strategy, MigStrategy::kNone);
  EXPECT_EQ(given(*loaded, "flags.migStrategy").origin, "flag --mig-strategy");
}

TEST(Load, AliasesAndSecondVariables) {
  EXPECT_EQ(load(flag("nvidia-driver-root", {"/run/nvidia"}))->config.flags.nvidia_driver_root,
            "/run/nvidia");
  EXPECT_EQ(load(flag("container-driver-root", {"/r"}))->config.flags.container_driver_root, "/r");
  EXPECT_EQ(load(env("CONTAINER_DRIVER_ROOT", "/r"))->config.flags.container_driver_root, "/r");
  auto both = env("NVIDIA_CTK_PATH", "/second");
  both.environment["NVIDIA_CDI_HOOK_PATH"] = "/first";
  EXPECT_EQ(load(both)->config.flags.nvidia_cdi_hook_path, "/first");
}

TEST(Load, DevRootFollowsTheDriverRoot) {
  const auto follows = load(flag("driver-root", {"/run/nvidia/driver"}));
  EXPECT_EQ(follows->config.flags.nvidia_dev_root, "/run/nvidia/driver");
  EXPECT_EQ(given(*follows, "flags.nvidiaDevRoot").origin, "default, the driver root");
  EXPECT_EQ(
      load(file_source("flags: {nvidiaDriverRoot: /a, nvidiaDevRoot: /b}"))->config.flags.nvidia_dev_root,
      "/b");
  EXPECT_EQ(
      load(file_source("flags: {nvidiaDriverRoot: /a, nvidiaDevRoot: ''}"))->config.flags.nvidia_dev_root,
      "/a");
}

TEST(Load, BooleansInGoAndYamlForm) {
  EXPECT_TRUE(load(env("PASS_DEVICE_SPECS", "T"))->config.flags.pass_device_specs);
  EXPECT_TRUE(load(env("PASS_DEVICE_SPECS", "1"))->config.flags.pass_device_specs);
  EXPECT_FALSE(load(env("FAIL_ON_INIT_ERROR", ""))->config.flags.fail_on_init_error);
  EXPECT_TRUE(load(flag("gds-enabled", {""}))->config.flags.gds_enabled);
  EXPECT_TRUE(load(flag("gds-enabled", {}))->config.flags.gds_enabled);
  EXPECT_FALSE(load(flag("fail-on-init-error", {"false"}))->config.flags.fail_on_init_error);
  EXPECT_EQ(load_error(env("PASS_DEVICE_SPECS", "yes")), "env PASS_DEVICE_SPECS: 'yes' is not true or false");
  EXPECT_TRUE(load(file_source("flags: {gdsEnabled: yes}"))->config.flags.gds_enabled);
  EXPECT_FALSE(load(file_source("flags: {failOnInitError: off}"))->config.flags.fail_on_init_error);
  EXPECT_EQ(load_error(file_source("flags: {gdsEnabled: \"true\"}")),
            "x.yaml:1:21: flags.gdsEnabled: expected true or false, found the quoted string 'true'");
  EXPECT_EQ(load_error(file_source("flags: {gdsEnabled: 1}")),
            "x.yaml:1:21: flags.gdsEnabled: expected true or false, found '1'");
}

TEST(Load, DeviceListStrategyIsAStringOrAList) {
  using enum DeviceListStrategy;
  const auto strategies = [](const Sources& s) { return load(s)->config.flags.device_list_strategy; };
  EXPECT_EQ(strategies(file_source("flags: {plugin: {deviceListStrategy: volume-mounts}}")),
            std::vector{kVolumeMounts});
  EXPECT_EQ(strategies(file_source("flags: {plugin: {deviceListStrategy: [cdi-cri, envvar]}}")),
            (std::vector{kCdiCri, kEnvvar}));
  EXPECT_EQ(strategies(file_source("flags: {plugin: {deviceListStrategy: \"envvar,cdi-cri\"}}")),
            (std::vector{kEnvvar, kCdiCri}));
  EXPECT_EQ(strategies(env("DEVICE_LIST_STRATEGY", "envvar, cdi-annotations,envvar")),
            (std::vector{kEnvvar, kCdiAnnotations}));
  EXPECT_EQ(strategies(flag("device-list-strategy", {"envvar", "cdi-cri,volume-mounts"})),
            (std::vector{kEnvvar, kCdiCri, kVolumeMounts}));
  EXPECT_EQ(load_error(file_source("flags:\n  plugin:\n    deviceListStrategy: [envvar, cdi]\n")),
            "x.yaml:3:25: flags.plugin.deviceListStrategy: invalid --device-list-strategy option: invalid "
            "strategy: cdi "
            "(expected envvar, volume-mounts, cdi-annotations or cdi-cri)");
  EXPECT_NE(
      load_error(file_source("flags: {plugin: {deviceListStrategy: []}}")).find("expected at least one of"),
      std::string::npos);
}

TEST(Load, UnknownChoicesFailWithNvidiasErrorText) {
  EXPECT_EQ(load_error(env("MIG_STRATEGY", "all")),
            "env MIG_STRATEGY: unknown MIG strategy: all (expected none, single or mixed)");
  EXPECT_EQ(load_error(flag("device-id-strategy", {"name"})),
            "flag --device-id-strategy: invalid --device-id-strategy option: name (expected uuid or index)");
  EXPECT_EQ(load_error(flag("shared-devices-allocation-policy", {"x"})),
            "flag --shared-devices-allocation-policy: invalid --shared-devices-allocation-policy option: x "
            "(expected distributed or packed)");
  EXPECT_EQ(load_error(file_source("flags: {deviceDiscoveryStrategy: vfio}")),
            "x.yaml:1:34: flags.deviceDiscoveryStrategy: invalid --device-discovery-strategy option: vfio "
            "(vfio is for "
            "gpu-feature-discovery only; expected auto or nvml)");
  EXPECT_EQ(load_error(file_source("flags: {deviceDiscoveryStrategy: tegra}")),
            "x.yaml:1:34: flags.deviceDiscoveryStrategy: invalid --device-discovery-strategy option: tegra "
            "(gpulet finds GPUs by NVML, which does not list the integrated GPUs of Tegra; expected auto or "
            "nvml)");
  auto discovery = file_source("flags: {deviceDiscoveryStrategy: vfio}");
  discovery.discovery = true;
  EXPECT_EQ(load(discovery)->config.flags.device_discovery_strategy, DeviceDiscoveryStrategy::kVfio);
  discovery.environment["DEVICE_DISCOVERY_STRATEGY"] = "sysfs";
  EXPECT_EQ(
      load_error(discovery),
      "env DEVICE_DISCOVERY_STRATEGY: invalid --device-discovery-strategy option: sysfs (expected auto, "
      "nvml or vfio)");
  EXPECT_EQ(load_error(flag("nonsense", {"x"})), "flag --nonsense: unknown flag");
  EXPECT_EQ(load_error(file_source("flags: {migStrategy: [none]}")),
            "x.yaml:1:22: flags.migStrategy: expected a string, found a list");
}

// From every source, as every program.
TEST(Load, AStrategyOfDiscoveryThatGpuletLacksIsRefused) {
  struct Case {
    const char* strategy;
    bool discovery;  // gpu-feature-discovery
    const char* reason;
  };
  constexpr const char* kNoTegra =
      "gpulet finds GPUs by NVML, which does not list the integrated GPUs of Tegra";
  for (const auto& one : std::vector<Case>{{"tegra", false, kNoTegra},
                                           {"tegra", true, kNoTegra},
                                           {"vfio", false, "vfio is for gpu-feature-discovery only"},
                                           {"wsl", false, "expected auto or nvml"},
                                           {"wsl", true, "expected auto, nvml or vfio"},
                                           {"csv", false, "expected auto or nvml"}}) {
    auto file = file_source("flags: {deviceDiscoveryStrategy: " + std::string(one.strategy) + "}");
    Sources by_flag, by_variable;
    by_flag.flags["device-discovery-strategy"] = {one.strategy};
    by_variable.environment["DEVICE_DISCOVERY_STRATEGY"] = one.strategy;
    for (auto* sources : {&file, &by_flag, &by_variable}) {
      for (const bool drop_in : {false, true}) {
        sources->drop_in = drop_in;
        sources->discovery = one.discovery;
        const auto error = load_error(*sources);
        EXPECT_NE(error.find("invalid --device-discovery-strategy option: " + std::string(one.strategy)),
                  std::string::npos)
            << error;
        EXPECT_NE(error.find(one.reason), std::string::npos) << error;
        EXPECT_EQ(error.find('\n'), std::string::npos) << error;
      }
    }
  }
}

TEST(Load, AnEmptyListOfDeviceListStrategiesIsTakenAsADropInOnly) {
  auto sources = file_source("flags: {plugin: {deviceListStrategy: []}}");
  EXPECT_NE(load_error(sources).find("expected at least one of envvar"), std::string::npos);
  sources.drop_in = true;
  const auto loaded = load(sources);
  ASSERT_TRUE(loaded) << loaded.error().full_message();
  EXPECT_TRUE(loaded->config.flags.device_list_strategy.empty());
  ASSERT_EQ(loaded->warnings.size(), 1u);
  EXPECT_EQ(loaded->warnings[0],
            "x.yaml:1:38: flags.plugin.deviceListStrategy: the list is empty: containers get only what "
            "passDeviceSpecs gives them");
}

TEST(Load, ImexChannelsAreEmptyOrZero) {
  EXPECT_EQ(load(file_source("imex: {channelIDs: [0], required: true}"))->config.imex.channel_ids,
            std::vector{0u});
  EXPECT_TRUE(load(file_source("imex: {channelIDs: [], required: true}"))->config.imex.required);
  EXPECT_EQ(load(env("IMEX_CHANNEL_IDS", "0"))->config.imex.channel_ids, std::vector{0u});
  EXPECT_TRUE(load(env("IMEX_CHANNEL_IDS", ""))->config.imex.channel_ids.empty());
  EXPECT_EQ(load_error(file_source("imex: {channelIDs: [2]}")),
            "x.yaml:1:20: imex.channelIDs: channelIDs must be [] or [0]; found [2]");
  EXPECT_EQ(load_error(file_source("imex: {channelIDs: [0, 0]}")),
            "x.yaml:1:20: imex.channelIDs: channelIDs must be [] or [0]; found [0 0]");
  EXPECT_NE(load_error(file_source("imex: {channelIDs: [\"0\"]}")).find("expected a list of whole numbers"),
            std::string::npos);
  EXPECT_NE(load_error(env("IMEX_CHANNEL_IDS", "a")).find("'a' is not a whole number"), std::string::npos);
}

TEST(Load, KubeletSocket) {
  EXPECT_EQ(load(env("KUBELET_SOCKET", ""))->config.kubelet_socket, "");
  EXPECT_EQ(load(flag("kubelet-socket", {"/x/k.sock"}))->config.kubelet_socket, "/x/k.sock");
  const auto moved = load(env("GPULET_KUBELET_DIR", "/data/kubelet"));
  EXPECT_FALSE(moved->config.kubelet_socket);
  EXPECT_EQ(moved->config.device_plugin_dir(), "/data/kubelet/device-plugins");
}

TEST(Load, Version) {
  EXPECT_TRUE(load(file_source("version: v1")));
  EXPECT_TRUE(load(file_source("version: \"\"")));
  EXPECT_TRUE(load(file_source("version:")));
  EXPECT_EQ(load_error(file_source("version: v2")),
            "x.yaml:1:10: version: unknown version: v2 (expected v1)");
}

TEST(Load, EmptyAndNullFilesAreTheDefaults) {
  for (const auto* content : {"", "\n", "# only a comment\n", "flags:\n",
                              "flags: {plugin: }\nsharing:\nresources: ~\n", "flags: {migStrategy: null}"}) {
    const auto loaded = load(file_source(content));
    ASSERT_TRUE(loaded) << content << ": " << loaded.error().full_message();
    EXPECT_EQ(loaded->config.flags.mig_strategy, MigStrategy::kNone);
  }
  EXPECT_EQ(load_error(file_source("just text")),
            "x.yaml:1:1: expected a mapping with version, flags…, found 'just text'");
  EXPECT_EQ(load_error(file_source("flags: 3")), "x.yaml:1:8: flags: expected a mapping, found '3'");
}

TEST(Load, OtherProgramsFieldsAreAcceptedAndTypeChecked) {
  const auto loaded =
      load(file_source("flags:\n  useNodeFeatureAPI: true\n  gfd: {oneshot: false, noTimestamp: true, "
                       "sleepInterval: 5, outputFile: /o, machineTypeFile: /m}\n"));
  ASSERT_TRUE(loaded) << loaded.error().full_message();
  EXPECT_EQ(std::get<std::string>(given(*loaded, "flags.gfd.sleepInterval").value), "5ns");
  for (const auto* interval : {"infinite", "60s", "\"1m30s\"", "0", "9223372036854775807"}) {
    EXPECT_TRUE(load(file_source("flags: {gfd: {sleepInterval: " + std::string(interval) + "}}")))
        << interval;
  }
  for (const auto* interval : {"never", "\"5\"", "[1s]", "1 day"}) {
    EXPECT_FALSE(load(file_source("flags: {gfd: {sleepInterval: " + std::string(interval) + "}}")))
        << interval;
  }
  EXPECT_FALSE(load(file_source("flags: {useNodeFeatureAPI: maybe}")));
}

TEST(Load, TheStartupTaintIsAKeyOfItsOwn) {
  const auto load_with = [](const std::string& key) {
    return load(file_source("gpulet:\n  startupTaint: \"" + key + "\"\n"));
  };
  EXPECT_EQ(load(Sources())->config.gpulet.startup_taint, "");
  for (const std::string key : {"", "gpulet.io/not-ready", "gpu-not-ready",
                                "startup-taint.cluster-autoscaler.kubernetes.io/gpulet"}) {
    const auto loaded = load_with(key);
    ASSERT_TRUE(loaded) << loaded.error().full_message();
    EXPECT_EQ(loaded->config.gpulet.startup_taint, key);
  }
  EXPECT_EQ(load(env("GPULET_STARTUP_TAINT", "gpulet.io/a"))->config.gpulet.startup_taint, "gpulet.io/a");
  for (const std::string key : {"gpulet.io/", "a b", "gpulet.io/not-ready=true:NoSchedule",
                                "gpulet.io/gpu-fault", "node.kubernetes.io/not-ready"}) {
    const auto loaded = load_with(key);
    ASSERT_FALSE(loaded) << key;
    EXPECT_NE(loaded.error().full_message().find("gpulet.startupTaint is"), std::string::npos)
        << loaded.error().full_message();
  }
}

TEST(Load, OwnSettings) {
  const auto loaded = load(file_source(
      "gpulet:\n  placementPolicy: tightest\n  kubeletDir: /k\n  listen: \"[::1]:9\"\n  logFormat: json\n"
      "  logLevel: debug\n  driverCallTimeout: 500ms\n  stateDir: /s\n  kernelLog: \"\"\n  healthFile: /h\n"
      "  createDeviceNodes: false\n  socket: /s/a.sock\n  socketMode: 0666\n"
      "  disableHealthChecks: \"94, 95\"\n  enableHealthChecks: 109\n"));
  ASSERT_TRUE(loaded) << loaded.error().full_message();
  const auto& own = loaded->config.gpulet;
  EXPECT_EQ(own.placement_policy, PlacementPolicy::kTightest);
  EXPECT_EQ(own.kubelet_dir, "/k");
  EXPECT_EQ(own.listen, "[::1]:9");
  EXPECT_EQ(own.log_format, LogFormat::kJson);
  EXPECT_EQ(own.log_level, LogLevel::kDebug);
  EXPECT_EQ(own.driver_call_timeout, std::chrono::milliseconds(500));
  EXPECT_EQ(own.state_dir, "/s");
  EXPECT_EQ(own.kernel_log, "");
  EXPECT_EQ(own.health_file, "/h");
  EXPECT_FALSE(own.create_device_nodes);
  EXPECT_EQ(own.socket, "/s/a.sock");
  EXPECT_EQ(own.socket_mode, 0666u);
  EXPECT_EQ(loaded->config.flags.disable_healthchecks, "94, 95");
  EXPECT_EQ(loaded->config.flags.enable_healthchecks, "109");
  EXPECT_EQ(load(env("DP_DISABLE_HEALTHCHECKS", "all"))->config.flags.disable_healthchecks, "all");
  EXPECT_EQ(load(env("GPULET_LISTEN", ""))->config.gpulet.listen, "");
  EXPECT_EQ(load(env("GPULET_SOCKET", ""))->config.gpulet.socket, "");
  EXPECT_NE(load_error(env("GPULET_SOCKET", "run")).find("is not an absolute path or empty"),
            std::string::npos);
  EXPECT_EQ(load(flag("socket-mode", {"0600"}))->config.gpulet.socket_mode, 0600u);
  for (const char* mode : {"", "rw", "0680", "0o660", "1777", "-660", "432"})
    EXPECT_NE(load_error(flag("socket-mode", {mode})).find("is not a file mode such as 0660"),
              std::string::npos)
        << mode;
  EXPECT_NE(load_error(env("GPULET_LISTEN", "localhost")).find("is not host:port"), std::string::npos);
  EXPECT_NE(load_error(env("GPULET_LISTEN", "::1:80")).find("is not host:port"), std::string::npos);
  EXPECT_NE(load_error(env("GPULET_LISTEN", "a:70000")).find("is not host:port"), std::string::npos);
  EXPECT_NE(load_error(env("GPULET_KUBELET_DIR", "var")).find("is not an absolute path"), std::string::npos);
  EXPECT_NE(load_error(env("GPULET_STATE_DIR", "var")).find("is not an absolute path or empty"),
            std::string::npos);
  EXPECT_NE(load_error(flag("driver-call-timeout", {"10"})).find("is not a duration such as 10s"),
            std::string::npos);
  EXPECT_NE(load_error(flag("driver-call-timeout", {"0"})).find("is not between 1ms and 24h"),
            std::string::npos);
}

TEST(Load, UnknownKeysReportPositionAndNearestKey) {
  EXPECT_EQ(load_error(file_source("version: v1\nflags:\n  migStrategie: mixed\n")),
            "x.yaml:3:3: flags: unknown key 'migStrategie'; did you mean migStrategy?");
  EXPECT_EQ(load_error(file_source("flag: {}")), "x.yaml:1:1: unknown key 'flag'; did you mean flags?");
  EXPECT_EQ(load_error(file_source("flags: {resourceNames: [nvidia.com/gpu]}")),
            "x.yaml:1:9: flags: unknown key 'resourceNames'; it belongs at resources.gpus");
  EXPECT_EQ(
      load_error(file_source("gpulet: {health: {interval: 5s}}")),
      "x.yaml:1:19: gpulet.health: unknown key 'interval'; did you mean livenessInterval or pollInterval or "
      "unhealthyPollInterval?");
  EXPECT_EQ(load_error(file_source("migStrategy: mixed")),
            "x.yaml:1:1: unknown key 'migStrategy'; it belongs at flags.migStrategy");
  EXPECT_EQ(load_error(file_source("flags: {MigStrategy: mixed}")),
            "x.yaml:1:9: flags: unknown key 'MigStrategy'; did you mean migStrategy?");
  EXPECT_EQ(load_error(file_source("imex: {something: 1}")),
            "x.yaml:1:8: imex: unknown key 'something'; expected one of: channelIDs, required");
}

TEST(Load, DropInIsAsLenientAsNvidias) {
  const auto loaded = load(file_source(
      "flags:\n  migStrategie: mixed\n  FailOnInitError: false\nhealth: {}\nflags:\n  gdsEnabled: true\n"
      "---\nmore: 1\n",
      true));
  ASSERT_TRUE(loaded) << loaded.error().full_message();
  EXPECT_EQ(loaded->config.flags.mig_strategy, MigStrategy::kNone);
  EXPECT_TRUE(loaded->config.flags.gds_enabled);  // the last of a duplicate key
  EXPECT_EQ(loaded->warnings.size(), 3u);
  const auto other = load(file_source("flags: {migStrategie: mixed, FailOnInitError: false}", true));
  ASSERT_TRUE(other);
  EXPECT_FALSE(other->config.flags.fail_on_init_error);
  EXPECT_EQ(other->warnings, (std::vector<std::string>{
                                 "x.yaml:1:9: flags: unknown key 'migStrategie'; did you mean migStrategy?",
                                 "x.yaml:1:30: flags: 'FailOnInitError' is read as failOnInitError"}));
  // Both reject an invalid value.
  EXPECT_FALSE(load(file_source("flags: {migStrategy: all}", true)));
  EXPECT_EQ(load_error(file_source("version: v1\nversion: v1\n")),
            "x.yaml:2:1: 'version' is already set at line 1");
  EXPECT_NE(load_error(file_source("version: v1\n---\nversion: v1\n")).find("a second document"),
            std::string::npos);
}

TEST(Load, ReportsTheNumberOfFurtherErrors) {
  const auto sources = file_source("a1: 1\nflags: {migStrategy: x, gdsEnabled: 7}\n");
  EXPECT_EQ(check_config(sources).errors.size(), 3u);
  EXPECT_NE(load_error(sources).find("(and 2 more: gpulet config check)"), std::string::npos);
}

TEST(Load, ReadsTheFileOfFlagOrEnvironment) {
  std::string pattern = std::filesystem::temp_directory_path() / "gpulet-load-XXXXXX";
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const std::string& directory = pattern;
  const std::string path = directory + "/c.yaml";
  ASSERT_TRUE(write_file_atomic(path, "flags: {migStrategy: mixed}"));
  auto sources = env("CONFIG_FILE", path);
  ASSERT_TRUE(read_config_file(sources));
  const auto loaded = load(sources);
  EXPECT_EQ(loaded->config.flags.mig_strategy, MigStrategy::kMixed);
  EXPECT_EQ(loaded->config.config_file, path);
  sources.flags["config-file"] = {directory + "/none.yaml"};
  const auto missing = read_config_file(sources);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
  EXPECT_NE(missing.error().full_message().find("error opening config file"), std::string::npos);
  sources.flags["config-file"] = {""};
  ASSERT_TRUE(read_config_file(sources));
  EXPECT_EQ(sources.file_path, "");
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace gpulet::config

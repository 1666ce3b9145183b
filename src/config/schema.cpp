#include "config/schema.h"

#include <algorithm>
#include <array>

#include "config/assign.h"
#include "config/faults_settings.h"
#include "config/health_settings.h"
#include "config/labels_settings.h"
#include "config/metrics_settings.h"
#include "config/own_settings.h"

namespace gpulet::config {
namespace {

using Names = std::string_view;
// In the order of the enumerations in config.h.
constexpr std::array<Names, 3> kMigStrategies = {"none", "single", "mixed"};
constexpr std::array<Names, 4> kListStrategies = {"envvar", "volume-mounts", "cdi-annotations", "cdi-cri"};
constexpr std::array<Names, 2> kIdStrategies = {"uuid", "index"};
constexpr std::array<Names, 3> kDiscovery = {"auto", "nvml", "tegra"};
constexpr std::array<Names, 2> kSharedPolicies = {"distributed", "packed"};

void assign_list_strategy(Config& config, const Value& value) {
  config.flags.device_list_strategy.clear();
  for (const auto& item : texts(value)) {
    config.flags.device_list_strategy.push_back(choice<DeviceListStrategy>(item, kListStrategies));
  }
}

void assign_channels(Config& config, const Value& value) {
  config.imex.channel_ids.clear();
  for (const auto& item : texts(value))
    config.imex.channel_ids.push_back(static_cast<unsigned>(std::stoul(item)));
}

std::vector<Setting> shared_flags() {
  return {
      {.flag = "mig-strategy",
       .environment = {"MIG_STRATEGY"},
       .path = "flags.migStrategy",
       .kind = Kind::kChoice,
       .choices = kMigStrategies,
       .complaint = "unknown MIG strategy",
       .default_text = "none",
       .help = "how MIG devices are offered: none, single or mixed",
       .assign = [](Config& c,
                    const Value& v) { c.flags.mig_strategy = choice<MigStrategy>(text(v), kMigStrategies); }},
      {.flag = "fail-on-init-error",
       .environment = {"FAIL_ON_INIT_ERROR"},
       .path = "flags.failOnInitError",
       .kind = Kind::kBool,
       .default_text = "true",
       .help = "exit when the driver is not there at start; false: wait for it",
       .assign = [](Config& c, const Value& v) { c.flags.fail_on_init_error = flag(v); }},
      {.flag = "mps-root",
       .environment = {"MPS_ROOT"},
       .path = "flags.mpsRoot",
       .default_text = "",
       .help = "host folder of the MPS pipes and logs; needed with sharing.mps",
       .assign = [](Config& c, const Value& v) { c.flags.mps_root = text(v); }},
      {.flag = "driver-root",
       .flag_aliases = {"nvidia-driver-root"},
       .environment = {"NVIDIA_DRIVER_ROOT"},
       .path = "flags.nvidiaDriverRoot",
       .default_text = "/",
       .help = "root of the driver installation on the host",
       .assign = [](Config& c, const Value& v) { c.flags.nvidia_driver_root = text(v); }},
      {.flag = "dev-root",
       .flag_aliases = {"nvidia-dev-root"},
       .environment = {"NVIDIA_DEV_ROOT"},
       .path = "flags.nvidiaDevRoot",
       .help = "root of the device nodes on the host; the driver root when not given",
       .assign = [](Config& c, const Value& v) { c.flags.nvidia_dev_root = text(v); }},
      {.flag = "gdrcopy-enabled",
       .environment = {"GDRCOPY_ENABLED"},
       .path = "flags.gdrcopyEnabled",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "ask for GDRCopy in containers that get a GPU",
       .assign = [](Config& c, const Value& v) { c.flags.gdrcopy_enabled = flag(v); }},
      {.flag = "gds-enabled",
       .environment = {"GDS_ENABLED"},
       .path = "flags.gdsEnabled",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "ask for GPUDirect Storage in containers that get a GPU",
       .assign = [](Config& c, const Value& v) { c.flags.gds_enabled = flag(v); }},
      {.flag = "mofed-enabled",
       .environment = {"MOFED_ENABLED"},
       .path = "flags.mofedEnabled",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "ask for MOFED in containers that get a GPU",
       .assign = [](Config& c, const Value& v) { c.flags.mofed_enabled = flag(v); }},
      {.flag = "use-node-feature-api",
       .environment = {"USE_NODE_FEATURE_API"},
       .path = "flags.useNodeFeatureAPI",
       .kind = Kind::kBool,
       .help = "labels as an object of NFD, the default, or as its file; for gpu-feature-discovery",
       .discovery_only = true,
       .assign = [](Config& c, const Value& v) { c.flags.use_node_feature_api = flag(v); }},
      {.flag = "device-discovery-strategy",
       .environment = {"DEVICE_DISCOVERY_STRATEGY"},
       .path = "flags.deviceDiscoveryStrategy",
       .kind = Kind::kChoice,
       .choices = kDiscovery,
       .complaint = "invalid --device-discovery-strategy option",
       .default_text = "auto",
       .help = "how GPUs are found: auto, nvml or tegra",
       .assign =
           [](Config& c, const Value& v) {
             c.flags.device_discovery_strategy = choice<DeviceDiscoveryStrategy>(text(v), kDiscovery);
           }},
  };
}

std::vector<Setting> plugin_flags() {
  return {
      {.flag = "pass-device-specs",
       .environment = {"PASS_DEVICE_SPECS"},
       .path = "flags.plugin.passDeviceSpecs",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "name the device nodes to the kubelet on Allocate",
       .assign = [](Config& c, const Value& v) { c.flags.pass_device_specs = flag(v); }},
      {.flag = "device-list-strategy",
       .environment = {"DEVICE_LIST_STRATEGY"},
       .path = "flags.plugin.deviceListStrategy",
       .kind = Kind::kChoices,
       .choices = kListStrategies,
       .complaint = "invalid --device-list-strategy option: invalid strategy",
       .default_text = "envvar",
       .help = "how a container is told of its devices: envvar, volume-mounts, cdi-annotations, cdi-cri",
       .assign = assign_list_strategy},
      {.flag = "device-id-strategy",
       .environment = {"DEVICE_ID_STRATEGY"},
       .path = "flags.plugin.deviceIDStrategy",
       .kind = Kind::kChoice,
       .choices = kIdStrategies,
       .complaint = "invalid --device-id-strategy option",
       .default_text = "uuid",
       .help = "how devices are named to a container: uuid or index",
       .assign =
           [](Config& c, const Value& v) {
             c.flags.device_id_strategy = choice<DeviceIdStrategy>(text(v), kIdStrategies);
           }},
      {.flag = "cdi-annotation-prefix",
       .environment = {"CDI_ANNOTATION_PREFIX"},
       .path = "flags.plugin.cdiAnnotationPrefix",
       .default_text = "cdi.k8s.io/",
       .help = "prefix of the annotation's key with cdi-annotations",
       .assign = [](Config& c, const Value& v) { c.flags.cdi_annotation_prefix = text(v); }},
      {.flag = "nvidia-cdi-hook-path",
       .flag_aliases = {"nvidia-ctk-path"},
       .environment = {"NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"},
       .path = "flags.plugin.nvidiaCTKPath",
       .default_text = "/usr/bin/nvidia-ctk",
       .help = "host path of the hook that generated CDI specs name",
       .assign = [](Config& c, const Value& v) { c.flags.nvidia_cdi_hook_path = text(v); }},
      {.flag = "driver-root-ctr-path",
       .flag_aliases = {"container-driver-root"},
       .environment = {"DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"},
       .path = "flags.plugin.containerDriverRoot",
       .default_text = "/driver-root",
       .help = "where the driver root is mounted for this process",
       .assign = [](Config& c, const Value& v) { c.flags.container_driver_root = text(v); }},
      {.flag = "shared-devices-allocation-policy",
       .environment = {"SHARED_DEVICES_ALLOCATION_POLICY"},
       .path = "flags.plugin.sharedDevicesAllocationPolicy",
       .kind = Kind::kChoice,
       .choices = kSharedPolicies,
       .complaint = "invalid --shared-devices-allocation-policy option",
       .default_text = "distributed",
       .help = "where the next share comes from: distributed (least used GPU) or packed (most used)",
       .assign =
           [](Config& c, const Value& v) {
             c.flags.shared_devices_allocation_policy =
                 choice<SharedDevicesAllocationPolicy>(text(v), kSharedPolicies);
           }},
  };
}

std::vector<Setting> imex_flags() {
  return {
      {.flag = "imex-channel-ids",
       .environment = {"IMEX_CHANNEL_IDS"},
       .path = "imex.channelIDs",
       .kind = Kind::kUnsigneds,
       .default_text = "",
       .help = "IMEX channels that containers get: none or 0",
       .assign = assign_channels},
      {.flag = "imex-required",
       .environment = {"IMEX_REQUIRED"},
       .path = "imex.required",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "offer no GPU while a wanted IMEX channel is missing",
       .assign = [](Config& c, const Value& v) { c.imex.required = flag(v); }},
  };
}

// What NVIDIA's plugin takes from flags or environment alone; the file has room for it under `gpulet:`.
std::vector<Setting> fileless_flags() {
  return {
      {.flag = "config-file",
       .environment = {"CONFIG_FILE"},
       .default_text = "",
       .help = "the `version: v1` file",
       .assign = [](Config& c, const Value& v) { c.config_file = text(v); }},
      {.flag = "kubelet-socket",
       .environment = {"KUBELET_SOCKET"},
       .path = "gpulet.kubeletSocket",
       .help = "the kubelet's registration socket; empty: do not register",
       .assign = [](Config& c, const Value& v) { c.kubelet_socket = text(v); }},
      {.flag = "cdi-feature-flags",
       .environment = {"CDI_FEATURE_FLAGS"},
       .path = "gpulet.cdiFeatureFlags",
       .kind = Kind::kStrings,
       .default_text = "",
       .help = "feature flags for generated CDI specs",
       .assign = [](Config& c, const Value& v) { c.flags.cdi_feature_flags = texts(v); }},
      {.flag = "cdi-disable-hooks",
       .environment = {"CDI_DISABLE_HOOKS"},
       .path = "gpulet.cdiDisableHooks",
       .kind = Kind::kStrings,
       .default_text = "",
       .help = "hooks that generated CDI specs leave out; all: every one",
       .assign = [](Config& c, const Value& v) { c.flags.cdi_disable_hooks = texts(v); }},
      {.environment = {"DP_DISABLE_HEALTHCHECKS"},
       .path = "gpulet.disableHealthChecks",
       .default_text = "",
       .help = "XIDs that are left alone, split at commas; all: every one",
       .assign = [](Config& c, const Value& v) { c.flags.disable_healthchecks = text(v); }},
      {.environment = {"DP_ENABLE_HEALTHCHECKS"},
       .path = "gpulet.enableHealthChecks",
       .default_text = "",
       .help = "XIDs that count whatever else says; all: every one",
       .assign = [](Config& c, const Value& v) { c.flags.enable_healthchecks = text(v); }},
  };
}

const std::vector<Setting>& table() {
  static const std::vector<Setting> all = [] {
    std::vector<Setting> rows;
    for (auto&& part :
         {shared_flags(), plugin_flags(), feature_discovery_settings(), imex_flags(), fileless_flags(),
          own_settings(), health_settings(), faults_settings(), metrics_settings(), labels_settings(),
          partition_settings(), node_config_settings()}) {
      rows.insert(rows.end(), part.begin(), part.end());
    }
    return rows;
  }();
  return all;
}

}  // namespace

std::span<const Setting> settings() { return table(); }

const Setting* setting_of_flag(std::string_view name) {
  for (const auto& setting : table()) {
    if (name.empty()) break;
    if (setting.flag == name || std::ranges::count(setting.flag_aliases, name) != 0) return &setting;
  }
  return nullptr;
}

const Setting* setting_of_path(std::string_view path) {
  for (const auto& setting : table()) {
    if (!path.empty() && setting.path == path) return &setting;
  }
  return nullptr;
}

}  // namespace gpulet::config

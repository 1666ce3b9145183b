#include "config/schema.h"

#include <algorithm>
#include <array>

#include "config/config.h"

namespace gpulet::config {
namespace {

using Names = std::string_view;
// In the order of the enumerations in config.h.
constexpr std::array<Names, 3> kMigStrategies = {"none", "single", "mixed"};
constexpr std::array<Names, 4> kListStrategies = {"envvar", "volume-mounts", "cdi-annotations", "cdi-cri"};
constexpr std::array<Names, 2> kIdStrategies = {"uuid", "index"};
constexpr std::array<Names, 3> kDiscovery = {"auto", "nvml", "vfio"};
constexpr std::array<Names, 2> kSharedPolicies = {"distributed", "packed"};

void assign_list_strategy(Config& config, const Value& value) {
  config.flags.device_list_strategy.clear();
  for (const auto& item : list_value(value)) {
    config.flags.device_list_strategy.push_back(enum_value<DeviceListStrategy>(item, kListStrategies));
  }
}

void assign_channels(Config& config, const Value& value) {
  config.imex.channel_ids.clear();
  for (const auto& item : list_value(value))
    config.imex.channel_ids.push_back(static_cast<unsigned>(std::stoul(item)));
}

std::vector<Setting> shared_flags() {
  return {
      {.flag = "mig-strategy",
       .environment = {"MIG_STRATEGY"},
       .path = "flags.migStrategy",
       .kind = Kind::kChoice,
       .choices = kMigStrategies,
       .error_prefix = "unknown MIG strategy",
       .default_text = "none",
       .help = "how MIG devices are offered: none, single or mixed",
       .assign =
           [](Config& c, const Value& v) {
             c.flags.mig_strategy = enum_value<MigStrategy>(text_value(v), kMigStrategies);
           }},
      {.flag = "fail-on-init-error",
       .environment = {"FAIL_ON_INIT_ERROR"},
       .path = "flags.failOnInitError",
       .kind = Kind::kBool,
       .default_text = "true",
       .help = "exit if the driver is missing at start; false: wait for it",
       .assign = [](Config& c, const Value& v) { c.flags.fail_on_init_error = bool_value(v); }},
      {.flag = "mps-root",
       .environment = {"MPS_ROOT"},
       .path = "flags.mpsRoot",
       .default_text = "",
       .help = "host directory of the MPS pipes and logs; required with sharing.mps",
       .assign = [](Config& c, const Value& v) { c.flags.mps_root = text_value(v); }},
      {.flag = "driver-root",
       .flag_aliases = {"nvidia-driver-root"},
       .environment = {"NVIDIA_DRIVER_ROOT"},
       .path = "flags.nvidiaDriverRoot",
       .default_text = "/",
       .help = "root of the driver installation on the host",
       .assign = [](Config& c, const Value& v) { c.flags.nvidia_driver_root = text_value(v); }},
      {.flag = "dev-root",
       .flag_aliases = {"nvidia-dev-root"},
       .environment = {"NVIDIA_DEV_ROOT"},
       .path = "flags.nvidiaDevRoot",
       .help = "root of the device nodes on the host (default: the driver root)",
       .assign = [](Config& c, const Value& v) { c.flags.nvidia_dev_root = text_value(v); }},
      {.flag = "gdrcopy-enabled",
       .environment = {"GDRCOPY_ENABLED"},
       .path = "flags.gdrcopyEnabled",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "request GDRCopy for containers with a GPU",
       .assign = [](Config& c, const Value& v) { c.flags.gdrcopy_enabled = bool_value(v); }},
      {.flag = "gds-enabled",
       .environment = {"GDS_ENABLED"},
       .path = "flags.gdsEnabled",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "request GPUDirect Storage for containers with a GPU",
       .assign = [](Config& c, const Value& v) { c.flags.gds_enabled = bool_value(v); }},
      {.flag = "mofed-enabled",
       .environment = {"MOFED_ENABLED"},
       .path = "flags.mofedEnabled",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "request MOFED for containers with a GPU",
       .assign = [](Config& c, const Value& v) { c.flags.mofed_enabled = bool_value(v); }},
      {.flag = "use-node-feature-api",
       .environment = {"USE_NODE_FEATURE_API"},
       .path = "flags.useNodeFeatureAPI",
       .kind = Kind::kBool,
       .help = "publish labels as an NFD object (default) or in NFD's file; for gpu-feature-discovery",
       .discovery_only = true,
       .assign = [](Config& c, const Value& v) { c.flags.use_node_feature_api = bool_value(v); }},
      {.flag = "device-discovery-strategy",
       .environment = {"DEVICE_DISCOVERY_STRATEGY"},
       .path = "flags.deviceDiscoveryStrategy",
       .kind = Kind::kChoice,
       .choices = kDiscovery,
       .error_prefix = "invalid --device-discovery-strategy option",
       .default_text = "auto",
       .help =
           "how GPUs are discovered: auto or nvml, which are the same; for gpu-feature-discovery only, vfio: "
           "by sysfs, those passed through to virtual machines. tegra is refused",
       .discovery_choice = "vfio",
       .refused_choice = {"tegra",
                          "gpulet finds GPUs by NVML, which does not list the integrated GPUs of Tegra"},
       .assign =
           [](Config& c, const Value& v) {
             c.flags.device_discovery_strategy =
                 enum_value<DeviceDiscoveryStrategy>(text_value(v), kDiscovery);
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
       .help = "pass the device nodes to the kubelet on Allocate",
       .assign = [](Config& c, const Value& v) { c.flags.pass_device_specs = bool_value(v); }},
      {.flag = "device-list-strategy",
       .environment = {"DEVICE_LIST_STRATEGY"},
       .path = "flags.plugin.deviceListStrategy",
       .kind = Kind::kChoices,
       .choices = kListStrategies,
       .error_prefix = "invalid --device-list-strategy option: invalid strategy",
       .default_text = "envvar",
       .help = "how containers get their devices: envvar, volume-mounts, cdi-annotations, cdi-cri",
       .assign = assign_list_strategy},
      {.flag = "device-id-strategy",
       .environment = {"DEVICE_ID_STRATEGY"},
       .path = "flags.plugin.deviceIDStrategy",
       .kind = Kind::kChoice,
       .choices = kIdStrategies,
       .error_prefix = "invalid --device-id-strategy option",
       .default_text = "uuid",
       .help = "device identifiers passed to containers: uuid or index",
       .assign =
           [](Config& c, const Value& v) {
             c.flags.device_id_strategy = enum_value<DeviceIdStrategy>(text_value(v), kIdStrategies);
           }},
      {.flag = "cdi-annotation-prefix",
       .environment = {"CDI_ANNOTATION_PREFIX"},
       .path = "flags.plugin.cdiAnnotationPrefix",
       .default_text = "cdi.k8s.io/",
       .help = "key prefix of CDI annotations",
       .assign = [](Config& c, const Value& v) { c.flags.cdi_annotation_prefix = text_value(v); }},
      {.flag = "nvidia-cdi-hook-path",
       .flag_aliases = {"nvidia-ctk-path"},
       .environment = {"NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"},
       .path = "flags.plugin.nvidiaCTKPath",
       .default_text = "/usr/bin/nvidia-ctk",
       .help = "host path of the hook in generated CDI specs",
       .assign = [](Config& c, const Value& v) { c.flags.nvidia_cdi_hook_path = text_value(v); }},
      {.flag = "driver-root-ctr-path",
       .flag_aliases = {"container-driver-root"},
       .environment = {"DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"},
       .path = "flags.plugin.containerDriverRoot",
       .default_text = "/driver-root",
       .help = "mount path of the driver root in this container",
       .assign = [](Config& c, const Value& v) { c.flags.container_driver_root = text_value(v); }},
      {.flag = "shared-devices-allocation-policy",
       .environment = {"SHARED_DEVICES_ALLOCATION_POLICY"},
       .path = "flags.plugin.sharedDevicesAllocationPolicy",
       .kind = Kind::kChoice,
       .choices = kSharedPolicies,
       .error_prefix = "invalid --shared-devices-allocation-policy option",
       .default_text = "distributed",
       .help = "GPU of the next share: distributed (least used) or packed (most used)",
       .assign =
           [](Config& c, const Value& v) {
             c.flags.shared_devices_allocation_policy =
                 enum_value<SharedDevicesAllocationPolicy>(text_value(v), kSharedPolicies);
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
       .help = "IMEX channels for containers: none or 0",
       .assign = assign_channels},
      {.flag = "imex-required",
       .environment = {"IMEX_REQUIRED"},
       .path = "imex.required",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "offer no GPUs while a requested IMEX channel is missing",
       .assign = [](Config& c, const Value& v) { c.imex.required = bool_value(v); }},
  };
}

// Settings that NVIDIA's plugin takes only from flags or the environment; here also below `gpulet:` in the
// file.
std::vector<Setting> fileless_flags() {
  return {
      {.flag = "config-file",
       .environment = {"CONFIG_FILE"},
       .default_text = "",
       .help = "path of the `version: v1` config file",
       .assign = [](Config& c, const Value& v) { c.config_file = text_value(v); }},
      {.flag = "kubelet-socket",
       .environment = {"KUBELET_SOCKET"},
       .path = "gpulet.kubeletSocket",
       .help = "the kubelet's registration socket (empty: do not register)",
       .assign = [](Config& c, const Value& v) { c.kubelet_socket = text_value(v); }},
      {.flag = "cdi-feature-flags",
       .environment = {"CDI_FEATURE_FLAGS"},
       .path = "gpulet.cdiFeatureFlags",
       .kind = Kind::kStrings,
       .default_text = "",
       .help = "feature flags for generated CDI specs",
       .assign = [](Config& c, const Value& v) { c.flags.cdi_feature_flags = list_value(v); }},
      {.flag = "cdi-disable-hooks",
       .environment = {"CDI_DISABLE_HOOKS"},
       .path = "gpulet.cdiDisableHooks",
       .kind = Kind::kStrings,
       .default_text = "",
       .help = "hooks to leave out of generated CDI specs; all: every hook",
       .assign = [](Config& c, const Value& v) { c.flags.cdi_disable_hooks = list_value(v); }},
      {.environment = {"DP_DISABLE_HEALTHCHECKS"},
       .path = "gpulet.disableHealthChecks",
       .default_text = "",
       .help = "comma-separated XIDs to ignore; all: every XID",
       .assign = [](Config& c, const Value& v) { c.flags.disable_healthchecks = text_value(v); }},
      {.environment = {"DP_ENABLE_HEALTHCHECKS"},
       .path = "gpulet.enableHealthChecks",
       .default_text = "",
       .help = "comma-separated XIDs that always count; all: every XID",
       .assign = [](Config& c, const Value& v) { c.flags.enable_healthchecks = text_value(v); }},
  };
}

const std::vector<Setting>& setting_table() {
  static const std::vector<Setting> all = [] {
    std::vector<Setting> rows;
    for (auto&& part : {shared_flags(), plugin_flags(), feature_discovery_settings(), imex_flags(),
                        fileless_flags(), gpulet_settings(), health_settings(), faults_settings(),
                        repair_settings(), preflight_settings(), rebalance_settings(), metrics_settings(),
                        labels_settings(), partition_settings(), node_config_settings()}) {
      rows.insert(rows.end(), part.begin(), part.end());
    }
    return rows;
  }();
  return all;
}

// Of other device plugins, and of articles about them.
struct ForeignName {
  std::string_view name, path;
};
constexpr ForeignName kForeignNames[] = {
    {"resourceName", "resources.gpus"},
    {"resource-name", "resources.gpus"},
    {"resourceNames", "resources.gpus"},
    {"resource-names", "resources.gpus"},
    {"replicas", "sharing.timeSlicing.resources"},
    {"deviceSplitCount", "sharing.timeSlicing.resources"},
    {"device-split-count", "sharing.timeSlicing.resources"},
};

}  // namespace

std::span<const Setting> settings() { return setting_table(); }

const Setting* find_setting_by_flag(std::string_view name) {
  for (const auto& setting : setting_table()) {
    if (name.empty()) break;
    if (setting.flag == name || std::ranges::count(setting.flag_aliases, name) != 0) return &setting;
  }
  return nullptr;
}

std::string_view find_path_by_foreign_name(std::string_view name) {
  const auto* const found = std::ranges::find(kForeignNames, name, &ForeignName::name);
  return found == std::end(kForeignNames) ? std::string_view() : found->path;
}

const Setting* find_setting_by_path(std::string_view path) {
  for (const auto& setting : setting_table()) {
    if (!path.empty() && setting.path == path) return &setting;
  }
  return nullptr;
}

}  // namespace gpulet::config

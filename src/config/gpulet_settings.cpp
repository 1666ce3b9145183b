#include "config/gpulet_settings.h"

#include <array>
#include <chrono>

#include "config/config.h"
#include "config/schema.h"
#include "config/values.h"

namespace gpulet::config {
namespace {

using Names = std::string_view;
// In the order of the enumerations in gpulet_settings.h.
constexpr std::array<Names, 2> kPlacement = {"best-effort", "tightest"};
constexpr std::array<Names, 3> kPlacementLoads = {"ignore", "prefer", "strict"};
constexpr std::array<Names, 2> kDriverHolds = {"always", "on-demand"};
constexpr std::array<Names, 4> kExceededActions = {"none", "warn", "kill", "evict"};
constexpr std::array<Names, 2> kLogFormats = {"text", "json"};
constexpr std::array<Names, 4> kLogLevels = {"debug", "info", "warning", "error"};
constexpr std::array<Names, 3> kFallbacks = {"named", "single", "empty"};

std::vector<Setting> serving_settings() {
  return {
      {.flag = "placement-policy",
       .environment = {"GPULET_PLACEMENT_POLICY"},
       .path = "gpulet.placementPolicy",
       .kind = Kind::kChoice,
       .choices = kPlacement,
       .default_text = "best-effort",
       .help = "placement policy: best-effort (NVIDIA's objective) or tightest",
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.placement_policy = enum_value<PlacementPolicy>(text_value(v), kPlacement);
           }},
      {.flag = "placement-load",
       .environment = {"GPULET_PLACEMENT_LOAD"},
       .path = "gpulet.placementLoad",
       .kind = Kind::kChoice,
       .choices = kPlacementLoads,
       .default_text = "prefer",
       .help = "what the GPUs' present and expected load decides: nothing (ignore), between shares that are "
               "otherwise equal (prefer), or also which nodes the scheduler passes over (strict)",
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.placement_load = enum_value<PlacementLoad>(text_value(v), kPlacementLoads);
           }},
      {.flag = "pod-choices",
       .environment = {"GPULET_POD_CHOICES"},
       .path = "gpulet.podChoices",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "refuse GPUs that no pending Pod accepts; needs list on pods",
       .assign = [](Config& c, const Value& v) { c.gpulet.pod_choices = bool_value(v); }},
      {.flag = "kubelet-dir",
       .environment = {"GPULET_KUBELET_DIR"},
       .path = "gpulet.kubeletDir",
       .default_text = "/var/lib/kubelet",
       .help = "the kubelet's root directory",
       .assign = [](Config& c, const Value& v) { c.gpulet.kubelet_dir = text_value(v); }},
      {.flag = "listen",
       .environment = {"GPULET_LISTEN", "DCGM_EXPORTER_LISTEN"},
       .path = "gpulet.listen",
       .default_text = "0.0.0.0:9400",
       .help = "host:port of /healthz, /readyz and /metrics (empty: none)",
       .assign = [](Config& c, const Value& v) { c.gpulet.listen = text_value(v); }},
      {.flag = "web-config-file",
       .environment = {"GPULET_WEB_CONFIG_FILE", "DCGM_EXPORTER_WEB_CONFIG_FILE"},
       .path = "gpulet.webConfigFile",
       .default_text = "",
       .help = "Prometheus web config file with TLS and passwords of the listener (empty: neither)",
       .assign = [](Config& c, const Value& v) { c.gpulet.web_config_file = text_value(v); }},
      {.flag = "socket",
       .environment = {"GPULET_SOCKET"},
       .path = "gpulet.socket",
       .default_text = "/run/gpulet/agent.sock",
       .help = "Unix socket with the same pages, for `gpulet top` (empty: none)",
       .assign = [](Config& c, const Value& v) { c.gpulet.socket = text_value(v); }},
      {.flag = "socket-mode",
       .environment = {"GPULET_SOCKET_MODE"},
       .path = "gpulet.socketMode",
       .default_text = "0660",
       .help = "file mode of the socket; write permission grants access",
       .assign = [](Config& c,
                    const Value& v) { c.gpulet.socket_mode = parse_file_mode(text_value(v)).value_or(0); }},
  };
}

std::vector<Setting> process_settings() {
  return {
      {.flag = "log-format",
       .environment = {"GPULET_LOG_FORMAT"},
       .path = "gpulet.logFormat",
       .kind = Kind::kChoice,
       .choices = kLogFormats,
       .default_text = "text",
       .help = "text or json",
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.log_format = enum_value<LogFormat>(text_value(v), kLogFormats);
           }},
      {.flag = "log-level",
       .environment = {"GPULET_LOG_LEVEL"},
       .path = "gpulet.logLevel",
       .kind = Kind::kChoice,
       .choices = kLogLevels,
       .default_text = "info",
       .help = "debug, info, warning or error",
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.log_level = enum_value<LogLevel>(text_value(v), kLogLevels);
           }},
      {.flag = "driver-call-timeout",
       .environment = {"GPULET_DRIVER_CALL_TIMEOUT"},
       .path = "gpulet.driverCallTimeout",
       .kind = Kind::kDuration,
       .default_text = "10s",
       .help = "time after which a driver call counts as hanging",
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.driver_call_timeout =
                 std::chrono::duration_cast<std::chrono::milliseconds>(duration_value(v));
           }},
      {.flag = "state-dir",
       .environment = {"GPULET_STATE_DIR"},
       .path = "gpulet.stateDir",
       .default_text = "/var/lib/gpulet",
       .help = "directory of persistent state: faults, cordons (empty: not persisted)",
       .assign = [](Config& c, const Value& v) { c.gpulet.state_dir = text_value(v); }},
      {.flag = "kernel-log",
       .environment = {"GPULET_KERNEL_LOG"},
       .path = "gpulet.kernelLog",
       .default_text = "/dev/kmsg",
       .help = "kernel log to read for XIDs and NVSwitch faults (empty: none)",
       .assign = [](Config& c, const Value& v) { c.gpulet.kernel_log = text_value(v); }},
      {.flag = "create-device-nodes",
       .environment = {"GPULET_CREATE_DEVICE_NODES"},
       .path = "gpulet.createDeviceNodes",
       .kind = Kind::kBool,
       .default_text = "true",
       .help = "create missing /dev/nvidia-uvm and /dev/nvidia-caps nodes in the driver root, and links in "
               "/dev/char, if permitted",
       .assign = [](Config& c, const Value& v) { c.gpulet.create_device_nodes = bool_value(v); }},
      {.flag = "publish-gpu-node",
       .environment = {"GPULET_PUBLISH_GPU_NODE"},
       .path = "gpulet.publishGpuNode",
       .kind = Kind::kBool,
       .help = "publish the node's GPUs as a GpuNode object, for `gpulet scheduler` (unset: where its CRD is "
               "installed and the agent has the rights)",
       .assign = [](Config& c, const Value& v) { c.gpulet.publish_gpu_node = bool_value(v); }},
      {.flag = "startup-taint",
       .environment = {"GPULET_STARTUP_TAINT"},
       .path = "gpulet.startupTaint",
       .default_text = "",
       .help = "key of a taint of new nodes that is removed once their GPUs can be requested (empty: none)",
       .assign = [](Config& c, const Value& v) { c.gpulet.startup_taint = text_value(v); }},
      {.flag = "health-file",
       .environment = {"GPULET_HEALTH_FILE"},
       .path = "gpulet.healthFile",
       .default_text = "/run/gpulet/health.json",
       .help = "file that `gpulet health` reads (empty: none)",
       .assign = [](Config& c, const Value& v) { c.gpulet.health_file = text_value(v); }},
  };
}

// Of claims that share devices, and of containers that do.
std::vector<Setting> sharing_settings() {
  return {
      {.flag = "dra-mps-support",
       .environment = {"GPULET_DRA_MPS_SUPPORT"},
       .path = "gpulet.dra.featureGates.MPSSupport",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "claims may share their GPUs by MPS",
       .assign = [](Config& c, const Value& v) { c.gpulet.dra.mps_support = bool_value(v); }},
      {.flag = "dra-time-slicing-settings",
       .environment = {"GPULET_DRA_TIME_SLICING_SETTINGS"},
       .path = "gpulet.dra.featureGates.TimeSlicingSettings",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "claims may set the time slice Default",
       .assign = [](Config& c, const Value& v) { c.gpulet.dra.time_slicing_settings = bool_value(v); }},
      {.flag = "fraction-on-exceeded",
       .environment = {"GPULET_FRACTION_ON_EXCEEDED"},
       .path = "gpulet.fraction.onExceeded",
       .kind = Kind::kChoice,
       .choices = kExceededActions,
       .default_text = "none",
       .help = "what to do with a container that uses more memory of a GPU than its Pod requests: none (not "
               "measured), warn, kill its processes on the GPU, or evict the Pod",
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.fraction.on_exceeded = enum_value<ExceededAction>(text_value(v), kExceededActions);
           }},
      {.flag = "fraction-driver-limits",
       .environment = {"GPULET_FRACTION_DRIVER_LIMITS"},
       .path = "gpulet.fraction.driverLimits",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "containers start with what they request as the driver's memory limit (R615, cgroup v2, "
               "CDI), or not at all",
       .assign = [](Config& c, const Value& v) { c.gpulet.fraction.driver_limits = bool_value(v); }},
      {.flag = "fraction-limit-dir",
       .environment = {"GPULET_FRACTION_LIMIT_DIR"},
       .path = "gpulet.fraction.limitDir",
       .default_text = "/run/gpulet/limits",
       .help = "directory of its socket and records, the same on the host; best on tmpfs",
       .assign = [](Config& c, const Value& v) { c.gpulet.fraction.limit_dir = text_value(v); }},
  };
}

}  // namespace

std::vector<Setting> gpulet_settings() {
  auto rows = serving_settings();
  for (auto& row : process_settings()) rows.push_back(std::move(row));
  return rows;
}

std::vector<Setting> mig_on_demand_settings() {
  constexpr std::uint64_t kMost = 86'400'000;  // milliseconds
  return {
      {.flag = "mig-on-demand-max-gpus",
       .environment = {"GPULET_MIG_ON_DEMAND_MAX_GPUS"},
       .path = "gpulet.mig.onDemand.maxGpus",
       .kind = Kind::kUnsigned,
       .default_text = "0",
       .help = "GPUs that may differ from their rule's layout for waiting Pods; 0: nothing is cut for them",
       .bounds = Setting::Bounds{0, 64},
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.mig.on_demand.max_gpus =
                 static_cast<unsigned>(text::parse_unsigned(text_value(v)).value_or(0));
           }},
      {.flag = "mig-on-demand-min-interval",
       .environment = {"GPULET_MIG_ON_DEMAND_MIN_INTERVAL"},
       .path = "gpulet.mig.onDemand.minInterval",
       .kind = Kind::kDuration,
       .default_text = "10m",
       .help = "between two changes of a GPU",
       .bounds = Setting::Bounds{1000, kMost},
       .assign = [](Config& c, const Value& v) { c.gpulet.mig.on_demand.min_interval = duration_value(v); }},
      {.flag = "mig-on-demand-idle",
       .environment = {"GPULET_MIG_ON_DEMAND_IDLE"},
       .path = "gpulet.mig.onDemand.idle",
       .kind = Kind::kDuration,
       .default_text = "10m",
       .help = "unused and not wanted for this long, a GPU returns to its rule's layout",
       .bounds = Setting::Bounds{1000, kMost},
       .assign = [](Config& c, const Value& v) { c.gpulet.mig.on_demand.idle = duration_value(v); }},
  };
}

std::vector<Setting> partition_settings() {
  std::vector<Setting> rows = {
      {.flag = "driver-hold",
       .environment = {"GPULET_DRIVER_HOLD"},
       .path = "gpulet.driver.hold",
       .kind = Kind::kChoice,
       .choices = kDriverHolds,
       .default_text = "always",
       .help = "hold NVML always, or on-demand: only while GPUs are read (no XID events of the driver)",
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.driver_hold = enum_value<DriverHold>(text_value(v), kDriverHolds);
           }},
      {.flag = "mig-manage",
       .environment = {"GPULET_MIG_MANAGE"},
       .path = "gpulet.mig.manage",
       .kind = Kind::kBool,
       .help = "apply MIG layouts from rules and the label nvidia.com/mig.config (default: true; false as a "
               "drop-in)",
       .assign = [](Config& c, const Value& v) { c.gpulet.mig.manage = bool_value(v); }},
      {.flag = "mig-config-file",
       .environment = {"MIG_PARTED_CONFIG_FILE"},
       .path = "gpulet.mig.configFile",
       .default_text = "",
       .help = "mig-parted's layout file (empty: layouts derived from the hardware)",
       .assign = [](Config& c, const Value& v) { c.gpulet.mig.config_file = text_value(v); }},
      {.flag = "mig-hooks-file",
       .environment = {"MIG_PARTED_HOOKS_FILE"},
       .path = "gpulet.mig.hooksFile",
       .default_text = "",
       .help = "mig-parted's hooks file: commands to run around a layout change",
       .assign = [](Config& c, const Value& v) { c.gpulet.mig.hooks_file = text_value(v); }},
      {.flag = "mig-drain",
       .environment = {"GPULET_MIG_DRAIN"},
       .path = "gpulet.mig.drain",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "evict Pods that block a MIG change; false: wait for them",
       .assign = [](Config& c, const Value& v) { c.gpulet.mig.drain = bool_value(v); }},
      {.flag = "mps-manage",
       .environment = {"GPULET_MPS_MANAGE"},
       .path = "gpulet.mps.manage",
       .kind = Kind::kBool,
       .help = "run the MPS control daemons (default: true; false as a drop-in)",
       .assign = [](Config& c, const Value& v) { c.gpulet.mps.manage = bool_value(v); }},
      {.flag = "cdi-spec-dir",
       .environment = {"GPULET_CDI_SPEC_DIR"},
       .path = "gpulet.cdi.specDir",
       .default_text = "/var/run/cdi",
       .help = "directory of the CDI specs for cdi-annotations and cdi-cri",
       .assign = [](Config& c, const Value& v) { c.gpulet.cdi.spec_dir = text_value(v); }},
      {.flag = "cdi-hook-dir",
       .environment = {"GPULET_CDI_HOOK_DIR"},
       .path = "gpulet.cdi.hookDir",
       .default_text = "",
       .help = "host directory, mounted at the same path, to install gpulet-hook in (empty: use "
               "nvidia-cdi-hook-path)",
       .assign = [](Config& c, const Value& v) { c.gpulet.cdi.hook_dir = text_value(v); }},
      {.flag = "dra",
       .environment = {"GPULET_DRA"},
       .path = "gpulet.dra.enabled",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "offer GPUs by claims of Dynamic Resource Allocation, as the driver gpu.nvidia.com, unless a "
               "partition rule says devicePlugin",
       .assign = [](Config& c, const Value& v) { c.gpulet.dra.enabled = bool_value(v); }},
      {.flag = "dra-record-dir",
       .environment = {"GPULET_DRA_RECORD_DIR"},
       .path = "gpulet.dra.recordDir",
       .default_text = "/run/gpulet/claims",
       .help = "directory of the records of prepared claims; best on tmpfs",
       .assign = [](Config& c, const Value& v) { c.gpulet.dra.record_dir = text_value(v); }},
  };
  for (auto& row : mig_on_demand_settings()) rows.push_back(std::move(row));
  for (auto& row : sharing_settings()) rows.push_back(std::move(row));
  return rows;
}

std::vector<Setting> node_config_settings() {
  return {
      {.flag = "config-file-srcdir",
       .environment = {"CONFIG_FILE_SRCDIR"},
       .default_text = "",
       .help = "directory of config files; a Node label selects one",
       .assign = [](Config& c, const Value& v) { c.node_config.directory = text_value(v); }},
      {.flag = "node-label",
       .environment = {"NODE_LABEL"},
       .default_text = "nvidia.com/device-plugin.config",
       .help = "Node label that names the config file",
       .assign = [](Config& c, const Value& v) { c.node_config.label = text_value(v); }},
      {.flag = "default-config",
       .environment = {"DEFAULT_CONFIG"},
       .default_text = "",
       .help = "config file for a Node without the label",
       .assign = [](Config& c, const Value& v) { c.node_config.default_config = text_value(v); }},
      {.flag = "fallback-strategies",
       .environment = {"FALLBACK_STRATEGIES"},
       .kind = Kind::kChoices,
       .choices = kFallbacks,
       .default_text = "",
       .help =
           "fallbacks without label and default-config, in order: named (the file default), single (the only "
           "file), empty (no config)",
       .assign =
           [](Config& c, const Value& v) {
             c.node_config.fallbacks.clear();
             for (const auto& item : list_value(v)) {
               c.node_config.fallbacks.push_back(enum_value<FallbackStrategy>(item, kFallbacks));
             }
           }},
  };
}

}  // namespace gpulet::config

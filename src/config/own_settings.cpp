#include "config/own_settings.h"

#include <array>
#include <chrono>

#include "config/assign.h"
#include "config/values.h"

namespace gpulet::config {
namespace {

using Names = std::string_view;
// In the order of the enumerations in config.h and rules.h.
constexpr std::array<Names, 2> kPlacement = {"best-effort", "tightest"};
constexpr std::array<Names, 2> kLogFormats = {"text", "json"};
constexpr std::array<Names, 4> kLogLevels = {"debug", "info", "warning", "error"};
constexpr std::array<Names, 3> kFallbacks = {"named", "single", "empty"};

}  // namespace

std::vector<Setting> own_settings() {
  return {
      {.flag = "placement-policy",
       .environment = {"GPULET_PLACEMENT_POLICY"},
       .path = "gpulet.placementPolicy",
       .kind = Kind::kChoice,
       .choices = kPlacement,
       .default_text = "best-effort",
       .help = "which devices are preferred: best-effort (NVIDIA's objective) or tightest",
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.placement_policy = choice<PlacementPolicy>(text(v), kPlacement);
           }},
      {.flag = "kubelet-dir",
       .environment = {"GPULET_KUBELET_DIR"},
       .path = "gpulet.kubeletDir",
       .default_text = "/var/lib/kubelet",
       .help = "the kubelet's root folder",
       .assign = [](Config& c, const Value& v) { c.gpulet.kubelet_dir = text(v); }},
      {.flag = "listen",
       .environment = {"GPULET_LISTEN", "DCGM_EXPORTER_LISTEN"},
       .path = "gpulet.listen",
       .default_text = "0.0.0.0:9400",
       .help = "host:port of /healthz, /readyz and /metrics; empty: none",
       .assign = [](Config& c, const Value& v) { c.gpulet.listen = text(v); }},
      {.flag = "web-config-file",
       .environment = {"GPULET_WEB_CONFIG_FILE", "DCGM_EXPORTER_WEB_CONFIG_FILE"},
       .path = "gpulet.webConfigFile",
       .default_text = "",
       .help = "Prometheus' web config file: TLS and passwords of what is listened to; empty: neither",
       .assign = [](Config& c, const Value& v) { c.gpulet.web_config_file = text(v); }},
      {.flag = "socket",
       .environment = {"GPULET_SOCKET"},
       .path = "gpulet.socket",
       .default_text = "/run/gpulet/agent.sock",
       .help = "the same on a Unix socket of the node, for `gpulet top`; empty: none",
       .assign = [](Config& c, const Value& v) { c.gpulet.socket = text(v); }},
      {.flag = "socket-mode",
       .environment = {"GPULET_SOCKET_MODE"},
       .path = "gpulet.socketMode",
       .default_text = "0660",
       .help = "the socket's file mode: who may write it may ask there",
       .assign = [](Config& c,
                    const Value& v) { c.gpulet.socket_mode = parse_file_mode(text(v)).value_or(0); }},
      {.flag = "log-format",
       .environment = {"GPULET_LOG_FORMAT"},
       .path = "gpulet.logFormat",
       .kind = Kind::kChoice,
       .choices = kLogFormats,
       .default_text = "text",
       .help = "text or json",
       .assign = [](Config& c,
                    const Value& v) { c.gpulet.log_format = choice<LogFormat>(text(v), kLogFormats); }},
      {.flag = "log-level",
       .environment = {"GPULET_LOG_LEVEL"},
       .path = "gpulet.logLevel",
       .kind = Kind::kChoice,
       .choices = kLogLevels,
       .default_text = "info",
       .help = "debug, info, warning or error",
       .assign = [](Config& c,
                    const Value& v) { c.gpulet.log_level = choice<LogLevel>(text(v), kLogLevels); }},
      {.flag = "driver-call-timeout",
       .environment = {"GPULET_DRIVER_CALL_TIMEOUT"},
       .path = "gpulet.driverCallTimeout",
       .kind = Kind::kDuration,
       .default_text = "10s",
       .help = "after how long a driver call counts as hanging",
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.driver_call_timeout =
                 std::chrono::duration_cast<std::chrono::milliseconds>(duration(v));
           }},
      {.flag = "state-dir",
       .environment = {"GPULET_STATE_DIR"},
       .path = "gpulet.stateDir",
       .default_text = "/var/lib/gpulet",
       .help = "folder of what outlives the process (faults, cordons); empty: nothing is kept",
       .assign = [](Config& c, const Value& v) { c.gpulet.state_dir = text(v); }},
      {.flag = "kernel-log",
       .environment = {"GPULET_KERNEL_LOG"},
       .path = "gpulet.kernelLog",
       .default_text = "/dev/kmsg",
       .help = "the kernel's log, read for XIDs and switches' faults; empty: not read",
       .assign = [](Config& c, const Value& v) { c.gpulet.kernel_log = text(v); }},
      {.flag = "publish-node",
       .environment = {"GPULET_PUBLISH_NODE"},
       .path = "gpulet.publishNode",
       .kind = Kind::kBool,
       .default_text = "true",
       .help = "publish the node's GPUs as the object GpuNode, for `gpulet scheduler`",
       .assign = [](Config& c, const Value& v) { c.gpulet.publish_node = flag(v); }},
      {.flag = "health-file",
       .environment = {"GPULET_HEALTH_FILE"},
       .path = "gpulet.healthFile",
       .default_text = "/run/gpulet/health.json",
       .help = "file that `gpulet health` reads; empty: none is written",
       .assign = [](Config& c, const Value& v) { c.gpulet.health_file = text(v); }},
  };
}

std::vector<Setting> partition_settings() {
  return {
      {.flag = "mig-manage",
       .environment = {"GPULET_MIG_MANAGE"},
       .path = "gpulet.mig.manage",
       .kind = Kind::kBool,
       .help = "cut GPUs up as rules and the label nvidia.com/mig.config say; true, or false as a drop-in",
       .assign = [](Config& c, const Value& v) { c.gpulet.mig.manage = flag(v); }},
      {.flag = "mig-config-file",
       .environment = {"MIG_PARTED_CONFIG_FILE"},
       .path = "gpulet.mig.configFile",
       .default_text = "",
       .help = "mig-parted's file of layouts; empty: layouts that the hardware allows",
       .assign = [](Config& c, const Value& v) { c.gpulet.mig.config_file = text(v); }},
      {.flag = "mig-hooks-file",
       .environment = {"MIG_PARTED_HOOKS_FILE"},
       .path = "gpulet.mig.hooksFile",
       .default_text = "",
       .help = "mig-parted's file of commands to run around a change",
       .assign = [](Config& c, const Value& v) { c.gpulet.mig.hooks_file = text(v); }},
      {.flag = "mig-drain",
       .environment = {"GPULET_MIG_DRAIN"},
       .path = "gpulet.mig.drain",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "evict Pods that hold MIG devices that must go, or a GPU whose mode must change; false: wait "
               "for them",
       .assign = [](Config& c, const Value& v) { c.gpulet.mig.drain = flag(v); }},
      {.flag = "mps-manage",
       .environment = {"GPULET_MPS_MANAGE"},
       .path = "gpulet.mps.manage",
       .kind = Kind::kBool,
       .help = "run the MPS control daemons; true, or false as a drop-in",
       .assign = [](Config& c, const Value& v) { c.gpulet.mps.manage = flag(v); }},
      {.flag = "cdi-spec-dir",
       .environment = {"GPULET_CDI_SPEC_DIR"},
       .path = "gpulet.cdi.specDir",
       .default_text = "/var/run/cdi",
       .help = "folder of the CDI specs that cdi-annotations and cdi-cri name",
       .assign = [](Config& c, const Value& v) { c.gpulet.cdi.spec_dir = text(v); }},
      {.flag = "cdi-hook-dir",
       .environment = {"GPULET_CDI_HOOK_DIR"},
       .path = "gpulet.cdi.hookDir",
       .default_text = "",
       .help = "host folder, mounted at the same path, to put gpulet-hook in; empty: nvidia-cdi-hook-path",
       .assign = [](Config& c, const Value& v) { c.gpulet.cdi.hook_dir = text(v); }},
  };
}

std::vector<Setting> node_config_settings() {
  return {
      {.flag = "config-file-srcdir",
       .environment = {"CONFIG_FILE_SRCDIR"},
       .default_text = "",
       .help = "folder of config files of which a label of the node picks one",
       .assign = [](Config& c, const Value& v) { c.node_config.folder = text(v); }},
      {.flag = "node-label",
       .environment = {"NODE_LABEL"},
       .default_text = "nvidia.com/device-plugin.config",
       .help = "the label that names the node's config",
       .assign = [](Config& c, const Value& v) { c.node_config.label = text(v); }},
      {.flag = "default-config",
       .environment = {"DEFAULT_CONFIG"},
       .default_text = "",
       .help = "the config of a node without the label",
       .assign = [](Config& c, const Value& v) { c.node_config.default_config = text(v); }},
      {.flag = "fallback-strategies",
       .environment = {"FALLBACK_STRATEGIES"},
       .kind = Kind::kChoices,
       .choices = kFallbacks,
       .default_text = "",
       .help =
           "in order, where neither label nor default-config names one: named (the config called default), "
           "single (the only one), empty (none)",
       .assign =
           [](Config& c, const Value& v) {
             c.node_config.fallbacks.clear();
             for (const auto& item : texts(v)) {
               c.node_config.fallbacks.push_back(choice<FallbackStrategy>(item, kFallbacks));
             }
           }},
  };
}

}  // namespace gpulet::config

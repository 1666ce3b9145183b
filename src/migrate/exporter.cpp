#include "migrate/exporter.h"

#include <algorithm>
#include <array>

namespace gpulet::migrate {
namespace {

constexpr std::string_view kAlways = "the agent always does";
constexpr std::string_view kNoEngine = "there is no DCGM here: the agent asks the driver itself";
constexpr std::string_view kNoSuch = "the agent has no such setting";

constexpr std::array<ExporterOption, 38> kOptions{{
    {"collectors", "f", "DCGM_EXPORTER_COLLECTORS"},
    {"address", "a", "DCGM_EXPORTER_LISTEN"},
    {"collect-interval", "c", "DCGM_EXPORTER_INTERVAL"},
    {"kubernetes", "k", "DCGM_EXPORTER_KUBERNETES", true, kAlways},
    {"use-old-namespace", "o", "DCGM_EXPORTER_USE_OLD_NAMESPACE", true},
    {"cpu-devices", "p", "DCGM_EXPORTER_CPU_DEVICES_STR", false, "the agent measures no CPU", true},
    {"configmap-data", "m", "DCGM_EXPORTER_CONFIGMAP_DATA"},
    {"remote-hostengine-info", "r", "DCGM_REMOTE_HOSTENGINE_INFO", false, kNoEngine},
    {"kubernetes-enable-pod-labels", "", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", true},
    {"kubernetes-enable-pod-uid", "", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", true},
    {"kubernetes-gpu-id-type", "", "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE", false,
     "every form of a device's name is understood"},
    {"kubernetes-pod-label-allowlist-regex", "", "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"},
    {"devices", "d", "DCGM_EXPORTER_DEVICES_STR"},
    {"no-hostname", "n", "DCGM_EXPORTER_NO_HOSTNAME", true,
     "without an effect in dcgm-exporter; GPULET_METRICS_HOST_LABEL=none leaves the label out"},
    {"switch-devices", "s", "DCGM_EXPORTER_OTHER_DEVICES_STR", false, "the agent measures no NVSwitch", true},
    {"fake-gpus", "", "DCGM_EXPORTER_USE_FAKE_GPUS", true, kNoSuch},
    {"web-config-file", "", "DCGM_EXPORTER_WEB_CONFIG_FILE"},
    {"web-systemd-socket", "", "DCGM_EXPORTER_SYSTEMD_SOCKET", true, kNoSuch, true},
    {"xid-count-window-size", "x", "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE"},
    {"clock-events-count-window-size", "", "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE"},
    {"replace-blanks-in-model-name", "rbmn", "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME", true},
    {"debug", "", "DCGM_EXPORTER_DEBUG", true, "GPULET_LOG_LEVEL=debug"},
    {"log-format", "", "DCGM_EXPORTER_LOG_FORMAT", false, "GPULET_LOG_FORMAT takes the same words"},
    {"enable-dcgm-log", "", "DCGM_EXPORTER_ENABLE_DCGM_LOG", true, kNoEngine},
    {"dcgm-log-level", "", "DCGM_EXPORTER_DCGM_LOG_LEVEL", false, kNoEngine},
    {"pod-resources-kubelet-socket", "", "DCGM_POD_RESOURCES_KUBELET_SOCKET", false,
     "it is below gpulet.kubeletDir: GPULET_KUBELET_DIR where that is not /var/lib/kubelet"},
    {"hpc-job-mapping-dir", "", "DCGM_HPC_JOB_MAPPING_DIR", false, "jobs of an HPC scheduler are not mapped",
     true},
    {"nvidia-resource-names", "", "NVIDIA_RESOURCE_NAMES", false, "the agent knows what it offers"},
    {"kubernetes-virtual-gpus", "", "KUBERNETES_VIRTUAL_GPUS", true},
    {"kubernetes-enable-dra", "", "KUBERNETES_ENABLE_DRA", true, "devices of DRA are not mapped to Pods",
     true},
    {"dump-enabled", "", "DCGM_EXPORTER_DUMP_ENABLED", true, kNoSuch},
    {"dump-directory", "", "DCGM_EXPORTER_DUMP_DIRECTORY", false, kNoSuch},
    {"dump-retention", "", "DCGM_EXPORTER_DUMP_RETENTION", false, kNoSuch},
    {"dump-compression", "", "DCGM_EXPORTER_DUMP_COMPRESSION", true, kNoSuch},
    {"disable-startup-validate", "", "DISABLE_STARTUP_VALIDATE", true,
     "the agent waits for the driver with FAIL_ON_INIT_ERROR=false"},
    {"enable-gpu-bind-unbind-watch", "", "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH", true, kAlways},
    {"gpu-bind-unbind-poll-interval", "", "DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL", false, kAlways},
    {"enable-pprof", "", "DCGM_EXPORTER_ENABLE_PPROF", true, kNoSuch},
}};

}  // namespace

std::span<const ExporterOption> exporter_options() { return kOptions; }

const ExporterOption* exporter_flag(std::string_view name) {
  const auto found = std::ranges::find_if(kOptions, [&](const auto& option) {
    return option.flag == name || (!option.letter.empty() && option.letter == name);
  });
  return name.empty() || found == kOptions.end() ? nullptr : &*found;
}

const ExporterOption* exporter_variable(std::string_view name) {
  const auto found = std::ranges::find(kOptions, name, &ExporterOption::variable);
  return found == kOptions.end() ? nullptr : &*found;
}

}  // namespace gpulet::migrate

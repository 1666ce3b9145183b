#include "config/exporter_options.h"

#include <algorithm>
#include <array>

namespace gpulet::config {
namespace {

constexpr std::string_view kAlways = "the agent always does this";
constexpr std::string_view kNoEngine = "no DCGM: the agent reads the driver directly";
constexpr std::string_view kNoSuch = "the agent has no such setting";

constexpr std::array<ExporterOption, 48> kOptions{{
    {"collectors", "f", "DCGM_EXPORTER_COLLECTORS"},
    {"address", "a", "DCGM_EXPORTER_LISTEN"},
    {"collect-interval", "c", "DCGM_EXPORTER_INTERVAL"},
    {"kubernetes", "k", "DCGM_EXPORTER_KUBERNETES", true, kAlways},
    {"use-old-namespace", "o", "DCGM_EXPORTER_USE_OLD_NAMESPACE", true},
    {"cpu-devices", "p", "DCGM_EXPORTER_CPU_DEVICES_STR", false, "the agent has no CPU metrics", true},
    {"configmap-data", "m", "DCGM_EXPORTER_CONFIGMAP_DATA"},
    {"remote-hostengine-info", "r", "DCGM_REMOTE_HOSTENGINE_INFO"},
    {"kubernetes-enable-pod-labels", "", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", true},
    {"kubernetes-enable-pod-uid", "", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", true},
    {"kubernetes-gpu-id-type", "", "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE", false,
     "the agent accepts every form of device name"},
    {"kubernetes-pod-label-allowlist-regex", "", "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"},
    {"devices", "d", "DCGM_EXPORTER_DEVICES_STR"},
    {"no-hostname", "n", "DCGM_EXPORTER_NO_HOSTNAME", true,
     "has no effect in dcgm-exporter; GPULET_METRICS_HOST_LABEL=none removes the label"},
    {"switch-devices", "s", "DCGM_EXPORTER_OTHER_DEVICES_STR", false, "the agent has no NVSwitch metrics",
     true},
    {"fake-gpus", "", "DCGM_EXPORTER_USE_FAKE_GPUS", true, kNoSuch},
    {"web-config-file", "", "DCGM_EXPORTER_WEB_CONFIG_FILE"},
    {"web-systemd-socket", "", "DCGM_EXPORTER_SYSTEMD_SOCKET", true, kNoSuch, true},
    {"xid-count-window-size", "x", "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE"},
    {"clock-events-count-window-size", "", "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE"},
    {"replace-blanks-in-model-name", "rbmn", "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME", true},
    {"debug", "", "DCGM_EXPORTER_DEBUG", true, "GPULET_LOG_LEVEL=debug"},
    {"log-format", "", "DCGM_EXPORTER_LOG_FORMAT", false, "GPULET_LOG_FORMAT takes the same values"},
    {"enable-dcgm-log", "", "DCGM_EXPORTER_ENABLE_DCGM_LOG", true, kNoEngine},
    {"dcgm-log-level", "", "DCGM_EXPORTER_DCGM_LOG_LEVEL", false, kNoEngine},
    {"pod-resources-kubelet-socket", "", "DCGM_POD_RESOURCES_KUBELET_SOCKET", false,
     "below gpulet.kubeletDir; set GPULET_KUBELET_DIR if that is not /var/lib/kubelet"},
    {"hpc-job-mapping-dir", "", "DCGM_HPC_JOB_MAPPING_DIR", false, "HPC jobs are not mapped", true},
    {"nvidia-resource-names", "", "NVIDIA_RESOURCE_NAMES", false, "the agent knows its resources"},
    {"kubernetes-virtual-gpus", "", "KUBERNETES_VIRTUAL_GPUS", true},
    {"kubernetes-enable-dra", "", "KUBERNETES_ENABLE_DRA", true, "DRA devices are not mapped to Pods", true},
    {"dump-enabled", "", "DCGM_EXPORTER_DUMP_ENABLED", true, kNoSuch},
    {"dump-directory", "", "DCGM_EXPORTER_DUMP_DIRECTORY", false, kNoSuch},
    {"dump-retention", "", "DCGM_EXPORTER_DUMP_RETENTION", false, kNoSuch},
    {"dump-compression", "", "DCGM_EXPORTER_DUMP_COMPRESSION", true, kNoSuch},
    {"disable-startup-validate", "", "DISABLE_STARTUP_VALIDATE", true,
     "the agent waits for the driver with FAIL_ON_INIT_ERROR=false"},
    {"enable-gpu-bind-unbind-watch", "", "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH", true, kAlways},
    {"gpu-bind-unbind-poll-interval", "", "DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL", false, kAlways},
    {"enable-pprof", "", "DCGM_EXPORTER_ENABLE_PPROF", true, kNoSuch},
    {"config-file", "", "DCGM_EXPORTER_CONFIG_FILE", false,
     "the agent does not read that file; its settings have flags and variables", true},
    {"web-read-timeout", "", "DCGM_EXPORTER_WEB_READ_TIMEOUT", false, kNoSuch},
    {"web-write-timeout", "", "DCGM_EXPORTER_WEB_WRITE_TIMEOUT", false, kNoSuch},
    {"max-concurrent-scrapes", "", "DCGM_EXPORTER_MAX_CONCURRENT_SCRAPES", false,
     "a scrape costs the agent no driver call"},
    {"enable-exporter-metrics", "", "DCGM_EXPORTER_ENABLE_EXPORTER_METRICS", true,
     "the agent's own metrics are named gpulet_*"},
    {"watch-max-keep-age", "", "DCGM_EXPORTER_WATCH_MAX_KEEP_AGE", false, kNoEngine},
    {"watch-max-keep-samples", "", "DCGM_EXPORTER_WATCH_MAX_KEEP_SAMPLES", false, kNoEngine},
    {"health-require-gpus", "", "DCGM_EXPORTER_HEALTH_REQUIRE_GPUS", true,
     "/readyz says whether the driver answers"},
    {"container-labels", "", "DCGM_EXPORTER_CONTAINER_LABELS", true,
     "labels of containers outside Kubernetes are not read", true},
    {"container-runtime-socket", "", "DCGM_CONTAINER_RUNTIME_SOCKET", false,
     "labels of containers outside Kubernetes are not read", true},
}};

}  // namespace

std::span<const ExporterOption> exporter_options() { return kOptions; }

const ExporterOption* find_exporter_flag(std::string_view name) {
  const auto found = std::ranges::find_if(kOptions, [&](const auto& option) {
    return option.flag == name || (!option.letter.empty() && option.letter == name);
  });
  return name.empty() || found == kOptions.end() ? nullptr : &*found;
}

const ExporterOption* find_exporter_variable(std::string_view name) {
  const auto found = std::ranges::find(kOptions, name, &ExporterOption::variable);
  return found == kOptions.end() ? nullptr : &*found;
}

}  // namespace gpulet::config

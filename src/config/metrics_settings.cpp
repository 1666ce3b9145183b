#include "config/metrics_settings.h"

#include <array>

#include "base/text.h"
#include "config/assign.h"
#include "config/values.h"

namespace gpulet::config {
namespace {

using std::chrono::milliseconds;

// In the order of HostLabel.
constexpr std::array<std::string_view, 3> kHostLabels = {"none", "hostname", "Hostname"};
// One sample of eight GPUs takes some milliseconds of a driver that is shared with every container.
constexpr Setting::Bounds kInterval{1000, 3'600'000};
constexpr Setting::Bounds kWindow{1000, 86'400'000};

std::vector<Setting> sampling_settings() {
  return {
      {.flag = "metrics",
       .environment = {"GPULET_METRICS"},
       .path = "gpulet.metrics.enabled",
       .kind = Kind::kBool,
       .default_text = "true",
       .help = "measure the GPUs; false: the agent's own metrics alone are served",
       .assign = [](Config& c, const Value& v) { c.gpulet.metrics.enabled = flag(v); }},
      {.flag = "metrics-interval",
       .environment = {"GPULET_METRICS_INTERVAL"},
       .path = "gpulet.metrics.interval",
       .kind = Kind::kDuration,
       .default_text = "15s",
       .help = "how often the GPUs are measured",
       .bounds = kInterval,
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.metrics.interval =
                 std::chrono::duration_cast<milliseconds>(parse_duration(text(v)).value_or(milliseconds()));
           }},
      // After the one before, as it counts over it.
      {.environment = {"DCGM_EXPORTER_INTERVAL"},
       .kind = Kind::kUnsigned,
       .help = "the same in milliseconds; counts over gpulet.metrics.interval",
       .bounds = kInterval,
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.metrics.interval = milliseconds(text::parse_unsigned(text(v)).value_or(0));
           }},
      {.flag = "metrics-counters-file",
       .environment = {"GPULET_METRICS_COUNTERS_FILE", "DCGM_EXPORTER_COLLECTORS"},
       .path = "gpulet.metrics.countersFile",
       .default_text = "",
       .help = "dcgm-exporter's file of the metrics to serve; empty: those that it serves by default",
       .assign = [](Config& c, const Value& v) { c.gpulet.metrics.counters_file = text(v); }},
      {.flag = "metrics-counters-config-map",
       .environment = {"GPULET_METRICS_COUNTERS_CONFIG_MAP", "DCGM_EXPORTER_CONFIGMAP_DATA"},
       .path = "gpulet.metrics.countersConfigMap",
       .default_text = "",
       .help = "NAMESPACE:NAME of a ConfigMap whose key metrics is such a file; counts over the file",
       .assign =
           [](Config& c, const Value& v) {
             // dcgm-exporter's word for no ConfigMap.
             c.gpulet.metrics.counters_config_map = text(v) == "none" ? std::string() : text(v);
           }},
      {.flag = "metrics-devices",
       .environment = {"GPULET_METRICS_DEVICES", "DCGM_EXPORTER_DEVICES_STR"},
       .path = "gpulet.metrics.devices",
       .default_text = "f",
       .help = "which devices DCGM's metrics are shown of: f, g, g:0,2-4, i, i:1,3-5",
       .assign = [](Config& c, const Value& v) { c.gpulet.metrics.devices = text(v); }},
  };
}

// As an own setting, and as dcgm-exporter's variable in milliseconds, which counts over it.
void add_window(std::vector<Setting>& rows, Setting own, std::string_view variable,
                milliseconds MetricsSettings::* field) {
  own.kind = Kind::kDuration;
  own.default_text = "5m";
  own.bounds = kWindow;
  own.assign = [field](Config& c, const Value& v) {
    c.gpulet.metrics.*field =
        std::chrono::duration_cast<milliseconds>(parse_duration(text(v)).value_or(milliseconds()));
  };
  rows.push_back(std::move(own));
  rows.push_back({.environment = {variable},
                  .kind = Kind::kUnsigned,
                  .help = "the same in milliseconds; counts over it",
                  .bounds = kWindow,
                  .assign = [field](Config& c, const Value& v) {
                    c.gpulet.metrics.*field = milliseconds(text::parse_unsigned(text(v)).value_or(0));
                  }});
}

std::vector<Setting> window_settings() {
  std::vector<Setting> rows;
  add_window(rows,
             {.flag = "metrics-xid-window",
              .environment = {"GPULET_METRICS_XID_WINDOW"},
              .path = "gpulet.metrics.xidWindow",
              .help = "how far back DCGM_EXP_XID_ERRORS_COUNT counts"},
             "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE", &MetricsSettings::xid_window);
  add_window(rows,
             {.flag = "metrics-clock-events-window",
              .environment = {"GPULET_METRICS_CLOCK_EVENTS_WINDOW"},
              .path = "gpulet.metrics.clockEventsWindow",
              .help = "how far back DCGM_EXP_CLOCK_EVENTS_COUNT counts"},
             "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE", &MetricsSettings::clock_events_window);
  return rows;
}

Setting label_flag(std::string_view flag_name, std::vector<std::string_view> variables, std::string_view path,
                   std::string_view help, bool MetricsSettings::* field) {
  return {.flag = flag_name,
          .environment = std::move(variables),
          .path = path,
          .kind = Kind::kBool,
          .default_text = "false",
          .help = help,
          .assign = [field](Config& c, const Value& v) { c.gpulet.metrics.*field = flag(v); }};
}

std::vector<Setting> label_settings() {
  return {
      {.flag = "metrics-host-label",
       .environment = {"GPULET_METRICS_HOST_LABEL"},
       .path = "gpulet.metrics.hostLabel",
       .kind = Kind::kChoice,
       .choices = kHostLabels,
       .default_text = "hostname",
       .help = "the label that names the node: hostname, Hostname (dcgm-exporter before 4.5) or none",
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.metrics.host_label = choice<HostLabel>(text(v), kHostLabels);
           }},
      label_flag("metrics-old-namespace", {"GPULET_METRICS_OLD_NAMESPACE", "DCGM_EXPORTER_USE_OLD_NAMESPACE"},
                 "gpulet.metrics.oldNamespace", "labels as dcgm-exporter 1 called them: uuid, pod_name, …",
                 &MetricsSettings::old_namespace),
      label_flag("metrics-replace-blanks",
                 {"GPULET_METRICS_REPLACE_BLANKS", "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME"},
                 "gpulet.metrics.replaceBlanks", "dashes in place of blanks in modelName",
                 &MetricsSettings::replace_blanks),
      label_flag("metrics-virtual-gpus", {"GPULET_METRICS_VIRTUAL_GPUS", "KUBERNETES_VIRTUAL_GPUS"},
                 "gpulet.metrics.virtualGPUs", "a shared GPU's series for each share, with a label vgpu",
                 &MetricsSettings::virtual_gpus),
      label_flag("metrics-pod-uid", {"GPULET_METRICS_POD_UID", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID"},
                 "gpulet.metrics.podUID", "a label pod_uid beside the Pod's name", &MetricsSettings::pod_uid),
      label_flag("metrics-pod-labels",
                 {"GPULET_METRICS_POD_LABELS", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"},
                 "gpulet.metrics.podLabels", "the Pods' own labels; needs get on pods",
                 &MetricsSettings::pod_labels),
      {.flag = "metrics-pod-label-patterns",
       .environment = {"GPULET_METRICS_POD_LABEL_PATTERNS",
                       "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"},
       .path = "gpulet.metrics.podLabelPatterns",
       .kind = Kind::kStrings,
       .default_text = "",
       .help = "regular expressions of which one must be found in a label's key; empty: every label",
       .assign = [](Config& c, const Value& v) { c.gpulet.metrics.pod_label_patterns = texts(v); }},
      {.flag = "metrics-pod-logs",
       .environment = {"GPULET_METRICS_POD_LOGS"},
       .path = "gpulet.metrics.podLogs",
       .default_text = "/var/log/pods",
       .help = "the kubelet's folder of Pods' logs, by whose names a process is found to be a Pod's",
       .assign = [](Config& c, const Value& v) { c.gpulet.metrics.pod_logs = text(v); }},
  };
}

}  // namespace

std::vector<Setting> metrics_settings() {
  auto rows = sampling_settings();
  for (auto& row : window_settings()) rows.push_back(std::move(row));
  for (auto& row : label_settings()) rows.push_back(std::move(row));
  return rows;
}

}  // namespace gpulet::config

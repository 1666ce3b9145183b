#include "config/gpulet_settings.h"

#include <array>

#include "base/text.h"
#include "config/config.h"
#include "config/schema.h"

namespace gpulet::config {
namespace {

using std::chrono::milliseconds;

// In the order of HostLabel.
constexpr std::array<std::string_view, 3> kHostLabels = {"none", "hostname", "Hostname"};
// A sample of eight GPUs takes some milliseconds of the driver that every container uses.
constexpr Setting::Bounds kInterval{1000, 3'600'000};
constexpr Setting::Bounds kWindow{1000, 86'400'000};

std::vector<Setting> sampling_settings() {
  return {
      {.flag = "metrics",
       .environment = {"GPULET_METRICS"},
       .path = "gpulet.metrics.enabled",
       .kind = Kind::kBool,
       .default_text = "true",
       .help = "sample the GPUs; false: serve only the agent's own metrics",
       .assign = [](Config& c, const Value& v) { c.gpulet.metrics.enabled = bool_value(v); }},
      {.flag = "metrics-interval",
       .environment = {"GPULET_METRICS_INTERVAL"},
       .path = "gpulet.metrics.interval",
       .kind = Kind::kDuration,
       .default_text = "15s",
       .help = "sampling interval of the GPUs",
       .bounds = kInterval,
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.metrics.interval = std::chrono::duration_cast<milliseconds>(
                 parse_duration(text_value(v)).value_or(milliseconds()));
           }},
      // A later row takes precedence over an earlier one.
      {.environment = {"DCGM_EXPORTER_INTERVAL"},
       .kind = Kind::kUnsigned,
       .help = "gpulet.metrics.interval in milliseconds; takes precedence",
       .bounds = kInterval,
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.metrics.interval = milliseconds(text::parse_unsigned(text_value(v)).value_or(0));
           }},
      {.flag = "metrics-counters-file",
       .environment = {"GPULET_METRICS_COUNTERS_FILE", "DCGM_EXPORTER_COLLECTORS"},
       .path = "gpulet.metrics.countersFile",
       .default_text = "",
       .help = "dcgm-exporter's counters file (empty: its default counters)",
       .assign = [](Config& c, const Value& v) { c.gpulet.metrics.counters_file = text_value(v); }},
      {.flag = "metrics-counters-config-map",
       .environment = {"GPULET_METRICS_COUNTERS_CONFIG_MAP", "DCGM_EXPORTER_CONFIGMAP_DATA"},
       .path = "gpulet.metrics.countersConfigMap",
       .default_text = "",
       .help = "NAMESPACE:NAME of a ConfigMap with a counters file in its key metrics; takes precedence over "
               "the file",
       .assign =
           [](Config& c, const Value& v) {
             // dcgm-exporter writes "none" for no ConfigMap.
             c.gpulet.metrics.counters_config_map = text_value(v) == "none" ? std::string() : text_value(v);
           }},
      {.flag = "metrics-devices",
       .environment = {"GPULET_METRICS_DEVICES", "DCGM_EXPORTER_DEVICES_STR"},
       .path = "gpulet.metrics.devices",
       .default_text = "f",
       .help = "devices to serve DCGM's metrics for: f, g, g:0,2-4, i, i:1,3-5",
       .assign = [](Config& c, const Value& v) { c.gpulet.metrics.devices = text_value(v); }},
      {.flag = "metrics-host-engine",
       .environment = {"GPULET_METRICS_HOST_ENGINE", "DCGM_REMOTE_HOSTENGINE_INFO"},
       .path = "gpulet.metrics.hostEngine",
       .default_text = "",
       .help = "nv-hostengine for DCGM_FI_PROF_* before Hopper: HOST:PORT or unix:///PATH (empty: none)",
       .assign = [](Config& c, const Value& v) { c.gpulet.metrics.host_engine = text_value(v); }},
  };
}

// gpulet's setting, and dcgm-exporter's variable in milliseconds, which takes precedence.
void add_window(std::vector<Setting>& rows, Setting own, std::string_view variable,
                milliseconds MetricsSettings::* field) {
  own.kind = Kind::kDuration;
  own.default_text = "5m";
  own.bounds = kWindow;
  own.assign = [field](Config& c, const Value& v) {
    c.gpulet.metrics.*field =
        std::chrono::duration_cast<milliseconds>(parse_duration(text_value(v)).value_or(milliseconds()));
  };
  rows.push_back(std::move(own));
  rows.push_back({.environment = {variable},
                  .kind = Kind::kUnsigned,
                  .help = "the same in milliseconds; takes precedence",
                  .bounds = kWindow,
                  .assign = [field](Config& c, const Value& v) {
                    c.gpulet.metrics.*field = milliseconds(text::parse_unsigned(text_value(v)).value_or(0));
                  }});
}

std::vector<Setting> window_settings() {
  std::vector<Setting> rows;
  add_window(rows,
             {.flag = "metrics-xid-window",
              .environment = {"GPULET_METRICS_XID_WINDOW"},
              .path = "gpulet.metrics.xidWindow",
              .help = "window of DCGM_EXP_XID_ERRORS_COUNT"},
             "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE", &MetricsSettings::xid_window);
  add_window(rows,
             {.flag = "metrics-clock-events-window",
              .environment = {"GPULET_METRICS_CLOCK_EVENTS_WINDOW"},
              .path = "gpulet.metrics.clockEventsWindow",
              .help = "window of DCGM_EXP_CLOCK_EVENTS_COUNT"},
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
          .assign = [field](Config& c, const Value& v) { c.gpulet.metrics.*field = bool_value(v); }};
}

std::vector<Setting> label_settings() {
  return {
      {.flag = "metrics-host-label",
       .environment = {"GPULET_METRICS_HOST_LABEL"},
       .path = "gpulet.metrics.hostLabel",
       .kind = Kind::kChoice,
       .choices = kHostLabels,
       .default_text = "Hostname",
       .help = "name of the node label: Hostname (all released versions of dcgm-exporter), hostname (its "
               "main branch) or none",
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.metrics.host_label = enum_value<HostLabel>(text_value(v), kHostLabels);
           }},
      label_flag("metrics-old-namespace", {"GPULET_METRICS_OLD_NAMESPACE", "DCGM_EXPORTER_USE_OLD_NAMESPACE"},
                 "gpulet.metrics.oldNamespace", "label names of dcgm-exporter 1: uuid, pod_name, …",
                 &MetricsSettings::old_namespace),
      label_flag("metrics-replace-blanks",
                 {"GPULET_METRICS_REPLACE_BLANKS", "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME"},
                 "gpulet.metrics.replaceBlanks", "replace blanks in modelName by dashes",
                 &MetricsSettings::replace_blanks),
      label_flag("metrics-virtual-gpus", {"GPULET_METRICS_VIRTUAL_GPUS", "KUBERNETES_VIRTUAL_GPUS"},
                 "gpulet.metrics.virtualGPUs",
                 "repeat a shared GPU's series for each share, with a label vgpu",
                 &MetricsSettings::virtual_gpus),
      label_flag("metrics-nvlinks", {"GPULET_METRICS_NVLINKS"}, "gpulet.metrics.nvlinks",
                 "add state, data and errors of each NVLink", &MetricsSettings::nvlinks),
      label_flag("metrics-pod-uid", {"GPULET_METRICS_POD_UID", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID"},
                 "gpulet.metrics.podUID", "add a label pod_uid", &MetricsSettings::pod_uid),
      label_flag("metrics-pod-labels",
                 {"GPULET_METRICS_POD_LABELS", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"},
                 "gpulet.metrics.podLabels", "add the Pods' own labels; needs get on pods",
                 &MetricsSettings::pod_labels),
      {.flag = "metrics-pod-label-patterns",
       .environment = {"GPULET_METRICS_POD_LABEL_PATTERNS",
                       "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"},
       .path = "gpulet.metrics.podLabelPatterns",
       .kind = Kind::kStrings,
       .default_text = "",
       .help = "regular expressions, one of which must match in a label's key (empty: every label)",
       .assign = [](Config& c, const Value& v) { c.gpulet.metrics.pod_label_patterns = list_value(v); }},
      {.flag = "metrics-pod-logs-dir",
       .environment = {"GPULET_METRICS_POD_LOGS_DIR"},
       .path = "gpulet.metrics.podLogsDir",
       .default_text = "/var/log/pods",
       .help = "the kubelet's directory of Pod logs, which maps Pod UIDs to names",
       .assign = [](Config& c, const Value& v) { c.gpulet.metrics.pod_logs_dir = text_value(v); }},
  };
}

}  // namespace

std::vector<Setting> metrics_settings() {
  auto rows = sampling_settings();
  for (auto& row : window_settings()) rows.push_back(std::move(row));
  for (auto& row : label_settings()) rows.push_back(std::move(row));
  return rows;
}

namespace {

constexpr std::string_view kNone = "none";
// The first is for no output; then in the order of LabelOutput.
constexpr std::array<std::string_view, 4> kOutputs = {kNone, "node", "file", "node-feature"};
constexpr std::string_view kInfinite = "infinite";

void assign_outputs(Config& config, const Value& value) {
  config.gpulet.labels.outputs.clear();
  for (const auto& item : list_value(value)) {
    if (item == kNone) continue;
    config.gpulet.labels.outputs.push_back(enum_value<LabelOutput>(item, std::span(kOutputs).subspan(1)));
  }
}

void assign_interval(Config& config, const Value& value) {
  config.gfd.sleep_interval.reset();
  if (text_value(value) != kInfinite) config.gfd.sleep_interval = parse_duration(text_value(value));
}

}  // namespace

std::vector<Setting> labels_settings() {
  return {
      {.flag = "labels",
       .environment = {"GPULET_LABELS"},
       .path = "gpulet.labels.outputs",
       .kind = Kind::kChoices,
       .choices = kOutputs,
       .help =
           "outputs of the node labels: node, file, node-feature or none (default: node; none as a drop-in)",
       .assign = assign_outputs},
      {.flag = "labels-extended",
       .environment = {"GPULET_LABELS_EXTENDED"},
       .path = "gpulet.labels.extended",
       .kind = Kind::kBool,
       .default_text = "true",
       .help = "also publish gpulet.io/… labels",
       .assign = [](Config& c, const Value& v) { c.gpulet.labels.extended = bool_value(v); }},
  };
}

std::vector<Setting> feature_discovery_settings() {
  return {
      {.flag = "oneshot",
       .environment = {"GFD_ONESHOT"},
       .path = "flags.gfd.oneshot",
       .kind = Kind::kBool,
       .help = "publish labels once and exit; for gpu-feature-discovery",
       .discovery_only = true,
       .assign = [](Config& c, const Value& v) { c.gfd.oneshot = bool_value(v); }},
      {.flag = "no-timestamp",
       .environment = {"GFD_NO_TIMESTAMP"},
       .path = "flags.gfd.noTimestamp",
       .kind = Kind::kBool,
       .help = "omit the label nvidia.com/gfd.timestamp",
       .discovery_only = true,
       .assign = [](Config& c, const Value& v) { c.gfd.no_timestamp = bool_value(v); }},
      {.flag = "sleep-interval",
       .environment = {"GFD_SLEEP_INTERVAL"},
       .path = "flags.gfd.sleepInterval",
       .kind = Kind::kInterval,
       .help = "polling interval of gpu-feature-discovery (default 60s), or infinite",
       .discovery_only = true,
       .assign = assign_interval},
      {.flag = "output-file",
       .flag_aliases = {"output", "o"},
       .environment = {"GFD_OUTPUT_FILE"},
       .path = "flags.gfd.outputFile",
       .help =
           "file to write labels to (default /etc/kubernetes/node-feature-discovery/features.d/gfd; empty: "
           "standard output)",
       .discovery_only = true,
       .assign = [](Config& c, const Value& v) { c.gfd.output_file = text_value(v); }},
      {.flag = "machine-type-file",
       .environment = {"GFD_MACHINE_TYPE_FILE"},
       .path = "flags.gfd.machineTypeFile",
       .help = "file with the machine's name (default /sys/class/dmi/id/product_name; empty: unknown)",
       .discovery_only = true,
       .assign = [](Config& c, const Value& v) { c.gfd.machine_type_file = text_value(v); }},
  };
}

}  // namespace gpulet::config

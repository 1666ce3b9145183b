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
  };
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
  for (auto& row : label_settings()) rows.push_back(std::move(row));
  return rows;
}

}  // namespace gpulet::config

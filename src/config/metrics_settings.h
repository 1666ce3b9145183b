// `gpulet.metrics`, `gpulet.labels` and `flags.gfd` as plain values, and their tables. The agent's
// metrics_collector.h, metrics/, labels/ and label_controller.h apply them.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace gpulet::config {

struct Setting;

enum class HostLabel { kNone, kLower, kUpper };  // no label, "hostname", "Hostname"

struct MetricsSettings {
  bool enabled = true;
  std::chrono::milliseconds interval{15'000};
  std::string counters_file;        // empty: dcgm-exporter's defaults
  std::string counters_config_map;  // "namespace:name" of a ConfigMap with such a file in its key `metrics`;
                                    // empty: none
  std::string devices = "f";        // metrics::DeviceFilter
  std::chrono::milliseconds xid_window{300'000}, clock_events_window{300'000};
  HostLabel host_label = HostLabel::kLower;
  bool old_namespace = false;                   // uuid, pod_name, pod_namespace, container_name
  bool replace_blanks = false;                  // dashes in the model's name
  bool virtual_gpus = false;                    // repeat a GPU's series for each share
  bool pod_uid = false;                         // a label pod_uid
  bool pod_labels = false;                      // the Pods' own labels
  std::vector<std::string> pod_label_patterns;  // one must match in a label's key; empty: all
  std::string pod_logs_dir = "/var/log/pods";
};

enum class LabelOutput {
  kNode,         // the Node itself
  kFile,         // flags.gfd.outputFile, which NFD's worker reads
  kNodeFeature,  // an object of NFD, which its master reads
};

// `gpulet.labels`.
struct LabelSettings {
  // Default: the Node for `gpulet agent`, none for `nvidia-device-plugin`, by flags.useNodeFeatureAPI for
  // `gpu-feature-discovery`.
  std::vector<LabelOutput> outputs;
  bool extended = true;  // also publish gpulet.io/…
  friend bool operator==(const LabelSettings&, const LabelSettings&) = default;
};

// `flags.gfd`, with NVIDIA's defaults.
struct FeatureDiscovery {
  bool oneshot = false;
  bool no_timestamp = false;
  std::optional<std::chrono::nanoseconds> sleep_interval = std::chrono::seconds(60);  // nullopt: infinite
  std::string output_file =
      "/etc/kubernetes/node-feature-discovery/features.d/gfd";  // empty: standard output
  std::string machine_type_file = "/sys/class/dmi/id/product_name";
  friend bool operator==(const FeatureDiscovery&, const FeatureDiscovery&) = default;
};

// The rows of config/schema.h's table. dcgm-exporter's variables count where it has the same setting.
// Sources: dcgm-exporter, pkg/cmd/app.go; k8s-device-plugin v0.20.0, cmd/gpu-feature-discovery/main.go.
std::vector<Setting> metrics_settings();
std::vector<Setting> labels_settings();
// `flags.gfd`: flags of `gpu-feature-discovery` only.
std::vector<Setting> feature_discovery_settings();

}  // namespace gpulet::config

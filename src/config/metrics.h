// `gpulet.metrics`: what is measured of the GPUs, how often, and how it is labelled. Plain values; the
// agent's node_metrics.h acts by them.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gpulet::config {

enum class HostLabel { kNone, kLower, kUpper };  // of each series: none, "hostname", "Hostname"

struct MetricsSettings {
  bool enabled = true;
  std::chrono::milliseconds interval{15'000};
  std::string counters_file;  // empty: dcgm-exporter's defaults
  std::string
      counters_config_map;    // "namespace:name", of which the key `metrics` is such a file; empty: none
  std::string devices = "f";  // which are shown: metrics/shown.h
  std::chrono::milliseconds xid_window{300'000}, clock_events_window{300'000};
  HostLabel host_label = HostLabel::kLower;
  bool old_namespace = false;   // uuid, pod_name, pod_namespace, container_name
  bool replace_blanks = false;  // in the model's name
  bool virtual_gpus = false;    // each share of a GPU has the GPU's series
  bool pod_uid = false;         // a label pod_uid
  bool pod_labels = false;      // the Pods' own labels
  std::vector<std::string> pod_label_patterns;  // of which one is to be found in a label's key; empty: all
  std::string pod_logs = "/var/log/pods";
};

}  // namespace gpulet::config

// The settings below the key `gpulet:`, `flags.gfd`, and those that choose the config file. NVIDIA's plugin
// has none of those below `gpulet:`. Each setting is a field here and a row of the tables in
// gpulet_settings.cpp, gpulet_settings_health.cpp (`gpulet.health`, `gpulet.faults`,
// `gpulet.rebalance`), gpulet_settings_repair.cpp (`gpulet.repair`) and
// gpulet_settings_metrics.cpp (`gpulet.metrics`, `gpulet.labels`, `flags.gfd`). The fields of `gpulet.health`
// are health::Policy.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/partition_rules.h"
#include "config/power_settings.h"
#include "health/policy/eviction_policy.h"
#include "health/policy/health_policy.h"
#include "health/report/node_health.h"
#include "preflight/preflight_policy.h"
#include "repair/repair_policy.h"
#include "scheduler/load/rebalance.h"

namespace gpulet::config {

struct Setting;

// `gpulet.faults`. The agent's remediation_controller.h applies them.
struct FaultSettings {
  bool condition = true;         // publish the Node condition GpuHealthy
  bool label = true;             // publish the Node label gpulet.io/gpu-health
  bool pod_events = true;        // send Events about the Pods that hold the device
  bool pod_annotations = false;  // annotate those Pods; needs patch on pods
  // Delete Pods that the kubelet has rejected for lack of an offered resource; needs list and delete on pods.
  bool delete_rejected_pods = false;
  // The effect of the Node taint gpulet.io/gpu-fault by severity; no entry: no taint.
  std::map<health::Severity, std::string> taints;
  health::EvictionPolicy eviction;
  unsigned max_unhealthy_nodes_percent = 0;  // applied by agent/remediation/pod_evictor.h; 0: not checked
};

enum class HostLabel { kNone, kLower, kUpper };  // no label, "hostname", "Hostname"

// `gpulet.metrics`. The agent's metrics_collector.h and metrics/ apply them.
struct MetricsSettings {
  bool enabled = true;
  std::chrono::milliseconds interval{15'000};
  std::string counters_file;        // empty: dcgm-exporter's defaults
  std::string counters_config_map;  // "namespace:name" of a ConfigMap with such a file in its key `metrics`;
                                    // empty: none
  std::string devices = "f";        // metrics::DeviceFilter
  bool nvlinks = false;             // gpulet's metrics of each NVLink
  std::string host_engine;          // address of nv-hostengine for GPUs before Hopper; empty: none
  std::chrono::milliseconds xid_window{300'000}, clock_events_window{300'000};
  HostLabel host_label = HostLabel::kUpper;
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

// `gpulet.labels`. labels/ and the agent's label_controller.h apply them.
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

// `gpulet.mig.onDemand`: limits of the MIG devices that are cut for waiting Pods, on GPUs whose rule has
// `mig.onDemand` (agent/mig/demand_controller.h).
struct MigOnDemand {
  unsigned max_gpus = 0;  // that may differ from their rule's layout at a time; 0: nothing is cut
  std::chrono::nanoseconds min_interval = std::chrono::minutes(10);  // between two changes of a GPU
  // From when nobody wants or uses what was cut until the GPU returns to its rule's layout.
  std::chrono::nanoseconds idle = std::chrono::minutes(10);
  friend bool operator==(const MigOnDemand&, const MigOnDemand&) = default;
};

// `gpulet.mig`.
struct MigSettings {
  bool manage = true;       // default false under NVIDIA's program name: its MIG manager may run
  std::string config_file;  // mig-parted's layout file; empty: layouts derived from the hardware
  std::string hooks_file;   // mig-parted's hooks file; empty: none
  bool drain = false;       // evict Pods that block a change
  MigOnDemand on_demand{};
  friend bool operator==(const MigSettings&, const MigSettings&) = default;
};

// `gpulet.mps`.
struct MpsSettings {
  bool manage = true;  // run the control daemons; default false under NVIDIA's program name
  friend bool operator==(const MpsSettings&, const MpsSettings&) = default;
};

// `gpulet.cdi`.
struct CdiSettings {
  std::string spec_dir = "/var/run/cdi";  // directory of the specs for the cdi-* strategies
  // A host directory, mounted at the same path, where the agent installs gpulet-hook. Specs then use it
  // instead of flags.plugin.nvidiaCTKPath. Empty: not installed.
  std::string hook_dir;
  friend bool operator==(const CdiSettings&, const CdiSettings&) = default;
};

// Selects the node's config file in a directory by a Node label. From flags and environment only, because it
// selects the file. Names are NVIDIA's config-manager's.
enum class FallbackStrategy { kNamed, kSingle, kEmpty };
struct NodeConfig {
  std::string directory;  // --config-file-srcdir; empty: not used
  std::string label = "nvidia.com/device-plugin.config";
  std::string default_config;               // a file name, for a node without the label
  std::vector<FallbackStrategy> fallbacks;  // in order, without label and default
  friend bool operator==(const NodeConfig&, const NodeConfig&) = default;
};

enum class PlacementPolicy { kBestEffort, kTightest };
// What the GPUs' load decides (placement/chooser.h).
enum class PlacementLoad { kIgnore, kPrefer, kStrict };
// How long the agent holds NVML (agent/driver/session_holder.h): for life, or only while it reads the GPUs.
enum class DriverHold { kAlways, kOnDemand };
enum class LogFormat { kText, kJson };
enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Dynamic Resource Allocation.
struct DraSettings {
  // GPUs are offered by claims, unless their partition rule says otherwise.
  bool enabled = false;
  // Records of prepared claims; best on tmpfs.
  std::string record_dir = "/run/gpulet/claims";
  // NVIDIA's feature gates, under its names: what the config of a claim may ask for.
  bool mps_support = false;
  bool time_slicing_settings = false;
};

// What is done with a container that uses more memory of a GPU than its Pod requests
// (agent/fraction/memory_auditor.h).
enum class ExceededAction { kNone, kWarn, kKill, kEvict };

// `gpulet.fraction`.
struct FractionSettings {
  ExceededAction on_exceeded = ExceededAction::kNone;
  // Containers start with the driver's memory limits of what their Pods request, or not at all
  // (agent/fraction/limit_service.h).
  bool driver_limits = false;
  // Its socket and records, at the same path on the host; best on tmpfs.
  std::string limit_dir = "/run/gpulet/limits";
};

struct GpuletSettings {
  PlacementPolicy placement_policy = PlacementPolicy::kBestEffort;
  PlacementLoad placement_load = PlacementLoad::kPrefer;
  std::string kubelet_dir = "/var/lib/kubelet";
  // "host:port" of the listener child with /healthz, /readyz and /metrics; empty: none.
  std::string listen = "0.0.0.0:9400";
  std::string web_config_file;  // Prometheus' web config of the listener; empty: open to all
  // Unix socket with the same pages, and its file mode; empty: none.
  std::string socket = "/run/gpulet/agent.sock";
  unsigned socket_mode = 0660;
  LogFormat log_format = LogFormat::kText;
  LogLevel log_level = LogLevel::kInfo;
  std::chrono::milliseconds driver_call_timeout{10'000};
  DriverHold driver_hold = DriverHold::kAlways;
  health::Policy health;
  FaultSettings faults;
  scheduler::RebalancePolicy rebalance;
  MetricsSettings metrics;
  LabelSettings labels;
  // Directory of persistent state (health, cordons); empty: not persisted.
  std::string state_dir = "/var/lib/gpulet";
  // Publish the GpuNode object; nullopt: where its CRD is installed and the agent has the rights.
  std::optional<bool> publish_gpu_node;
  // Give Pods the devices that their annotations accept; needs list on pods.
  bool pod_choices = false;
  // Key of the Node's taint that the agent removes once the GPUs can be requested; empty: none.
  std::string startup_taint;
  // Create missing device nodes of the driver in the driver root's /dev, if the agent may.
  bool create_device_nodes = true;
  // Read for XIDs and NVSwitch faults; empty: not read.
  std::string kernel_log = "/dev/kmsg";
  // For `gpulet health`, written at each change; empty: not written.
  std::string health_file = "/run/gpulet/health.json";
  std::vector<PartitionRule> partition;  // first match wins
  MigSettings mig;
  MpsSettings mps;
  CdiSettings cdi;
  DraSettings dra;
  FractionSettings fraction;
  repair::Policy repair;
  PowerSettings power;
  preflight::Policy preflight;
};

// The rows of config/schema.h's table for `gpulet.*`, for `gpulet.driver`, `gpulet.mig`,
// `gpulet.mps`, `gpulet.cdi`, `gpulet.dra` and `gpulet.fraction`, and for NodeConfig.
std::vector<Setting> gpulet_settings();
std::vector<Setting> partition_settings();
std::vector<Setting> node_config_settings();
std::vector<Setting> mig_on_demand_settings();

// A row for each of health::policy_settings(): `gpulet.health.pollInterval` in the file,
// --health-poll-interval, GPULET_HEALTH_POLL_INTERVAL. In the file only: `classes.CLASS.effect` and
// `classes.CLASS.recoveryHold` of each fault class.
std::vector<Setting> health_settings();

// `gpulet.faults`. In the file only: `eviction.classes.CLASS` of each fault class.
std::vector<Setting> faults_settings();

// `gpulet.repair`.
std::vector<Setting> repair_settings();

// `gpulet.preflight`.
std::vector<Setting> preflight_settings();

// `gpulet.rebalance`. Its evictions also obey the limit of `gpulet.faults.eviction.maxEvictions`.
std::vector<Setting> rebalance_settings();

// The rows of config/schema.h's table. dcgm-exporter's variables count where it has the same setting.
// Sources: dcgm-exporter, pkg/cmd/app.go; k8s-device-plugin v0.20.0, cmd/gpu-feature-discovery/main.go.
std::vector<Setting> metrics_settings();
std::vector<Setting> labels_settings();
// `flags.gfd`: flags of `gpu-feature-discovery` only.
std::vector<Setting> feature_discovery_settings();

}  // namespace gpulet::config

// The settings below the key `gpulet:` that have no section of their own, and those that choose the config
// file. NVIDIA's plugin has none of them. Each setting is a field here and a row of the tables in
// gpulet_settings.cpp.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "config/health_settings.h"
#include "config/metrics_settings.h"
#include "config/partition_rules.h"
#include "health/policy/health_policy.h"

namespace gpulet::config {

struct Setting;

// `gpulet.mig`.
struct MigSettings {
  bool manage = true;       // default false under NVIDIA's program name: its MIG manager may run
  std::string config_file;  // mig-parted's layout file; empty: layouts derived from the hardware
  std::string hooks_file;   // mig-parted's hooks file; empty: none
  bool drain = false;       // evict Pods that block a change
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
enum class LogFormat { kText, kJson };
enum class LogLevel { kDebug, kInfo, kWarning, kError };
struct GpuletSettings {
  PlacementPolicy placement_policy = PlacementPolicy::kBestEffort;
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
  health::Policy health;
  FaultSettings faults;
  MetricsSettings metrics;
  LabelSettings labels;
  // Directory of persistent state (health, cordons); empty: not persisted.
  std::string state_dir = "/var/lib/gpulet";
  bool publish_gpu_node = true;  // publish the GpuNode object
  // Read for XIDs and NVSwitch faults; empty: not read.
  std::string kernel_log = "/dev/kmsg";
  // For `gpulet health`, written at each change; empty: not written.
  std::string health_file = "/run/gpulet/health.json";
  std::vector<PartitionRule> partition;  // first match wins
  MigSettings mig;
  MpsSettings mps;
  CdiSettings cdi;
};

// The rows of config/schema.h's table for `gpulet.*`, for `gpulet.mig`, `gpulet.mps` and `gpulet.cdi`, and
// for NodeConfig.
std::vector<Setting> gpulet_settings();
std::vector<Setting> partition_settings();
std::vector<Setting> node_config_settings();

}  // namespace gpulet::config

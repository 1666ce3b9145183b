// The agent's settings, whole and valid: what flags, environment, the `version: v1` file and defaults come
// to.
//
// Names and meanings are NVIDIA's wherever NVIDIA has the setting (facts/device-plugin 1.1, 1.2); our own
// live under `gpulet:` of the same file. config/load.h makes one; nothing else reads a flag or the
// environment.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/strong.h"
#include "config/faults.h"
#include "config/labels.h"
#include "config/metrics.h"
#include "config/rules.h"
#include "health/policy.h"

namespace gpulet::config {

enum class DeviceListStrategy { kEnvvar, kVolumeMounts, kCdiAnnotations, kCdiCri };
enum class DeviceIdStrategy { kUuid, kIndex };
enum class DeviceDiscoveryStrategy { kAuto, kNvml, kTegra };
enum class SharedDevicesAllocationPolicy { kDistributed, kPacked };
enum class PlacementPolicy { kBestEffort, kTightest };

// Fields of `flags`, with NVIDIA's defaults.
struct Flags {
  MigStrategy mig_strategy = MigStrategy::kNone;
  bool fail_on_init_error = true;
  std::string mps_root;
  std::string nvidia_driver_root = "/";
  std::string nvidia_dev_root = "/";  // defaults to the driver root
  bool gdrcopy_enabled = false;
  bool gds_enabled = false;
  bool mofed_enabled = false;
  bool use_node_feature_api = true;  // gpu-feature-discovery's labels as an object of NFD
  DeviceDiscoveryStrategy device_discovery_strategy = DeviceDiscoveryStrategy::kAuto;

  bool pass_device_specs = false;
  std::vector<DeviceListStrategy> device_list_strategy = {DeviceListStrategy::kEnvvar};
  DeviceIdStrategy device_id_strategy = DeviceIdStrategy::kUuid;
  std::string cdi_annotation_prefix = "cdi.k8s.io/";
  std::string nvidia_cdi_hook_path = "/usr/bin/nvidia-ctk";
  std::string container_driver_root = "/driver-root";
  SharedDevicesAllocationPolicy shared_devices_allocation_policy =
      SharedDevicesAllocationPolicy::kDistributed;
  std::vector<std::string> cdi_feature_flags;
  std::vector<std::string> cdi_disable_hooks;

  // DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS, as given.
  std::string disable_healthchecks;
  std::string enable_healthchecks;
};

// `resources.gpus[]` and `resources.mig[]`: the first pattern that matches a GPU's model (or a MIG profile)
// names it.
struct ResourcePattern {
  std::string pattern;  // "*" matches anything, anchored at both ends
  ResourceName name;
};

// `devices:` of a shared resource.
using DeviceRefs = std::vector<std::string>;  // "0", "0:1", "GPU-…", "MIG-…"
using DeviceSelection = std::variant<AllDevices, DeviceCount, DeviceRefs>;

struct ReplicatedResource {
  ResourceName name;
  std::optional<ResourceName> rename;  // set by `rename`, or by renameByDefault ("<name>.shared")
  DeviceSelection devices = AllDevices{};
  unsigned replicas = 0;
};

enum class SharingStrategy { kNone, kTimeSlicing, kMps };
struct Sharing {
  SharingStrategy strategy = SharingStrategy::kNone;
  bool fail_requests_greater_than_one = false;
  std::vector<ReplicatedResource> resources;
};

struct Imex {
  std::vector<unsigned> channel_ids;  // [] or [0]
  bool required = false;
};

// Fields of `gpulet:`: what NVIDIA has no setting for.
enum class LogFormat { kText, kJson };
enum class LogLevel { kDebug, kInfo, kWarning, kError };
struct Own {
  PlacementPolicy placement_policy = PlacementPolicy::kBestEffort;
  std::string kubelet_dir = "/var/lib/kubelet";
  // "host:port" that the listener child serves /healthz, /readyz and /metrics on; empty for none.
  std::string listen = "0.0.0.0:9400";
  std::string web_config_file;  // who may connect there, in Prometheus' form; empty: everybody
  // Path of the Unix socket that serves the same, and its file's mode; empty for none.
  std::string socket = "/run/gpulet/agent.sock";
  unsigned socket_mode = 0660;
  LogFormat log_format = LogFormat::kText;
  LogLevel log_level = LogLevel::kInfo;
  std::chrono::milliseconds driver_call_timeout{10'000};
  health::Policy health;
  FaultSettings faults;
  MetricsSettings metrics;
  LabelSettings labels;
  // Where what must outlive the process is kept (the health state, cordons); empty: nothing is.
  std::string state_dir = "/var/lib/gpulet";
  bool publish_node = true;  // the object GpuNode, for schedulers
  // Read for XIDs and NVSwitches' faults; empty: not.
  std::string kernel_log = "/dev/kmsg";
  // What `gpulet health` reads: written at each change; empty: not.
  std::string health_file = "/run/gpulet/health.json";
  std::vector<PartitionRule> partition;  // first match wins
  MigSettings mig;
  MpsSettings mps;
  CdiSettings cdi;
};

struct Config {
  Flags flags;
  std::vector<ResourcePattern> gpu_resources;  // never empty: ends with "*" → nvidia.com/gpu
  std::vector<ResourcePattern> mig_resources;
  Sharing sharing;
  Imex imex;
  FeatureDiscovery gfd;  // fields of `flags.gfd`
  Own gpulet;

  std::string config_file;  // --config-file; empty for none
  NodeConfig node_config;
  // --kubelet-socket: absent = below gpulet.kubelet_dir; "" = do not register.
  std::optional<std::string> kubelet_socket;

  std::string device_plugin_dir() const { return gpulet.kubelet_dir + "/device-plugins"; }
};

}  // namespace gpulet::config

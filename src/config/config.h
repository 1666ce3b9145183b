// The agent's configuration, complete and valid: the result of flags, environment, path of the `version: v1`
// config file and defaults. NVIDIA's settings have NVIDIA's names and meanings (k8s-device-plugin v0.20.0);
// gpulet's own are below `gpulet:` of the same file. Only config/load.h makes one, and nothing else reads
// flags or the environment.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/types.h"
#include "config/gpulet_settings.h"
#include "config/partition_rules.h"

namespace gpulet::config {

enum class DeviceListStrategy { kEnvvar, kVolumeMounts, kCdiAnnotations, kCdiCri };
enum class DeviceIdStrategy { kUuid, kIndex };
// kVfio: of gpu-feature-discovery only.
enum class DeviceDiscoveryStrategy { kAuto, kNvml, kVfio };
enum class SharedDevicesAllocationPolicy { kDistributed, kPacked };

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

struct Config {
  Flags flags;
  std::vector<ResourcePattern> gpu_resources;  // never empty: ends with "*" → nvidia.com/gpu
  std::vector<ResourcePattern> mig_resources;
  Sharing sharing;
  Imex imex;
  FeatureDiscovery gfd;  // fields of `flags.gfd`
  GpuletSettings gpulet;

  std::string config_file;  // --config-file; empty for none
  NodeConfig node_config;
  // --kubelet-socket: absent = below gpulet.kubelet_dir; "" = do not register.
  std::optional<std::string> kubelet_socket;

  std::string device_plugin_dir() const { return gpulet.kubelet_dir + "/device-plugins"; }
};

}  // namespace gpulet::config

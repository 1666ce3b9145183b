// What is known about an installation of NVIDIA's programs, as plain values: found by scan.h, evaluated by
// report.h. It contains no content of Secrets.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "inventory/platform.h"

namespace gpulet::migrate {

// What a program does, whatever its vendor and image name.
enum class Component {
  kDevicePlugin,
  kFeatureDiscovery,
  kMpsControlDaemon,
  kConfigManager,
  kMigManager,
  kDcgmExporter,
  kHostEngine,
  kContainerToolkit,
  kOperator,
  kValidator,
  kDriver,
  kCloudPlugin,  // a cloud provider's device plugin for nvidia.com/gpu
  kAgent,        // `gpulet agent`
};

enum class Installed { kByHand, kByChart, kByOperator, kOnHost };

// A text with its origin: "configmap kube-system/plugin-configs, key default", or a path.
struct NamedText {
  std::string name, text;
  friend bool operator==(const NamedText&, const NamedText&) = default;
};

// A ConfigMap that a program reads: one key of it, or all (empty).
struct ConfigMapRef {
  std::string name_space, name, key;
  enum class Content { kConfigs, kCounters } content = Content::kConfigs;
  friend auto operator<=>(const ConfigMapRef&, const ConfigMapRef&) = default;
};

using Environment = std::map<std::string, std::string, std::less<>>;

// A container of a workload, or a process of a node.
struct Program {
  Component component = Component::kDevicePlugin;
  bool is_gpulet = false;          // gpulet under NVIDIA's name
  std::string kind;                // "DaemonSet", "Deployment", "process"
  std::string name_space, name;    // of the workload, or the process number
  std::string container, image{};  // empty for a process
  bool is_init_container = false;  // in an init container
  bool has_command = true;         // false: the image's entry point runs
  bool runs_in_shell = false;      // its command runs in a shell
  bool host_network = false;
  std::string nodes{};  // the workload's nodeSelector and affinity; empty: all nodes
  Installed installed = Installed::kByHand;
  std::string release{}, release_namespace{}, chart{};  // from Helm: "nvdp", "gpu",
                                                        // "nvidia-device-plugin-0.17.1"
  std::vector<std::string> arguments{};                 // after the program's name
  Environment environment{};                            // of a process: only known variables
  std::vector<std::string> external_variables{};  // variables whose values are in another object, with its
                                                  // name
  std::vector<ConfigMapRef> config_maps{};
  std::vector<NamedText> configs{}, counters{};  // the files of each kind that it reads

  std::string location() const;  // "DaemonSet gpu/nvdp, container nvidia-device-plugin-ctr", "process 71"
  std::string workload_name() const;  // "DaemonSet gpu/nvdp"
};

// A file, directory or socket on a node that reveals a program.
struct FileTrace {
  Component component = Component::kDevicePlugin;
  std::string path, what;
};

struct NodeFacts {
  std::string name;
  std::map<std::string, std::string> labels;     // those that NVIDIA's programs follow
  std::map<std::string, std::string> resources;  // allocatable, "nvidia.com/…"
};

// The operator's ClusterPolicy: the relevant fields, as "devicePlugin.enabled", and their values.
struct ClusterPolicy {
  std::string name;
  std::map<std::string, std::string, std::less<>> fields;
};

// A Helm release: the given values of NVIDIA's chart, and the names of all other given values.
struct HelmRelease {
  std::string name, name_space, chart, version, revision;
  std::vector<std::pair<std::string, std::string>> values;
  std::vector<std::string> other_names;
};

struct EngineFacts {
  std::string title;             // "containerd 2.1.4"
  bool cdi_ready = false;        // CDI is on
  std::string fix{};             // if CDI is off
  std::string nvidia_runtime{};  // the file that configures NVIDIA's runtime; empty: none
};

struct Facts {
  bool is_cluster = false;
  std::string location;  // the node's root, or the API server
  std::vector<Program> programs{};
  std::optional<inventory::PlatformEvidence> platform{};  // of a node whose GPUs gpulet does not offer
  std::vector<FileTrace> traces{};
  std::vector<NodeFacts> nodes{};
  std::vector<ClusterPolicy> policies{};
  std::vector<HelmRelease> releases{};
  std::vector<EngineFacts> engines{};
  std::vector<NamedText> configs{};   // files on a node that no running program reads
  std::vector<std::string> unread{};  // one line each, with the missing permission
};

}  // namespace gpulet::migrate

// What is known of an installation of NVIDIA's programs, as plain values: what a look at a cluster
// (cluster_look.h) or at a node (node_look.h) finds, and what analyse.h judges. No Secret's content is in it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpulet::migrate {

// What a program does, whoever's it is and whatever its image is called.
enum class Part {
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
  kCloudPlugin,  // a cloud's own device plugin of nvidia.com/gpu
  kAgent,        // `gpulet agent`
};

enum class Installed { kByHand, kByChart, kByOperator, kOnHost };

// A text with where it is: "configmap kube-system/plugin-configs, key default", or a path.
struct NamedText {
  std::string name, text;
  friend bool operator==(const NamedText&, const NamedText&) = default;
};

// A ConfigMap that a program reads, of which one key counts, or all (empty).
struct MapRef {
  std::string name_space, name, key;
  enum class Holds { kConfigs, kCounters } holds = Holds::kConfigs;
  friend auto operator<=>(const MapRef&, const MapRef&) = default;
};

using Environment = std::map<std::string, std::string, std::less<>>;

// One container of a workload, or one process of a node.
struct Program {
  Part part = Part::kDevicePlugin;
  bool ours = false;               // gpulet, called by NVIDIA's name
  std::string kind;                // "DaemonSet", "Deployment", "process"
  std::string name_space, name;    // of the workload; a process has its number for a name
  std::string container, image{};  // empty for a process
  bool initial = false;            // of an init container
  bool has_command = true;         // false: the image's own entry point runs
  bool through_shell = false;      // its command is a shell
  bool host_network = false;
  std::string nodes{};  // on which it runs, as its nodeSelector and affinity say it; empty: on all
  Installed installed = Installed::kByHand;
  std::string release{}, release_namespace{},
      chart{};                           // of Helm: "nvdp", "gpu", "nvidia-device-plugin-0.17.1"
  std::vector<std::string> arguments{};  // behind the program's name
  Environment environment{};             // of a process: only what a table here knows
  std::vector<std::string> elsewhere{};  // variables whose values are in another object, with which
  std::vector<MapRef> maps{};
  std::vector<NamedText> configs{}, counters{};  // files of the two forms that it reads

  std::string where() const;     // "DaemonSet gpu/nvdp, container nvidia-device-plugin-ctr", "process 71"
  std::string workload() const;  // "DaemonSet gpu/nvdp"
};

// A file, folder or socket of a node that tells of a program.
struct Trace {
  Part part = Part::kDevicePlugin;
  std::string path, what;
};

struct NodeFacts {
  std::string name;
  std::map<std::string, std::string> labels;     // those that NVIDIA's programs read
  std::map<std::string, std::string> resources;  // allocatable, "nvidia.com/…"
};

// The operator's ClusterPolicy: the fields that count here, as "devicePlugin.enabled" and their values.
struct Policy {
  std::string name;
  std::map<std::string, std::string, std::less<>> fields;
};

// A Helm release: NVIDIA's values that its user gave, and the names of what else was given.
struct Release {
  std::string name, name_space, chart, version, revision;
  std::vector<std::pair<std::string, std::string>> values;
  std::vector<std::string> others;
};

struct EngineFacts {
  std::string title;             // "containerd 2.1.4"
  bool fit = false;              // CDI is on
  std::string remedy{};          // where it is not
  std::string nvidia_runtime{};  // the file that sets NVIDIA's runtime up, empty for none
};

struct Facts {
  bool of_cluster = false;
  std::string place;  // the node's root, or the API server
  std::vector<Program> programs{};
  std::vector<Trace> traces{};
  std::vector<NodeFacts> nodes{};
  std::vector<Policy> policies{};
  std::vector<Release> releases{};
  std::vector<EngineFacts> engines{};
  std::vector<NamedText> configs{};     // lying on a node, read by nobody that runs
  std::vector<std::string> not_read{};  // one line each, with the right that is missing
};

}  // namespace gpulet::migrate

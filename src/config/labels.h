// What the node's labels are made of and where they go: `gpulet.labels`, and the part of NVIDIA's settings
// that its feature discovery reads. Plain values; labels/ and the agent's label_care.h act by them.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace gpulet::config {

enum class LabelOutput {
  kNode,         // the Node itself
  kFile,         // flags.gfd.outputFile, which NFD's worker reads
  kNodeFeature,  // an object of NFD, which its master reads
};

struct LabelSettings {
  // By default the Node for `gpulet agent`, nothing for `nvidia-device-plugin`, and what
  // flags.useNodeFeatureAPI says for `gpu-feature-discovery`.
  std::vector<LabelOutput> outputs;
  bool own = true;  // gpulet.io/… too
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

}  // namespace gpulet::config

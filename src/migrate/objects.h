// Objects of the API server, as it sends them, made into facts. What is no such object, or is none of
// NVIDIA's, gives nothing. Pure. Source: Kubernetes API apps/v1, v1; nvidia.com/v1 ClusterPolicy; the labels
// and annotations that Helm sets (helm.sh/chart, meta.helm.sh/release-name).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "migrate/facts.h"

namespace gpulet::migrate {

// The containers of a DaemonSet or Deployment (`kind`) that are programs of this business.
std::vector<Program> programs_of(std::string_view object, const std::string& kind);

std::optional<Policy> policy_of(std::string_view object);

// A node with labels that count here, or with GPUs.
std::optional<NodeFacts> node_of(std::string_view object);

// A ConfigMap's texts, by key.
std::map<std::string, std::string> data_of(std::string_view object);

// Of `programs`, what each reads of a ConfigMap: put into its configs or counters.
void fill(std::vector<Program>& programs, const MapRef& map, const std::map<std::string, std::string>& data);

}  // namespace gpulet::migrate

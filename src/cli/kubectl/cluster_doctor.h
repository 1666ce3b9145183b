// `kubectl gpulet doctor`: what keeps Pods from the GPUs of a cluster, as far as its API server knows. Facts
// are read from it, then judged by checks that are pure. What only a node knows, `gpulet doctor` checks
// there.
//
// A check that cannot read its facts is unknown, not failed.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/kubectl/cluster_gpus.h"
#include "doctor/checks.h"
#include "k8s/client_config.h"

namespace gpulet::cli::kubectl {

// A Node.
struct ClusterNodeFacts {
  bool ready = false;
  bool has_gpus = false;  // it offers one of NVIDIA's resources, or has the label nvidia.com/gpu.present
  std::map<std::string, std::uint64_t>
      allocatable;  // whole numbers by resource; what the kubelet accepts now
  friend bool operator==(const ClusterNodeFacts&, const ClusterNodeFacts&) = default;
};

// The Pod of an agent on a node.
struct ClusterAgentFacts {
  std::string name_space, name, node, image;
  bool ready = false;
  std::string waiting;  // "CrashLoopBackOff"; empty if no container waits
  friend bool operator==(const ClusterAgentFacts&, const ClusterAgentFacts&) = default;
};

// A GpuNode, with what it offers of each resource now.
struct PublishedNodeFacts {
  std::map<std::string, std::uint64_t> offered;  // shares that are not withdrawn
  std::vector<ClusterGpu> gpus;
};

// The answer of the scheduler extender through the API server.
struct SchedulerFacts {
  bool installed = false;
  bool answers = false;
  std::string error;  // one line, if it does not answer
};

struct ClusterDoctorFacts {
  Result<std::map<std::string, ClusterNodeFacts>> nodes = std::map<std::string, ClusterNodeFacts>();
  Result<std::vector<ClusterAgentFacts>> agents = std::vector<ClusterAgentFacts>();
  // nullopt: the cluster has no kind GpuNode.
  Result<std::optional<std::map<std::string, PublishedNodeFacts>>> published =
      std::optional(std::map<std::string, PublishedNodeFacts>());
  std::map<std::string, std::string> undecodable;  // GpuNodes by name, with what is wrong
  Result<SchedulerFacts> scheduler = SchedulerFacts();
};

// Parses a Node; of anything else, a node that is not ready.
ClusterNodeFacts parse_cluster_node(std::string_view object);
// Parses a Pod. nullopt for one that is not bound or has finished (extender::parse_agent_pod).
std::optional<ClusterAgentFacts> parse_cluster_agent(std::string_view object);

// Reads all of it, with list on nodes, pods and gpunodes, and get on services/proxy. Blocks.
ClusterDoctorFacts read_cluster_facts(const k8s::ClientConfig& access, const std::string& agent_selector,
                                      const std::string& service);

// agents, gpu-nodes, versions, scheduler, gpu-health, in this order.
std::vector<doctor::Finding> check_cluster(const ClusterDoctorFacts& facts);

}  // namespace gpulet::cli::kubectl

// Reads a node's files, driver, kubelet, agent and API server into Facts.
//
// Changes nothing and never blocks: each part has kProbeTimeout, after which its fact is an Error. A part
// that hangs (a driver, a mount) keeps its thread, so the process must exit with _exit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "doctor/facts.h"
#include "doctor/support_archive.h"
#include "extender/explain_client.h"
#include "k8s/client_config.h"

namespace gpulet::doctor {

inline constexpr Duration kProbeTimeout = std::chrono::seconds(5);
inline constexpr Duration kClusterTimeout =
    std::chrono::seconds(15);  // for all requests to the API server together
inline constexpr Duration kExplainTimeout = std::chrono::seconds(10);  // for all explained Pods
inline constexpr std::size_t kMaxExplained = 3;                        // Pods
inline constexpr std::size_t kMaxReasons = 10;                         // nodes per Pod

struct ProbeTargets {
  std::string host_root = "/";  // where the host's / is mounted
  std::string driver_root{};    // empty: host_root, or the driver container's root below it
  std::string dev_root{};       // holds dev/; empty: driver_root if it has dev/nvidiactl, else host_root
  std::string kubelet_dir{};    // empty: var/lib/kubelet below host_root
  std::string socket{};         // the agent's socket; empty: run/gpulet/agent.sock below host_root
  std::string agent_host{};     // use this address instead of the socket
  std::uint16_t agent_port = 0;
  std::string config_file{};  // the agent's config file, used without an agent
  bool in_container = false;  // host_root is a container's own root, without the host's files
  Result<k8s::ClientConfig> access = fail(Code::kNotFound, "no API server configured");
  std::string node_name{};                          // in the cluster; empty: unknown
  std::string service = extender::kDefaultService;  // the extender's Service; empty: none
};

struct CollectedFacts {
  Facts facts;
  std::vector<ArchiveFile> files;  // raw files for a support archive, with secrets
};
CollectedFacts collect_facts(ProbeTargets targets);

// Whether gpulet-sim made the driver root: a simulated node. Source: kStatePathInRoot in sim/state/state.h.
bool is_simulated_root(const std::string& driver_root);

}  // namespace gpulet::doctor

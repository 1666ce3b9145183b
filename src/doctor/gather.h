// Looks at a node: its files, driver, kubelet, agent and API server, and gives what was seen as Facts.
//
// Nothing is changed, and nothing can hold it up: each part has kProbeLimit, after which its fact is an
// Error. A part that hangs (a driver, a mount) keeps its thread, so that the process must leave by _exit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "cluster/access.h"
#include "doctor/archive.h"
#include "doctor/facts.h"
#include "extender/ask.h"

namespace gpulet::doctor {

inline constexpr Duration kProbeLimit = std::chrono::seconds(5);
inline constexpr Duration kClusterLimit =
    std::chrono::seconds(15);  // of all requests to the API server together
inline constexpr Duration kExplainLimit = std::chrono::seconds(10);  // of all Pods that are explained
inline constexpr std::size_t kMaxExplained = 3;                      // Pods
inline constexpr std::size_t kMaxReasons = 10;                       // nodes of one

struct Places {
  std::string host_root = "/";  // where the host's / is seen
  std::string driver_root{};    // empty: host_root
  std::string kubelet_dir{};    // empty: var/lib/kubelet below host_root
  std::string socket{};         // the agent's; empty: run/gpulet/agent.sock below host_root
  std::string agent_host{};     // the agent is asked there instead of by its socket
  std::uint16_t agent_port = 0;
  std::string config_file{};  // the agent's, for when there is none to ask
  bool in_container = false;  // host_root is a container's own root: it does not show the host's files
  Result<cluster::Access> access = fail(Code::kNotFound, "no API server is named");
  std::string node_name{};  // in the cluster; empty: not known
  std::string service = extender::kService;  // the extender's; empty: nobody is asked
};

struct Gathered {
  Facts facts;
  std::vector<ArchiveFile> files;  // raw texts for a support archive, secrets still in them
};
Gathered gather(Places places);

}  // namespace gpulet::doctor

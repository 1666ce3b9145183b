// The process `gpulet scheduler`: one loop with the watches, the listening socket and the signals.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "extender/page_watcher.h"
#include "scheduler/core/decision.h"

namespace gpulet::extender {

// Whole Nodes of 5,000 nodes are 59 MB, and no one sends them who can send names; bodies with names are below
// 1 MiB.
inline constexpr std::size_t kMaxBodyBytes = 64u << 20;
// Of all requests and responses together: one of the largest with its response, within a limit of 200 MB.
inline constexpr std::size_t kBodyBudget = 2 * kMaxBodyBytes;

// Who may read the cluster page: users with a token of the cluster (cluster_page.h), or everybody, for a
// listener that only an authenticating proxy or this host reaches.
enum class PageAccess { kToken, kEverybody };

struct ExtenderOptions {
  std::string listen = "0.0.0.0:9410";
  std::string policy = "default";  // for Pods without a policy of their own or their namespace
  // See ExtenderService.
  std::size_t nodes_to_score = scheduler::kNodesToScore;
  // PEM files, reloaded when they change; empty: plain HTTP. With CAs, clients must present a certificate
  // that they signed.
  std::string certificate_file{}, key_file{}, client_authorities_file{};
  // spec.schedulerName of the Pods that should be asked about; empty: default-scheduler.
  std::vector<std::string> scheduler_names{};
  std::string record{};  // ConfigMap in its namespace that the replicas share; empty: none
  // The cluster page; empty: none. With PageAccess::kToken it is served by TLS, with the certificate above or
  // a self-signed one, because tokens travel over it.
  std::string page_address{};
  PageAccess page_access = PageAccess::kToken;
  std::string node_page = "http://{ip}:{port}/";  // see DocumentInputs
  std::string agent_selector = kAgentSelector;    // labels of the agents' Pods
  // How long a Pod waits for a MIG device before a node is asked to cut one, in seconds; 0: none is asked.
  unsigned mig_demand_after_seconds = 0;
  unsigned shutdown_seconds = 5;  // how long it keeps serving as not-ready after SIGTERM
};

// Runs until SIGTERM, SIGINT or SIGQUIT. `environment` locates the API server (k8s::find_client_config).
// Errors: kInvalidArgument for an unknown policy, a bad address or certificate; kFailedPrecondition without
// an API server; kIo and kPermissionDenied of listening.
Status run_extender(const ExtenderOptions& options,
                    std::map<std::string, std::string, std::less<>> environment);

}  // namespace gpulet::extender

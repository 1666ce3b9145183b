// `gpulet metrics-api`: the custom metrics API of a cluster (src/metrics_api), for HorizontalPodAutoscalers.
#pragma once

#include <map>
#include <string>

#include "base/result.h"
#include "cluster/access.h"
#include "metrics_api/server.h"

namespace gpulet::cli {

// As the command line and the environment have them; empty is the default.
struct MetricsApiOptions {
  std::string listen{}, tls_cert_file{}, tls_private_key_file{};
  std::string kubeconfig{};  // outside a cluster
  std::string agent_namespace{}, agent_selector{};
  std::string agent_scheme = "http";  // or https
  std::uint16_t agent_port = 9400;
  std::string agent_ca_file{}, agent_server_name{}, agent_token_file{}, agent_basic_auth_file{};
  std::string agent_timeout{}, interval{}, oldest{};  // Go's durations
};

// What they come to. Without a namespace, the agents are in that of `access`. Errors: kInvalidArgument about
// the flag.
Result<metrics_api::ServerOptions> metrics_api_options(const MetricsApiOptions& options,
                                                       const cluster::Access& access);

// Serves until SIGTERM or SIGINT. Returns 0, or 1 with one line on standard error.
int metrics_api(const MetricsApiOptions& options,
                const std::map<std::string, std::string, std::less<>>& environment);

}  // namespace gpulet::cli

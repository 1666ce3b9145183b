// `gpulet metrics-api`: the custom metrics API of a cluster (src/metrics_api), for HorizontalPodAutoscalers.
#pragma once

#include <map>
#include <string>

#include "base/result.h"
#include "k8s/client_config.h"
#include "metrics_api/server.h"

namespace gpulet::cli {

// Flags and their environment variables; empty is the default.
struct MetricsApiOptions {
  std::string listen{}, tls_cert_file{}, tls_private_key_file{};
  std::string kubeconfig{};  // empty: the service account of the Pod
  std::string agent_namespace{}, agent_selector{};
  std::string agent_scheme = "http";  // or https
  std::uint16_t agent_port = 9400;
  std::string agent_ca_file{}, agent_server_name{}, agent_token_file{}, agent_basic_auth_file{};
  std::string agent_timeout{}, interval{}, oldest{};  // Go's durations
};

// The agents' namespace defaults to that of `access`. Errors: kInvalidArgument about the flag.
Result<metrics_api::ServerOptions> parse_metrics_api_options(const MetricsApiOptions& options,
                                                             const k8s::ClientConfig& access);

// Serves until SIGTERM or SIGINT. Exit code: 0; 1 after one line on standard error.
int run_metrics_api(const MetricsApiOptions& options,
                    const std::map<std::string, std::string, std::less<>>& environment);

}  // namespace gpulet::cli

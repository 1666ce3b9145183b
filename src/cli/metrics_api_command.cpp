#include "cli/metrics_api_command.h"

#include <signal.h>

#include <iostream>

#include "base/log.h"
#include "base/loop.h"
#include "base/signals.h"
#include "cli/version_command.h"
#include "config/values.h"

namespace gpulet::cli {
namespace {

constexpr Duration kLongestTime = std::chrono::hours(1);
// The rest of what the API server waits for is left for itself.
constexpr Duration kLongestTimeout = std::chrono::seconds(10);

Status set(Duration& value, const std::string& text, const char* flag, Duration longest) {
  if (text.empty()) return {};
  const auto read = config::parse_duration(text);
  if (!read || *read < std::chrono::milliseconds(100) || *read > longest) {
    return fail(
        Code::kInvalidArgument,
        "\"" + text + "\" will not do; it must be a time from 100ms to " + config::format_duration(longest),
        flag);
  }
  value = *read;
  return {};
}

Result<cluster::Access> access_for(const MetricsApiOptions& options,
                                   std::map<std::string, std::string, std::less<>> environment) {
  if (!options.kubeconfig.empty()) return cluster::access_from_kubeconfig(options.kubeconfig);
  GPULET_TRY_ASSIGN(auto access, cluster::find_access(environment, cluster::OfNode::kNo));
  if (access) return std::move(*access);
  return fail(Code::kFailedPrecondition, "not set, so this is no Pod: name a file with --kubeconfig",
              "KUBERNETES_SERVICE_HOST");
}

Status run(const MetricsApiOptions& options,
           const std::map<std::string, std::string, std::less<>>& environment) {
  GPULET_TRY_ASSIGN(const auto access, access_for(options, environment));
  GPULET_TRY_ASSIGN(const auto server_options, metrics_api_options(options, access));
  ::signal(SIGPIPE, SIG_IGN);  // TLS writes to sockets that their clients have left
  EpollLoop loop;
  GPULET_TRY_ASSIGN(const auto signals, SignalWatch::start(loop, {SIGTERM, SIGINT}, [&loop](int signal) {
                      log::info("told to end", {{"signal", signal}});
                      loop.stop();
                    }));
  GPULET_TRY_ASSIGN(const auto server, metrics_api::Server::start(loop, access, server_options));
  log::info("metrics of Pods are served", {{"port", server->port()},
                                           {"agents", server_options.agents.label_selector},
                                           {"namespace", server_options.agents.name_space},
                                           {"version", version()}});
  loop.run();
  return {};
}

}  // namespace

Result<metrics_api::ServerOptions> metrics_api_options(const MetricsApiOptions& options,
                                                       const cluster::Access& access) {
  metrics_api::ServerOptions made;
  if (!options.listen.empty()) made.listen = options.listen;
  made.certificate_file = options.tls_cert_file;
  made.key_file = options.tls_private_key_file;
  made.agents.name_space = options.agent_namespace.empty() ? access.pod_namespace : options.agent_namespace;
  if (!options.agent_selector.empty()) made.agents.label_selector = options.agent_selector;
  auto& scrape = made.scrape;
  if (options.agent_scheme != "http" && options.agent_scheme != "https") {
    return fail(Code::kInvalidArgument,
                "\"" + options.agent_scheme + "\" will not do; it must be http or https", "--agent-scheme");
  }
  scrape.https = options.agent_scheme == "https";
  scrape.port = options.agent_port;
  scrape.ca_file = options.agent_ca_file;
  scrape.server_name = options.agent_server_name;
  scrape.token_file = options.agent_token_file;
  scrape.basic_auth_file = options.agent_basic_auth_file;
  if (!scrape.https && !(scrape.ca_file.empty() && scrape.server_name.empty())) {
    return fail(Code::kInvalidArgument, "is of https only: --agent-scheme https",
                scrape.ca_file.empty() ? "--agent-server-name" : "--agent-ca-file");
  }
  if (!scrape.token_file.empty() && !scrape.basic_auth_file.empty()) {
    return fail(Code::kInvalidArgument, "an agent takes one of the two",
                "--agent-token-file, --agent-basic-auth-file");
  }
  GPULET_TRY(set(scrape.limit, options.agent_timeout, "--agent-timeout", kLongestTimeout));
  GPULET_TRY(set(made.pages.fresh, options.interval, "--interval", kLongestTime));
  GPULET_TRY(set(made.pages.oldest, options.oldest, "--oldest", kLongestTime));
  if (made.pages.oldest < made.pages.fresh) {
    return fail(Code::kInvalidArgument, "is below --interval: between two looks there would be no value",
                "--oldest");
  }
  // One that is asked last of many is waited for as well.
  made.pages.patience = 2 * scrape.limit;
  return made;
}

int metrics_api(const MetricsApiOptions& options,
                const std::map<std::string, std::string, std::less<>>& environment) {
  const Status status = run(options, environment);
  if (!status) std::cerr << "gpulet: " << status.error().text() << std::endl;
  return status ? 0 : 1;
}

}  // namespace gpulet::cli

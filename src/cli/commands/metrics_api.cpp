#include "cli/commands/commands.h"

#include <signal.h>

#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>

#include "base/dns_name.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/process.h"
#include "base/text.h"
#include "cli/main/command_line.h"
#include "config/load.h"
#include "config/values.h"
#include "k8s/client_config.h"
#include "metrics_api/server.h"

namespace gpulet::cli {
namespace {

constexpr Duration kMaxInterval = std::chrono::hours(1);
// Leaves time for the API server's own work within its timeout.
constexpr Duration kMaxTimeout = std::chrono::seconds(10);

Status parse_time_flag(Duration& value, const std::string& text, const char* flag, Duration longest) {
  if (text.empty()) return {};
  const auto read = parse_duration(text);
  if (!read || *read < std::chrono::milliseconds(100) || *read > longest) {
    return fail(Code::kInvalidArgument,
                "invalid duration \"" + text + "\"; expected 100ms to " + format_duration(longest), flag);
  }
  value = *read;
  return {};
}

Result<k8s::ClientConfig> metrics_api_access(const MetricsApiOptions& options,
                                             std::map<std::string, std::string, std::less<>> environment) {
  if (!options.kubeconfig.empty()) return k8s::load_kubeconfig(options.kubeconfig);
  GPULET_TRY_ASSIGN(auto access, k8s::find_client_config(environment, k8s::NodeNamePolicy::kOptional));
  if (access) return std::move(*access);
  return fail(Code::kFailedPrecondition, "not set, so this is not a Pod; use --kubeconfig",
              "KUBERNETES_SERVICE_HOST");
}

Status serve_metrics_api(const MetricsApiOptions& options,
                         const std::map<std::string, std::string, std::less<>>& environment) {
  GPULET_TRY_ASSIGN(const auto access, metrics_api_access(options, environment));
  GPULET_TRY_ASSIGN(const auto server_options, parse_metrics_api_options(options, access));
  ::signal(SIGPIPE, SIG_IGN);  // TLS writes to sockets that clients may have closed
  EpollLoop loop;
  GPULET_TRY_ASSIGN(const auto signals,
                    SignalWatcher::watch_signals(loop, {SIGTERM, SIGINT}, [&loop](int signal) {
                      log::info("stopping", {{"signal", signal}});
                      loop.stop_loop();
                    }));
  GPULET_TRY_ASSIGN(const auto server, metrics_api::Server::start_server(loop, access, server_options));
  log::info("serving Pod metrics", {{"port", server->bound_port()},
                                    {"agents", server_options.agents.label_selector},
                                    {"namespace", server_options.agents.name_space},
                                    {"version", version()}});
  loop.run_loop();
  return {};
}

}  // namespace

Result<metrics_api::ServerOptions> parse_metrics_api_options(const MetricsApiOptions& options,
                                                             const k8s::ClientConfig& access) {
  metrics_api::ServerOptions made;
  if (!options.listen.empty()) made.listen = options.listen;
  made.certificate_file = options.tls_cert_file;
  made.key_file = options.tls_private_key_file;
  made.agents.name_space = options.agent_namespace.empty() ? access.pod_namespace : options.agent_namespace;
  if (!options.agent_selector.empty()) made.agents.label_selector = options.agent_selector;
  auto& scrape = made.scrape;
  if (options.agent_scheme != "http" && options.agent_scheme != "https") {
    return fail(Code::kInvalidArgument,
                "invalid scheme \"" + options.agent_scheme + "\"; expected http or https", "--agent-scheme");
  }
  scrape.https = options.agent_scheme == "https";
  scrape.port = options.agent_port;
  scrape.ca_file = options.agent_ca_file;
  scrape.server_name = options.agent_server_name;
  scrape.token_file = options.agent_token_file;
  scrape.basic_auth_file = options.agent_basic_auth_file;
  if (!scrape.https && !(scrape.ca_file.empty() && scrape.server_name.empty())) {
    return fail(Code::kInvalidArgument, "requires --agent-scheme https",
                scrape.ca_file.empty() ? "--agent-server-name" : "--agent-ca-file");
  }
  if (!scrape.token_file.empty() && !scrape.basic_auth_file.empty()) {
    return fail(Code::kInvalidArgument, "use only one of the two",
                "--agent-token-file, --agent-basic-auth-file");
  }
  GPULET_TRY(parse_time_flag(scrape.timeout, options.agent_timeout, "--agent-timeout", kMaxTimeout));
  GPULET_TRY(parse_time_flag(made.pages.refresh_after, options.interval, "--interval", kMaxInterval));
  GPULET_TRY(parse_time_flag(made.pages.max_age, options.oldest, "--oldest", kMaxInterval));
  if (made.pages.max_age < made.pages.refresh_after) {
    return fail(Code::kInvalidArgument, "is below --interval: between two looks there would be no value",
                "--oldest");
  }
  if (!options.record.empty() && !is_dns_subdomain(options.record)) {
    return fail(Code::kInvalidArgument, "expected the name of a ConfigMap", "--record " + options.record);
  }
  made.record = options.record;
  made.forecast_time_scale = options.forecast_time_scale;
  // Also covers the last of many agents, whose request starts late.
  made.pages.timeout = 2 * scrape.timeout;
  return made;
}

int run_metrics_api(const MetricsApiOptions& options,
                    const std::map<std::string, std::string, std::less<>>& environment) {
  const Status status = serve_metrics_api(options, environment);
  if (!status) std::cerr << "gpulet: " << status.error().full_message() << std::endl;
  return status ? 0 : 1;
}

void add_metrics_api(CLI::App& app, Run& run) {
  auto& command = add_command(
      app, {.name = "metrics-api",
            .summary = "Serve GPU use per Pod as the custom metrics API, for HorizontalPodAutoscalers",
            .details =
                "Runs once per cluster and collects from the agents. Each flag has an environment variable:\n"
                "GPULET_METRICS_API_LISTEN for --listen. See docs/autoscaling.md.",
            .examples = "  gpulet metrics-api --listen :8443",
            .group = kServiceGroup});
  const auto options = std::make_shared<MetricsApiOptions>();
  auto& o = *options;
  const auto add = [&command](const std::string& name, auto& value, const char* help) {
    std::string variable = "GPULET_METRICS_API_" + name;
    for (char& c : variable)
      c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return command.add_option("--" + name, value, help)->envname(variable);
  };
  constexpr const char* kAgentsGroup = "How to reach the agents";
  add("listen", o.listen, "address to serve on, HOST:PORT (default :8443)");
  add("tls-cert-file", o.tls_cert_file,
      "serving certificate (PEM), reloaded on change (default: self-signed)");
  add("tls-private-key-file", o.tls_private_key_file, "private key of the certificate (PEM)");
  command.add_option("--kubeconfig", o.kubeconfig, "kubeconfig file (default: the Pod's service account)")
      ->envname("KUBECONFIG");
  add("agent-namespace", o.agent_namespace, "namespace of the agents' Pods (default: this Pod's)")
      ->group(kAgentsGroup);
  add("agent-selector", o.agent_selector,
      "label selector of the agents' Pods (default app.kubernetes.io/name=gpulet)")
      ->group(kAgentsGroup);
  add("agent-scheme", o.agent_scheme, "http or https (default http)")
      ->group(kAgentsGroup)
      ->check(CLI::IsMember({"http", "https"}));
  add("agent-port", o.agent_port, "port of the agents (default 9400)")
      ->group(kAgentsGroup)
      ->check(CLI::Range(1, 65'535));
  add("agent-ca-file", o.agent_ca_file,
      "CA bundle (PEM) that verifies the agents, with https (default: system CAs)")
      ->group(kAgentsGroup);
  add("agent-server-name", o.agent_server_name,
      "server name expected in the agents' certificates (default: agent address)")
      ->group(kAgentsGroup);
  add("agent-token-file", o.agent_token_file, "file with a bearer token for the agents")->group(kAgentsGroup);
  add("agent-basic-auth-file", o.agent_basic_auth_file, "file with NAME:PASSWORD for the agents, on one line")
      ->group(kAgentsGroup);
  add("agent-timeout", o.agent_timeout, "time limit of a request to an agent (default 2s)")
      ->group(kAgentsGroup);
  add("interval", o.interval, "minimum interval between requests to an agent (default 10s)");
  add("oldest", o.oldest, "maximum age of a sample (default 1m)");
  add("record", o.record,
      "ConfigMap in this Pod's namespace that keeps what is forecast over restarts (default: none)");
  // Shows the forecast of days within minutes (tests/cluster, make daily-peak).
  add("forecast-time-scale", o.forecast_time_scale, "for tests: run the forecast's clock faster")
      ->check(CLI::Range(1.0, 10'000.0))
      ->group("");
  command.callback([options, &run] {
    run = [options] { return run_metrics_api(*options, config::process_environment()); };
  });
}

}  // namespace gpulet::cli

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/metrics_api_command.h"
#include "cli/registrations.h"
#include "config/load.h"

namespace gpulet::cli {

void add_metrics_api(CLI::App& app, Run& run) {
  auto* command =
      app.add_subcommand("metrics-api", "the custom metrics API: GPU use of Pods, for autoscalers");
  const auto options = std::make_shared<MetricsApiOptions>();
  auto& o = *options;
  // Each has a variable too.
  const auto add = [command](const std::string& name, auto& value, const char* help) {
    std::string variable = "GPULET_METRICS_API_" + name;
    for (char& c : variable)
      c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return command->add_option("--" + name, value, help)->envname(variable);
  };
  add("listen", o.listen, "HOST:PORT to serve on (:8443)");
  add("tls-cert-file", o.tls_cert_file, "its certificate, PEM, followed as it changes (a self-signed one)");
  add("tls-private-key-file", o.tls_private_key_file, "the certificate's key");
  command->add_option("--kubeconfig", o.kubeconfig, "outside a cluster: how to reach it")
      ->envname("KUBECONFIG");
  add("agent-namespace", o.agent_namespace, "where the agents' Pods are (the namespace of this one)");
  add("agent-selector", o.agent_selector, "their labels (app.kubernetes.io/name=gpulet)");
  add("agent-scheme", o.agent_scheme, "http or https (http)")->check(CLI::IsMember({"http", "https"}));
  add("agent-port", o.agent_port, "their port (9400)")->check(CLI::Range(1, 65'535));
  add("agent-ca-file", o.agent_ca_file, "with https: who signed their certificates (whom the system trusts)");
  add("agent-server-name", o.agent_server_name, "with https: whom those are for (the agent's address)");
  add("agent-token-file", o.agent_token_file, "a bearer token for them");
  add("agent-basic-auth-file", o.agent_basic_auth_file, "name:password for them, one line");
  add("agent-timeout", o.agent_timeout, "for one agent's answer (2s)");
  add("interval", o.interval, "an agent is not asked again before (10s)");
  add("oldest", o.oldest, "what was measured longer ago is not told (1m)");
  command->callback(
      [options, &run] { run = [options] { return metrics_api(*options, config::process_environment()); }; });
}

}  // namespace gpulet::cli

// `gpulet scheduler`, kube-scheduler's extender, and `gpulet explain`, a client of it.

#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>

#include <CLI/CLI.hpp>

#include "base/log.h"
#include "cli/main/command_line.h"
#include "extender/explain_client.h"
#include "extender/server.h"
#include "k8s/client_config.h"

namespace gpulet::cli {
namespace {

using Environment = std::map<std::string, std::string, std::less<>>;

Environment cluster_environment() {
  Environment environment;
  for (const char* name :
       {"KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBECONFIG", "HOSTNAME", "HOME"}) {
    if (const char* value = std::getenv(name)) environment[name] = value;
  }
  return environment;
}

struct ExplainOptions {
  extender::ExplainQuery question;
  std::string kubeconfig;  // empty: KUBECONFIG, ~/.kube/config, or the Pod's service account
  std::string output = "text";
};

int run_scheduler(const extender::ExtenderOptions& options, const std::string& log_format) {
  log::configure_logging(log::Level::kInfo, log_format == "json" ? log::Format::kJson : log::Format::kText);
  const auto status = extender::run_extender(options, cluster_environment());
  return status ? 0 : print_error("gpulet scheduler", status.error().full_message());
}

int run_explain(const ExplainOptions& options) {
  const bool needs_access = options.question.url.empty();
  const auto access = needs_access ? find_kubectl_access(options.kubeconfig)
                                   : Result<k8s::ClientConfig>(k8s::ClientConfig{.host = "-"});
  auto question = options.question;
  question.json = options.output == "json";
  const auto answer = access ? extender::fetch_explanation(question, *access) : fail(access.error());
  if (!answer) return print_error("gpulet explain", answer.error().full_message());
  return print_output({.exit_code = 0, .out = answer->text, .err = {}});
}

}  // namespace

void add_scheduler(CLI::App& app, Run& run) {
  auto& command = add_command(
      app, {.name = "scheduler",
            .summary = "Serve as kube-scheduler's extender for GPUs",
            .details = "Scores nodes by links, faults, shares and load. See docs/scheduling.md."});
  const auto options = std::make_shared<extender::ExtenderOptions>();
  const auto log_format = std::make_shared<std::string>("text");
  command.add_option("--listen", options->listen, "address to serve on, HOST:PORT (default 0.0.0.0:9410)");
  command.add_option("--policy", options->policy,
                     "policy of Pods without one of their own or of their namespace, see docs/scheduling.md "
                     "(default default)");
  auto* certificate = command.add_option("--tls-cert-file", options->certificate_file,
                                         "serving certificate (PEM); without it plain HTTP is served");
  auto* key = command.add_option("--tls-key-file", options->key_file, "private key of the certificate (PEM)");
  certificate->needs(key);
  key->needs(certificate);
  command
      .add_option("--client-ca-file", options->client_authorities_file,
                  "CA bundle (PEM); clients must present a certificate signed by it")
      ->needs(certificate);
  command.add_option("--nodes-to-score", options->nodes_to_score,
                     "score at most N nodes (default 100, 0 = all)");
  command.add_option("--shutdown-seconds", options->shutdown_seconds,
                     "seconds to keep serving as not-ready after SIGTERM (default 5)");
  command.add_option("--log-format", *log_format, "text or json (default text)")
      ->check(CLI::IsMember({"text", "json"}));
  command.callback([options, log_format, &run] {
    run = [options, log_format] { return run_scheduler(*options, *log_format); };
  });
}

void add_explain(CLI::App& app, Run& run) {
  auto& command = add_command(app, {.name = "explain",
                                    .summary = "Explain why a Pod is on its node, or why it is not scheduled",
                                    .details = "Queries the scheduler extender through the API server; with "
                                               "--service '' the answer is computed here.",
                                    .examples = "  gpulet explain train-0 -n team-a\n"
                                                "  gpulet explain train-0 --service ''"});
  const auto options = std::make_shared<ExplainOptions>();
  command.add_option("POD", options->question.pod, "name of the Pod")->required();
  command.add_option("-n,--namespace", options->question.name_space,
                     "namespace of the Pod (default default)");
  add_kubeconfig_option(command, options->kubeconfig);
  command.add_option("--service", options->question.service,
                     "Service of the extender, by TLS if it serves that; empty: compute here "
                     "(default gpulet/gpulet-scheduler:9410)");
  auto* url = command.add_option(
      "--url", options->question.url,
      "address of the extender instead of its Service, http://HOST:PORT or https://HOST:PORT");
  command
      .add_option("--ca-file", options->question.ca_file,
                  "CA bundle (PEM) that verifies the extender (default: system CAs)")
      ->needs(url);
  auto* certificate = command.add_option("--cert-file", options->question.certificate_file,
                                         "client certificate (PEM), with https");
  auto* key = command.add_option("--key-file", options->question.key_file,
                                 "private key of the client certificate (PEM)");
  certificate->needs(url)->needs(key);
  key->needs(certificate);
  command.add_option("--policy", options->question.policy, "policy to compute with (default default)");
  add_output_option(command, options->output, {"text", "json"});
  command.callback([options, &run] { run = [options] { return run_explain(*options); }; });
}

}  // namespace gpulet::cli

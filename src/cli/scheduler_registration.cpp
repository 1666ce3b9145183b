#include <CLI/CLI.hpp>
#include <memory>

#include "cli/registrations.h"
#include "cli/scheduler_command.h"
#include "cli/simulate_command.h"

namespace gpulet::cli {
namespace {

void add_simulate(CLI::App& scheduler, Run& run) {
  auto* command =
      scheduler.add_subcommand("simulate", "what policies make of a cluster's tasks: allocation, plot");
  const auto options = std::make_shared<SimulateOptions>();
  command->add_option("--nodes", options->nodes, "the cluster: CSV with cpu_milli, memory_mib, gpu, model");
  command->add_option(
      "--pods", options->pods,
      "its tasks: CSV with cpu_milli, memory_mib, num_gpu, gpu_milli and, if need be, gpu_spec");
  command
      ->add_option("--policy", options->policies,
                   "names between commas, or all (default; with --load spread,load,default)")
      ->delimiter(',');
  auto* seed = command->add_option("--seed", options->seed, "of one run (1)");
  command->add_option("--seeds", options->seeds, "as many runs of each policy, from seed 1 on (1)")
      ->excludes(seed);
  command->add_option("--target", options->target, "GPUs asked for when it ends, of the cluster's (1.3)");
  command->add_option("--plot", options->plot, "an SVG file to write: allocation against demand");
  auto* load = command->add_flag("--load", options->load,
                                 "in place of a trace: weeks of services with daily load on shared GPUs");
  command->add_option("--machines", options->machines, "of 8 GPUs each (64)")->needs(load);
  command->add_option("--days", options->days, "how long (28)")->needs(load);
  command
      ->add_flag("--known-services", options->known_services,
                 "a service that ran before is expected to do what it did")
      ->needs(load);
  command->add_option("-o,--output", options->output, "table or json")
      ->check(CLI::IsMember({"table", "json"}));
  command->callback([options, &run] { run = [options] { return simulate(*options); }; });
}

// What `gpulet scheduler` is without a subcommand.
void add_extender(CLI::App& command, Run& run) {
  const auto options = std::make_shared<extender::Options>();
  const auto log_format = std::make_shared<std::string>("text");
  command.add_option("--listen", options->listen, "host:port of the extender (0.0.0.0:9410)");
  command.add_option("--policy", options->policy,
                     "of Pods that name none, nor their namespace: docs/scheduling.md has them (default)");
  auto* certificate =
      command.add_option("--tls-cert-file", options->certificate_file, "PEM; without it plain HTTP");
  auto* key = command.add_option("--tls-key-file", options->key_file, "PEM, of that certificate");
  certificate->needs(key);
  key->needs(certificate);
  command
      .add_option("--client-ca-file", options->client_authorities_file,
                  "PEM; clients must show a certificate that it signed")
      ->needs(certificate);
  command.add_option("--nodes-to-score", options->nodes_to_score,
                     "of more nodes that pass, so many of the best (100); 0: all");
  command.add_option("--leave-seconds", options->leave_seconds,
                     "told to end, serve on for so long, saying that it is not ready (5)");
  command.add_option("--log-format", *log_format, "text or json")->check(CLI::IsMember({"text", "json"}));
  command.callback([&command, options, log_format, &run] {
    if (command.get_subcommands().empty())
      run = [options, log_format] { return scheduler(*options, *log_format); };
  });
}

void add_explain(CLI::App& app, Run& run) {
  auto* command = app.add_subcommand("explain", "why a Pod is where it is, and what would make it fit");
  const auto options = std::make_shared<ExplainOptions>();
  command->add_option("POD", options->question.pod, "its name")->required();
  command->add_option("-n,--namespace", options->question.name_space, "of the Pod (default)");
  command->add_option("--kubeconfig", options->kubeconfig,
                      "where the API server is (KUBECONFIG, ~/.kube/config)");
  command->add_option("--service", options->question.service,
                      "the extender's Service (gpulet/gpulet-scheduler:9410), by TLS where it speaks it; "
                      "empty: work it out here");
  auto* url =
      command->add_option("--url", options->question.url,
                          "http://host:port or https://host:port of an extender, in place of its Service");
  command
      ->add_option("--ca-file", options->question.ca_file,
                   "PEM; with https: who signed its certificate (whom the system trusts)")
      ->needs(url);
  auto* certificate = command->add_option("--cert-file", options->question.certificate_file,
                                          "PEM; with https: ours, if it asks for one");
  auto* key = command->add_option("--key-file", options->question.key_file, "PEM; of that certificate");
  certificate->needs(url)->needs(key);
  key->needs(certificate);
  command->add_option("--policy", options->question.policy, "where it is worked out here (default)");
  command->add_option("-o,--output", options->output, "text or json")->check(CLI::IsMember({"text", "json"}));
  command->callback([options, &run] { run = [options] { return explain(*options); }; });
}

}  // namespace

void add_scheduler(CLI::App& app, Run& run) {
  auto* command = app.add_subcommand("scheduler", "kube-scheduler's extender; and a simulator of policies");
  command->require_subcommand(0, 1);
  add_extender(*command, run);
  add_simulate(*command, run);
  add_explain(app, run);
}

}  // namespace gpulet::cli

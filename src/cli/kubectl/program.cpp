// The command line of kubectl-gpulet. Its commands and options are kubectl's where kubectl has them.
#include <memory>

#include <CLI/CLI.hpp>

#include "arguments/arguments.h"
#include "arguments/completion.h"
#include "base/log.h"
#include "cli/commands/commands.h"
#include "cli/kubectl/kubectl.h"

namespace gpulet::cli::kubectl {
namespace {

constexpr const char* kProgram = "kubectl gpulet";
constexpr const char* kGpuGroup = "Which GPUs";

void add_cluster_options(CLI::App& command, std::string& kubeconfig, std::string& context) {
  add_kubeconfig_option(command, kubeconfig);
  command.add_option("--context", context, "context of the kubeconfig (default: its current one)")
      ->group(kClusterGroup);
}

// Finds the cluster, then runs `with`.
int run_with_access(const char* command, const ClusterOptions& options,
                    const std::function<int(const k8s::ClientConfig&)>& with) {
  log::configure_logging(log::Level::kError, log::Format::kText);
  const auto access = find_kubectl_access(options.kubeconfig, options.context);
  if (!access) return print_error(std::string(kProgram) + " " + command, access.error().full_message());
  return with(*access);
}

void add_gpu_selection(CLI::App& command, ClusterGpuOptions& options) {
  command.add_option("NODE", options.nodes, "node to show; repeat for more (default: all nodes with GPUs)");
  // Behind those of the argument, which replaces what it is bound to.
  command
      .add_option_function<std::vector<std::string>>(
          "--node",
          [&options](const std::vector<std::string>& nodes) {
            options.nodes.insert(options.nodes.end(), nodes.begin(), nodes.end());
          },
          "the same as an option; repeat for more")
      ->group(kGpuGroup);
  command
      .add_option("-l,--selector", options.selector,
                  "only on nodes with these labels, such as pool=train,zone!=b")
      ->group(kGpuGroup);
  command
      .add_option("-n,--namespace", options.name_space,
                  "only GPUs that Pods of this namespace hold (default: all GPUs)")
      ->group(kGpuGroup);
  command
      .add_flag("-A,--all-namespaces", options.all_namespaces,
                "GPUs whoever holds them, which is the default; overrides -n")
      ->group(kGpuGroup);
}

void add_gpu_command(CLI::App& app, Run& run, const CommandHelp& help, GpuView view) {
  auto& command = add_command(app, help);
  const auto options = std::make_shared<ClusterGpuOptions>();
  options->view = view;
  add_gpu_selection(command, *options);
  if (view == GpuView::kTop)
    command
        .add_option_function<std::string>(
            "--sort-by",
            [options](const std::string& column) {
              options->order = column == "busy" ? LoadOrder::kBusy : LoadOrder::kMemory;
            },
            "busy or memory, highest first (default: by node)")
        ->check(CLI::IsMember({"busy", "memory"}))
        ->group(kOutputGroup);
  command.add_flag("-w,--watch", options->watch, "then print each change, until interrupted")
      ->group(kOutputGroup);
  add_output_options(command, options->output, {.has_names = true});
  add_cluster_options(command, options->cluster.kubeconfig, options->cluster.context);
  command.callback([options, name = help.name, &run] {
    run = [options, name] {
      return run_with_access(name, options->cluster, [&](const k8s::ClientConfig& access) {
        return run_cluster_gpus(*options, access);
      });
    };
  });
}

void add_gpu_commands(CLI::App& app, Run& run) {
  add_gpu_command(
      app, run,
      {.name = "list",
       .summary = "List the GPUs of the cluster, and the Pods that hold them",
       .details = "One row for each GPU of each node that publishes a GpuNode. USED is the number "
                  "of shares that Pods hold, of those that the GPU is offered as.",
       .examples = "  kubectl gpulet list\n"
                   "  kubectl gpulet list -n team-a -o wide\n"
                   "  kubectl gpulet list -l pool=train --watch"},
      GpuView::kList);
  add_gpu_command(app, run,
                  {.name = "health",
                   .summary = "Show the GPUs that are out of service or flagged, and why",
                   .details = "Exits with 3 if a GPU is out of service.",
                   .examples = "  kubectl gpulet health\n"
                               "  kubectl gpulet health n1 -o wide\n"
                               "  kubectl describe $(kubectl gpulet health -o name)"},
                  GpuView::kHealth);
  add_gpu_command(app, run,
                  {.name = "top",
                   .summary = "Show the load of the GPUs of the cluster",
                   .details = "The load that agents publish to the scheduler, at most a minute old. "
                              "`gpulet top` on a node has it by the second.",
                   .examples = "  kubectl gpulet top\n"
                               "  kubectl gpulet top --sort-by busy --no-headers"},
                  GpuView::kTop);
}

void add_explain_command(CLI::App& app, Run& run) {
  auto& command = add_command(app, {.name = "explain",
                                    .summary = "Explain why a Pod is on its node, or why it is not scheduled",
                                    .details = "Queries the scheduler extender through the API server, and "
                                               "computes the answer here if none responds. claim/NAME "
                                               "explains a ResourceClaim.",
                                    .examples = "  kubectl gpulet explain train-0 -n team-a\n"
                                                "  kubectl gpulet explain pod/train-0 -o json"});
  const auto options = std::make_shared<ExplainOptions>();
  options->program = std::string(kProgram) + " explain";
  options->question.name_space.clear();
  command.add_option("POD", options->question.pod, "name of the Pod, also as pod/NAME, or claim/NAME")
      ->required();
  command.add_option("-n,--namespace", options->question.name_space,
                     "namespace of the Pod (default: that of the context)");
  command
      .add_option("--service", options->question.service,
                  "Service of the extender; empty: compute here (default gpulet/gpulet-scheduler:9410)")
      ->group(kClusterGroup);
  command.add_option("--policy", options->question.policy, "policy to compute with (default default)");
  add_output_options(command, options->output);
  add_cluster_options(command, options->kubeconfig, options->context);
  command.callback([options, &run] {
    run = [options] {
      for (const std::string_view kind : {"pod/", "pods/"}) {
        if (options->question.pod.starts_with(kind)) options->question.pod.erase(0, kind.size());
      }
      return run_explain(*options);
    };
  });
}

void add_doctor_command(CLI::App& app, Run& run) {
  auto& command = add_command(
      app,
      {.name = "doctor",
       .summary = "Diagnose what keeps Pods from the cluster's GPUs, and suggest fixes",
       .details = "Checks the agents, their GpuNodes and versions, the scheduler extender and the health "
                  "of the GPUs, by the API server. Exits with 1 if a check fails. `gpulet doctor` checks "
                  "one node, from its PCI slots up.",
       .examples = "  kubectl gpulet doctor\n"
                   "  kubectl gpulet doctor -o json --context prod"});
  const auto options = std::make_shared<ClusterDoctorOptions>();
  command
      .add_option("--agent-selector", options->agent_selector,
                  "labels of the agents' Pods (default app.kubernetes.io/name=gpulet)")
      ->group(kClusterGroup);
  command
      .add_option("--service", options->service,
                  "Service of the scheduler extender; empty: none (default gpulet/gpulet-scheduler:9410)")
      ->group(kClusterGroup);
  add_output_options(command, options->output);
  add_cluster_options(command, options->cluster.kubeconfig, options->cluster.context);
  command.callback([options, &run] {
    run = [options] {
      return run_with_access("doctor", options->cluster, [&](const k8s::ClientConfig& access) {
        return print_output(cluster_doctor_output(*options, access));
      });
    };
  });
}

std::unique_ptr<CLI::App> make_plugin(Run& run) {
  auto app = std::make_unique<CLI::App>("Inspect the NVIDIA GPUs of a Kubernetes cluster", kProgram);
  set_help(*app, "Reads what the gpulet agents of the nodes publish, through the API server.",
           "  kubectl gpulet list\n  kubectl gpulet health\n  kubectl gpulet explain POD");
  app->require_subcommand(1);
  app->set_version_flag("--version", version(), "print the version");
  add_gpu_commands(*app, run);
  add_explain_command(*app, run);
  add_doctor_command(*app, run);
  return app;
}

}  // namespace

arguments::CommandDoc describe_plugin() {
  Run run;
  return arguments::describe_command(*make_plugin(run));
}

int plugin_main(int argc, char** argv) {
  Run run;
  {
    const auto app = make_plugin(run);
    if (argc > 1 && argv[1][0] != '-') {
      if (const auto error = arguments::find_unknown_command(*app, argv[1]))
        return print_error(kProgram, *error + " (see " + kProgram + " --help)", kWrongCommand);
    }
    if (const auto code = parse_arguments(*app, argc, argv, false)) return *code;
  }
  return run();
}

// kubectl runs it with the words behind `kubectl gpulet`, and reads lines and a directive of cobra's.
// Source: Kubernetes, "Extend kubectl with plugins", completion; cobra, ShellCompDirective.
int plugin_complete_main(int argc, char** argv) {
  constexpr const char *kNoFiles = ":4\n", *kFiles = ":0\n";
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (words.empty()) words.emplace_back();
  auto completion = arguments::complete_words(describe_plugin(), words);
  const bool has_files = completion.files != arguments::Completion::Files::kNone;
  completion.files = arguments::Completion::Files::kNone;
  return print_output({.exit_code = 0,
                       .out = arguments::completion_lines(completion) + (has_files ? kFiles : kNoFiles),
                       .err = {}});
}

}  // namespace gpulet::cli::kubectl

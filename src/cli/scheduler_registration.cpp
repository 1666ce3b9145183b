#include <CLI/CLI.hpp>
#include <memory>

#include "cli/registrations.h"
#include "cli/simulate_command.h"

namespace gpulet::cli {
namespace {

void add_simulate(CLI::App& scheduler, Run& run) {
  auto* command =
      scheduler.add_subcommand("simulate", "what policies make of a cluster's tasks: allocation, plot");
  const auto options = std::make_shared<SimulateOptions>();
  command->add_option("--nodes", options->nodes, "the cluster: CSV with cpu_milli, memory_mib, gpu, model")
      ->required();
  command
      ->add_option("--pods", options->pods,
                   "its tasks: CSV with cpu_milli, memory_mib, num_gpu, gpu_milli and, if need be, gpu_spec")
      ->required();
  command->add_option("--policy", options->policies, "names between commas, or all (default)")
      ->delimiter(',');
  auto* seed = command->add_option("--seed", options->seed, "of one run (1)");
  command->add_option("--seeds", options->seeds, "as many runs of each policy, from seed 1 on (1)")
      ->excludes(seed);
  command->add_option("--target", options->target, "GPUs asked for when it ends, of the cluster's (1.3)");
  command->add_option("--plot", options->plot, "an SVG file to write: allocation against demand");
  command->add_option("-o,--output", options->output, "table or json")
      ->check(CLI::IsMember({"table", "json"}));
  command->callback([options, &run] { run = [options] { return simulate(*options); }; });
}

}  // namespace

void add_scheduler(CLI::App& app, Run& run) {
  auto* command = app.add_subcommand("scheduler", "where Pods should go: policies, and a simulator of them");
  command->require_subcommand(1);
  add_simulate(*command, run);
}

}  // namespace gpulet::cli

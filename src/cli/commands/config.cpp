#include "cli/commands/commands.h"

#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>

#include "cli/main/command_line.h"
#include "config/load.h"

namespace gpulet::cli {
namespace {

// Prints errors and warnings. Returns whether the config can be used.
bool print_problems(const config::CheckResult& checked) {
  for (const auto& error : checked.errors) std::cerr << error.full_message() << "\n";
  for (const auto& warning : checked.loaded.warnings) std::cerr << "warning: " << warning << "\n";
  return checked.errors.empty();
}

}  // namespace

int run_config_check(const ConfigCheckOptions& options) {
  config::Sources sources;
  sources.drop_in = options.drop_in;
  // As by the flag, so that an unreadable file gives the same error.
  sources.flags["config-file"] = {options.file};
  // The agent's DaemonSet sets it, not the file.
  sources.environment["MPS_ROOT"] = options.mps_root;
  if (const auto read = config::read_config_file(sources); !read) {
    std::cerr << read.error().full_message() << "\n";
    return 1;
  }
  if (!print_problems(config::check_config(sources))) return 1;
  std::cout << options.file << ": ok\n";
  return 0;
}

int run_config_print(const ConfigPrintOptions& options) {
  if (options.output != "yaml" && options.output != "json") {
    return print_error("gpulet config print",
                       "unknown output format '" + options.output + "'; expected yaml or json",
                       kWrongCommand);
  }
  config::Sources sources = options.sources;
  if (const auto read = config::read_config_file(sources); !read) {
    std::cerr << read.error().full_message() << "\n";
    return 1;
  }
  const auto checked = config::check_config(sources);
  if (!print_problems(checked)) return 1;
  std::cout << (options.output == "json" ? config::print_json(checked.loaded)
                                         : config::print_yaml(checked.loaded));
  return 0;
}

void add_config(CLI::App& app, Run& run) {
  auto& command =
      add_command(app, {.name = "config", .summary = "Check a config file or print the effective settings"});
  command.require_subcommand(1);

  auto& check = add_command(
      command,
      {.name = "check",
       .summary = "Check a config file and report every mistake",
       .details = "Each mistake is one line of standard error: file:line:column: key: what is wrong.\n"
                  "Exits with 1 if the file cannot be used.",
       .examples = "  gpulet config check gpulet.yaml"});
  const auto checked = std::make_shared<ConfigCheckOptions>();
  check.add_option("FILE", checked->file, "config file")->required();
  check.add_flag("--drop-in", checked->drop_in, "read it as NVIDIA's plugin does: unknown keys are warnings");
  check
      .add_option("--mps-root", checked->mps_root,
                  "MPS root of the agent on the host (default /run/nvidia/mps, the chart's; empty: none)")
      ->envname("MPS_ROOT");
  check.callback([checked, &run] { run = [checked] { return run_config_check(*checked); }; });

  auto& print = add_command(command, {.name = "print",
                                      .summary = "Print the effective settings and the source of each",
                                      .details = "Takes the flags and environment of `gpulet agent`.",
                                      .examples = "  gpulet config print --config-file gpulet.yaml"});
  const auto printed = std::make_shared<ConfigPrintOptions>();
  add_output_option(print, printed->output, {"yaml", "json"});
  print.add_flag("--drop-in", printed->sources.drop_in, "read them as NVIDIA's plugin does");
  add_setting_options(print, printed->sources.flags);
  print.callback([printed, &run] {
    run = [printed] {
      printed->sources.environment = config::process_environment();
      return run_config_print(*printed);
    };
  });
}

}  // namespace gpulet::cli

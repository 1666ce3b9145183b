#include "cli/main/command_line.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "arguments/arguments.h"
#include "arguments/completion.h"
#include "base/text.h"
#include "cli/dropin/exporter.h"
#include "cli/dropin/mig_manager.h"
#include "cli/dropin/programs.h"
#include "cli/kubectl/kubectl.h"
#include "cli/main/process_exit.h"
#include "web/listener.h"

namespace gpulet::cli {
namespace {

std::string version_json() {
  return document_text({{"version", version()},
                        {"compiler", __VERSION__},
                        {"devicePlugin", "v1beta1"},
                        {"podResources", "v1"},
                        {"config", "v1"}});
}

std::string version_text() {
  return "gpulet " + version() + " (device plugin v1beta1, PodResources v1, config v1; compiler " +
         __VERSION__ + ")\n";
}

// nullptr where all are needed: none is named, or one that lists the others.
const Command* find_command(std::string_view name) {
  if (name == "help" || name == "completion") return nullptr;
  const auto* found = std::ranges::find(kCommands, name, &Command::name);
  return found == std::end(kCommands) ? nullptr : found;
}

int run_gpulet(int argc, char** argv) {
  Run run;
  {
    // An agent runs for months: the options, a quarter of a MiB, end with this block.
    CLI::App app{"Run and inspect the NVIDIA GPU agent of a Kubernetes node", "gpulet"};
    set_help(app, "", "  gpulet list\n  gpulet health\n  gpulet doctor");
    app.require_subcommand(1);
    app.set_version_flag("--version", version(), "print the version");
    const auto* named = find_command(argc > 1 ? argv[1] : "");
    for (const auto& command : kCommands) {
      if (named == nullptr || named == &command) command.add(app, run);
    }
#ifndef GPULET_DEMO
    if (argc > 1 && argv[1] == arguments::kCompleteCommand) return print_completion(app, argc, argv);
#endif
    if (argc > 1 && argv[1][0] != '-') {
      if (const auto error = arguments::find_unknown_command(app, argv[1]))
        return print_error("gpulet", *error + " (see gpulet --help)", kWrongCommand);
    }
    if (const auto code = parse_arguments(app, argc, argv, false)) return *code;
  }
  return run();
}

// The entry point of the operator's image: dcgm-exporter in its container, elsewhere gpulet, without
// arguments the agent.
int run_operand(int argc, char** argv) {
  if (is_exporter_container(config::process_environment())) return dcgm_exporter_main(argc, argv);
  if (argc > 1) return run_gpulet(argc, argv);
  std::string agent = "agent";
  char* arguments[] = {argv[0], agent.data(), nullptr};
  return run_gpulet(2, arguments);
}

// nvidia-mig-parted: `gpulet mig` has its commands and flags. Of its other ones, checkpoint, restore and
// generate-config, nothing is pretended.
int run_mig_parted(int argc, char** argv) {
  std::string program = "gpulet", command = "mig";
  std::vector<char*> arguments{program.data(), command.data()};
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "-d" || argument == "--debug") continue;  // of the program: more log lines
    for (const std::string_view none : {"checkpoint", "restore", "generate-config"}) {
      if (i == 1 && argument == none)
        return print_error("nvidia-mig-parted",
                           "gpulet has no command '" + std::string(none) +
                               "'; `export` writes the layout as a file that `apply` takes",
                           kWrongCommand);
    }
    for (const std::string_view none : {"-k", "--hooks-file"}) {
      if (argument == none || argument.starts_with(std::string(none) + "="))
        return print_error(
            "nvidia-mig-parted",
            "gpulet runs hooks in its agent only (gpulet.mig.hooksFile), not with " + std::string(none),
            kWrongCommand);
    }
    if (argument == "-s" || argument == "--skip-reset") continue;  // gpulet never resets a GPU
    arguments.push_back(argv[i]);
  }
  if (arguments.size() == 3 &&
      (std::string_view(arguments[2]) == "--version" || std::string_view(arguments[2]) == "-v"))
    arguments = {program.data(), arguments[2]};
  arguments.push_back(nullptr);
  return run_gpulet(static_cast<int>(arguments.size()) - 1, arguments.data());
}

std::string_view program_name(int argc, char** argv) {
  return text::base_name(argc > 0 ? argv[0] : "gpulet");
}

}  // namespace

void add_version(CLI::App& app, Run& run) {
  auto& command = add_command(app, {.name = "version",
                                    .summary = "Print version and build information",
                                    .examples = "  gpulet version\n  gpulet version -o json",
                                    .group = kOtherGroup});
  const auto output = std::make_shared<OutputOptions>();
  add_output_options(command, *output);
  command.add_flag_callback(
             "--json", [output] { output->format = "json"; }, "same as -o json")
      ->group(kOutputGroup);
  command.callback([output, &run] {
    run = [output] {
      return print_output(
          {.exit_code = 0,
           .out = render_output(*output, version_json, [](const TableStyle&) { return version_text(); }),
           .err = {}});
    };
  });
}

int run_program(int argc, char** argv) {
  const auto name = program_name(argc, argv);
  if (name == "nvidia-device-plugin") return device_plugin_main(argc, argv);
  if (name == "mps-control-daemon") return mps_control_main(argc, argv);
  if (name == "config-manager") return config_manager_main(argc, argv);
  if (name == "gpu-feature-discovery") return feature_discovery_main(argc, argv);
  if (name == "dcgm-exporter") return dcgm_exporter_main(argc, argv);
  if (name == "gpulet-operand") return run_operand(argc, argv);
  if (name == "nvidia-mig-manager") return mig_manager_main(argc, argv);
#ifndef GPULET_DEMO
  if (name == "kubectl-gpulet") return kubectl::plugin_main(argc, argv);
  if (name == "kubectl_complete-gpulet") return kubectl::plugin_complete_main(argc, argv);
#endif
  if (name == "nvidia-mig-parted" || name == "mig-parted") return run_mig_parted(argc, argv);
  return run_gpulet(argc, argv);
}

void main(int argc, char** argv) {
  const auto name = program_name(argc, argv);
  if (name == "gpulet-listener") web::run_listener_child();
  buffer_standard_output();
  leave_process(name, run_program(argc, argv));
}

}  // namespace gpulet::cli

#include "cli/commands/commands.h"

#include <memory>
#include <utility>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/main/command_line.h"
#include "config/load.h"

namespace gpulet::cli {
namespace {

using Json = nlohmann::ordered_json;

// Reads the file and checks the settings. An unreadable file is one error.
config::CheckResult check_sources(config::Sources sources) {
  if (const auto read = config::read_config_file(sources); !read) return {{}, {read.error()}};
  return config::check_config(sources);
}

std::string problem_lines(const config::CheckResult& checked) {
  std::string text;
  for (const auto& error : checked.errors) text += error.full_message() + "\n";
  for (const auto& warning : checked.loaded.warnings) text += "warning: " + warning + "\n";
  return text;
}

std::string check_json(const std::string& file, const config::CheckResult& checked) {
  Json json{{"file", file},
            {"valid", checked.errors.empty()},
            {"errors", Json::array()},
            {"warnings", checked.loaded.warnings}};
  for (const auto& error : checked.errors) json["errors"].push_back(error.full_message());
  return document_text(json);
}

}  // namespace

int run_config_check(const ConfigCheckOptions& options) {
  config::Sources sources;
  sources.drop_in = options.drop_in;
  // As by the flag, so that an unreadable file gives the same error.
  sources.flags["config-file"] = {options.file};
  // The agent's DaemonSet sets it, not the file.
  sources.environment["MPS_ROOT"] = options.mps_root;
  const auto checked = check_sources(std::move(sources));
  const bool valid = checked.errors.empty();
  return print_output(
      {.exit_code = valid ? 0 : kFailed,
       .out = render_output(
           options.output, [&] { return check_json(options.file, checked); },
           [&](const TableStyle&) { return valid ? options.file + ": ok\n" : std::string(); }),
       .err = options.output.is_document() ? std::string() : problem_lines(checked)});
}

int run_config_print(const ConfigPrintOptions& options) {
  const auto checked = check_sources(options.sources);
  if (!checked.errors.empty()) {
    return print_output(
        {.exit_code = error_exit_code(checked.errors.front()), .out = {}, .err = problem_lines(checked)});
  }
  return print_output({.exit_code = 0,
                       .out = render_output(
                           options.output, [&] { return config::print_json(checked.loaded); },
                           [&](const TableStyle&) { return config::print_yaml(checked.loaded); }),
                       .err = problem_lines(checked)});
}

void add_config(CLI::App& app, Run& run) {
  auto& command = add_command(
      app, {.name = "config",
            .summary = "Check a config file or print the effective settings",
            .examples = "  gpulet config check gpulet.yaml\n  gpulet config print --config-file gpulet.yaml",
            .group = kPlanGroup});
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
  add_output_options(check, checked->output);
  check.callback([checked, &run] { run = [checked] { return run_config_check(*checked); }; });

  auto& print = add_command(
      command,
      {.name = "print",
       .summary = "Print the effective settings and the source of each",
       .details =
           "Takes the flags and environment of `gpulet agent`. The table is a config file: each value\n"
           "has its source as a comment.",
       .examples = "  gpulet config print --config-file gpulet.yaml"});
  const auto printed = std::make_shared<ConfigPrintOptions>();
  add_output_options(print, printed->output);
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

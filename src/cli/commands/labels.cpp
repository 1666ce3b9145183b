#include "cli/commands/commands.h"

#include <iostream>
#include <memory>
#include <utility>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "agent/driver/nvml_driver.h"
#include "base/file.h"
#include "cli/main/command_line.h"
#include "partition/rules.h"

namespace gpulet::cli {
namespace {

using Json = nlohmann::ordered_json;
using labels::Label;
using labels::Labels;

std::string quoted_json(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string rule_lines(const Label& label) {
  std::string text = "    " + std::string(label.rule->rule) + "\n    from " + std::string(label.rule->source);
  if (!label.subject.empty()) text += "; " + label.subject;
  if (label.original) text += "; truncated or cleaned from " + quoted_json(*label.original);
  return text + "\n";
}

std::string labels_json(const Labels& labels, bool explain) {
  Json json = Json::object();
  for (const auto& [key, label] : labels) {
    if (!explain) {
      json[key] = label.value;
      continue;
    }
    Json& one = json[key];
    one = {{"value", label.value},
           {"rule", label.rule->rule},
           {"source", label.rule->source},
           {"about", label.subject},
           {"was", nullptr}};
    if (label.original) one["was"] = *label.original;
  }
  return document_text(Json{{"labels", std::move(json)}});
}

Result<std::string> make_labels_report(LabelsOptions options) {
  GPULET_TRY(config::read_config_file(options.sources));
  GPULET_TRY_ASSIGN(const config::LoadedConfig loaded, config::load(options.sources));
  GPULET_TRY_ASSIGN(auto snapshot, agent::read_snapshot_once({.driver_root = options.driver_root}));
  const auto& file = loaded.config.gfd.machine_type_file;
  const auto machine = file.empty() ? std::nullopt : std::optional(read_file(file));
  const std::map<std::string, std::string> node_labels;
  partition::mark_excluded_gpus(snapshot, loaded.config, node_labels);
  return labels_report(
      labels::build_labels({snapshot, loaded.config, node_labels,
                            machine && *machine ? std::optional(**machine) : std::nullopt, std::nullopt}),
      options.explain, options.output);
}

}  // namespace

std::string labels_report(const Labels& labels, bool explain, const OutputOptions& output) {
  return render_output(
      output, [&] { return labels_json(labels, explain); },
      [&](const TableStyle& style) {
        if (!explain) return labels::features_text(labels::plain_labels(labels));
        std::string text;
        for (const auto& [key, label] : labels) text += key + "=" + label.value + "\n" + rule_lines(label);
        return wrap_lines(text, style.columns);
      });
}

int run_labels(LabelsOptions options) {
  return print_report("gpulet labels", make_labels_report(std::move(options)));
}

void add_labels(CLI::App& app, Run& run) {
  auto& command =
      add_command(app, {.name = "labels",
                        .summary = "Print this node's labels, and with --explain the reason for each",
                        .details = "Reads the driver. No agent and no cluster are needed.",
                        .examples = "  gpulet labels\n"
                                    "  gpulet labels --explain --mig-strategy single",
                        .group = kInspectGroup});
  const auto options = std::make_shared<LabelsOptions>();
  command.add_flag("--explain", options->explain,
                   "add the rule and source of each label, and values that were truncated");
  add_output_options(command, options->output);
  add_driver_root_option(command, options->driver_root);
  add_resource_options(command, options->sources);
  command.callback([options, &run] { run = [options] { return run_labels(*options); }; });
}

}  // namespace gpulet::cli

#include <memory>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "cli/commands/commands.h"
#include "cli/main/command_line.h"
#include "config/yaml.h"
#include "dra/device_pool.h"
#include "dra/manifest_check.h"

namespace gpulet::cli {
namespace {

using Json = nlohmann::ordered_json;

struct CheckedFile {
  dra::ManifestReport report;
  std::vector<std::string> errors;  // one line each
};

CheckedFile check_file(const std::string& file, const std::string& feature_gates) {
  const auto check = [&]() -> Result<dra::ManifestReport> {
    const auto gates = dra::parse_feature_gates(feature_gates);
    if (!gates) return fail(gates.error().code(), gates.error().message(), "--feature-gates");
    GPULET_TRY_ASSIGN(const auto text, read_file(file, config::yaml::kMaxTextBytes));
    return dra::check_manifests(text, file, dra::kDriverName, *gates);
  };
  auto report = check();
  if (!report) return {{}, {report.error().full_message()}};
  CheckedFile checked{std::move(*report), {}};
  for (const auto& problem : checked.report.problems) {
    checked.errors.push_back(config::yaml::position_text(file, {problem.line, problem.column}) +
                             ": document " + std::to_string(problem.document) + ", " + problem.object + ": " +
                             (problem.field.empty() ? "" : problem.field + ": ") + problem.message);
  }
  return checked;
}

std::string manifest_json(const std::string& file, const CheckedFile& checked) {
  return document_text(Json{{"file", file},
                            {"valid", checked.errors.empty()},
                            {"objects", checked.report.objects},
                            {"configs", checked.report.configs},
                            {"errors", checked.errors}});
}

}  // namespace

CommandOutput dra_check_output(const DraCheckOptions& options) {
  const auto checked = check_file(options.file, options.feature_gates);
  const bool valid = checked.errors.empty();
  const auto counts_line = [&](const TableStyle&) {
    if (!valid) return std::string();
    return options.file + ": ok, " + text::count_text(checked.report.objects, "object") + ", " +
           text::count_text(checked.report.configs, "config") + " for " + std::string(dra::kDriverName) +
           "\n";
  };
  std::string lines;
  for (const auto& error : checked.errors) lines += error + "\n";
  return {.exit_code = valid ? 0 : kFailed,
          .out = render_output(
              options.output, [&] { return manifest_json(options.file, checked); }, counts_line),
          .err = options.output.is_document() ? std::string() : lines};
}

void add_dra(CLI::App& app, Run& run) {
  auto& command = add_command(app, {.name = "dra",
                                    .summary = "Check manifests of claims",
                                    .examples = "  gpulet dra check claims.yaml",
                                    .group = kPlanGroup});
  command.require_subcommand(1);
  auto& check = add_command(
      command,
      {.name = "check",
       .summary = "Check the configs of claims, claim templates and device classes",
       .details = "Reads YAML or JSON with any number of objects. Each config for gpu.nvidia.com is read\n"
                  "as the agent does when it prepares a claim; others are passed over. A constraint on an\n"
                  "unknown attribute of gpulet.io is a mistake too. Each mistake is one line of standard\n"
                  "error: file:line:column: document, object: field: what is wrong.\n"
                  "Exits with 1 if there is one.",
       .examples = "  gpulet dra check claims.yaml"});
  const auto options = std::make_shared<DraCheckOptions>();
  check.add_option("FILE", options->file, "file of manifests")->required();
  check.add_option("--feature-gates", options->feature_gates,
                   "gates of gpulet.dra.featureGates: MPSSupport=true,TimeSlicingSettings=true");
  add_output_options(check, options->output);
  check.callback([options, &run] { run = [options] { return print_output(dra_check_output(*options)); }; });
}

}  // namespace gpulet::cli

#include "cli/labels_command.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "agent/nvml_driver.h"
#include "base/file.h"

namespace gpulet::cli {
namespace {

using Json = nlohmann::ordered_json;
using labels::Label;
using labels::Labels;

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string reason(const Label& label) {
  std::string text = "    " + std::string(label.rule->rule) + "\n    from " + std::string(label.rule->source);
  if (!label.about.empty()) text += "; " + label.about;
  if (label.was) text += "; cut or cleaned from " + quoted(*label.was);
  return text + "\n";
}

std::string as_json(const Labels& labels, bool explain) {
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
           {"about", label.about},
           {"was", nullptr}};
    if (label.was) one["was"] = *label.was;
  }
  return Json{{"labels", std::move(json)}}.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<std::string> read_and_report(LabelsOptions options) {
  GPULET_TRY(labels_report({}, false, options.output));
  GPULET_TRY(config::read_config_file(options.sources));
  GPULET_TRY_ASSIGN(const config::Loaded loaded, config::load(options.sources));
  GPULET_TRY_ASSIGN(const auto snapshot, agent::read_snapshot({.driver_root = options.driver_root}));
  const auto& file = loaded.config.gfd.machine_type_file;
  const auto machine = file.empty() ? std::nullopt : std::optional(read_file(file));
  const std::map<std::string, std::string> node_labels;
  return labels_report(
      labels::labels_of({snapshot, loaded.config, node_labels,
                         machine && *machine ? std::optional(**machine) : std::nullopt, std::nullopt}),
      options.explain, options.output);
}

}  // namespace

Result<std::string> labels_report(const Labels& labels, bool explain, const std::string& output) {
  if (output == "json") return as_json(labels, explain);
  if (output != "text") {
    return fail(Code::kInvalidArgument, "there is no output '" + output + "': text or json");
  }
  if (!explain) return labels::features_text(labels::plain(labels));
  std::string text;
  for (const auto& [key, label] : labels) text += key + "=" + label.value + "\n" + reason(label);
  return text;
}

int labels(LabelsOptions options) {
  const auto report = read_and_report(std::move(options));
  if (!report) {
    std::cerr << "gpulet labels: " << report.error().text() << '\n';
    return 1;
  }
  std::cout << *report << std::flush;
  return 0;
}

}  // namespace gpulet::cli

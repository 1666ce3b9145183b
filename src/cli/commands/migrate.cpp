#include "cli/commands/commands.h"

#include <signal.h>

#include <iostream>
#include <memory>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/main/command_line.h"
#include "migrate/components.h"
#include "migrate/report.h"
#include "migrate/scan.h"

namespace gpulet::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLongestCell = 80;  // of a value; JSON has all of it

// One printable line, cut only between UTF-8 characters.
std::string printable_line(std::string text, std::size_t longest = std::string::npos) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
  }
  if (text.size() <= longest) return text;
  while (longest > 0 && (static_cast<unsigned char>(text[longest]) & 0xc0u) == 0x80u) --longest;
  return text.substr(0, longest) + "…";
}

std::string numbered_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    text += "  " + std::to_string(i + 1) + ". " + printable_line(lines[i]) + "\n";
  }
  return text;
}

std::string settings_table(const std::vector<migrate::MigratedSetting>& settings, const TableStyle& style) {
  std::string text, of;
  std::vector<std::vector<std::string>> rows;
  const auto flush = [&] {
    if (!rows.empty()) text += "  " + printable_line(of) + "\n" + render_table(rows);
    rows.clear();
  };
  for (const auto& setting : settings) {
    if (setting.source != of) flush();
    of = setting.source;
    const std::string given = setting.name + (setting.value.empty() ? "" : "=" + setting.value);
    rows.push_back({"   ", std::string(migrate::display_title(setting.outcome)),
                    printable_line(given, style.wide ? std::string::npos : kLongestCell),
                    printable_line(setting.note)});
  }
  flush();
  return text;
}

}  // namespace

std::string migrate_text(const migrate::Report& report, const TableStyle& style) {
  if (report.found.empty()) {
    std::string text = "No component of NVIDIA's stack found at " + printable_line(report.location) + ".\n";
    for (const auto& line : report.unread) text += "  not read: " + printable_line(line) + "\n";
    return text;
  }
  std::string text = "Found (" + printable_line(report.location) + ")\n";
  std::vector<std::vector<std::string>> rows;
  for (const auto& found : report.found) {
    rows.push_back({" ", std::string(migrate::display_title(found.component)), printable_line(found.location),
                    printable_line(found.description)});
  }
  text += render_table(rows);
  if (!report.settings.empty()) text += "\nSettings\n" + settings_table(report.settings, style);
  if (!report.differences.empty()) {
    text += "\nDeliberate differences\n";
    for (const auto& difference : report.differences) {
      text += "  " + difference.what + "\n    " + difference.page + "\n";
    }
  }
  if (!report.decisions.empty()) text += "\nDecisions needed\n" + numbered_lines(report.decisions);
  if (!report.unread.empty()) text += "\nNot read\n" + numbered_lines(report.unread);
  if (!report.next_steps.empty()) text += "\nNext steps, in order\n" + numbered_lines(report.next_steps);
  if (!report.rollback_steps.empty()) text += "\nRollback\n" + numbered_lines(report.rollback_steps);
  return text;
}

std::string migrate_json(const migrate::Report& report) {
  Json found = Json::array(), settings = Json::array(), differences = Json::array();
  for (const auto& one : report.found) {
    found.push_back(
        {{"part", migrate::json_key(one.component)}, {"where", one.location}, {"what", one.description}});
  }
  for (const auto& one : report.settings) {
    Json setting{{"of", one.source},
                 {"name", one.name},
                 {"value", one.value},
                 {"fate", migrate::json_key(one.outcome)},
                 {"note", one.note}};
    if (!one.variable.empty()) setting["variable"] = one.variable;
    settings.push_back(std::move(setting));
  }
  for (const auto& one : report.differences) differences.push_back({{"what", one.what}, {"page", one.page}});
  const Json json{{"place", report.location},
                  {"clear", report.is_clear()},
                  {"found", std::move(found)},
                  {"settings", std::move(settings)},
                  {"differences", std::move(differences)},
                  {"decide", report.decisions},
                  {"notRead", report.unread},
                  {"next", report.next_steps},
                  {"back", report.rollback_steps}};
  return document_text(json);
}

namespace {

Result<migrate::Facts> scan_target(const MigrateCheckOptions& options) {
  if (!options.cluster) return migrate::scan_node(options.root);
  GPULET_TRY_ASSIGN(const auto access, find_kubectl_access(options.kubeconfig));
  ::signal(SIGPIPE, SIG_IGN);  // TLS writes to a socket that its server may have closed
  return migrate::scan_cluster(access);
}

}  // namespace

int run_migrate_check(const MigrateCheckOptions& options) {
  const auto facts = scan_target(options);
  if (!facts) return print_error("gpulet migrate check", facts.error().full_message());
  const auto report = migrate::build_report(*facts);
  std::cout << render_output(
      options.output, [&] { return migrate_json(report); },
      [&](const TableStyle& style) { return migrate_text(report, style); });
  return report.is_clear() ? 0 : kNeedsAction;
}

void add_migrate(CLI::App& app, Run& run) {
  auto& command = add_command(app, {.name = "migrate",
                                    .summary = "Plan a migration from NVIDIA's stack to gpulet, and back",
                                    .examples = "  gpulet migrate check\n  gpulet migrate check --cluster",
                                    .group = kPlanGroup});
  command.require_subcommand(1);
  auto& check = add_command(
      command,
      {.name = "check",
       .summary = "Report what runs of NVIDIA's stack, what carries over, and the next steps",
       .details = "Reads only. Exits with 3 if something needs a decision first or could not be read.",
       .examples = "  gpulet migrate check\n"
                   "  gpulet migrate check --cluster -o json"});
  const auto options = std::make_shared<MigrateCheckOptions>();
  auto* cluster = check.add_flag("--cluster", options->cluster,
                                 "inspect a cluster through its API server instead of this node");
  check.add_option("--root", options->root, "mount point of the node's / (default /)")->excludes(cluster);
  check
      .add_option("--kubeconfig", options->kubeconfig,
                  "kubeconfig file (default: KUBECONFIG, then ~/.kube/config)")
      ->group(kClusterGroup)
      ->needs(cluster);
  add_output_options(check, options->output);
  check.add_flag_callback(
           "--json", [options] { options->output.format = "json"; }, "same as -o json")
      ->group(kOutputGroup);
  check.callback([options, &run] { run = [options] { return run_migrate_check(*options); }; });
}

}  // namespace gpulet::cli

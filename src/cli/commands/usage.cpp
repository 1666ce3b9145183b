#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <tuple>

#include <nlohmann/json.hpp>

#include <CLI/CLI.hpp>

#include "arguments/arguments.h"
#include "base/text.h"
#include "cli/commands/commands.h"
#include "cli/main/command_line.h"
#include "cli/top/client.h"

namespace gpulet::cli {
namespace {

using Amount = agent::NodeUsage::Amount;
using Json = nlohmann::ordered_json;

constexpr Duration kUsageLimit = std::chrono::seconds(5);
constexpr double kSecondsPerHour = 3600;
constexpr double kJoulesPerKilowattHour = 3'600'000;
constexpr double kWholePercent = 100;

const std::vector<Column> kUsageColumns{{"NAMESPACE"}, {"POD"},    {"GPUS"},
                                        {"HELD H"},    {"USED H"}, {"IDLE H"},
                                        {"IDLE"},      {"KWH"},    {"UNKNOWN H", ColumnUse::kWide}};

std::string decimal_text(double value, int digits) {
  std::array<char, 64> text{};
  const int size = std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return {text.data(), static_cast<std::size_t>(std::clamp<int>(size, 0, text.size() - 1))};
}

std::string hours_text(double seconds) { return decimal_text(seconds / kSecondsPerHour, 2); }

// Without milliseconds.
std::string seconds_text(WallTime at) {
  return format_wall_time(std::chrono::floor<std::chrono::seconds>(at))
             .substr(0, sizeof "2026-01-01T00:00:00" - 1) +
         "Z";
}

// Held, and neither used nor idle as far as is known.
double unknown_seconds(const Amount& amount) {
  return std::max(0.0, amount.held - amount.idle - std::min(amount.busy, amount.held));
}

std::vector<std::string> usage_row(const Amount& amount) {
  const bool is_pod = !amount.pod.empty();
  const double idle = amount.held > 0 ? amount.idle / amount.held * kWholePercent : 0;
  return {arguments::printable_text(amount.name_space),
          is_pod ? arguments::printable_text(amount.pod) : kDash,
          is_pod ? decimal_text(amount.gpus, 2) : kDash,
          hours_text(amount.held),
          hours_text(amount.busy),
          hours_text(amount.idle),
          amount.held > 0 ? decimal_text(idle, 0) + "%" : kDash,
          decimal_text(amount.joules / kJoulesPerKilowattHour, 2),
          hours_text(unknown_seconds(amount))};
}

std::vector<Amount> chosen_rows(std::vector<Amount> rows, const std::string& name_space) {
  if (!name_space.empty())
    std::erase_if(rows, [&](const Amount& row) { return row.name_space != name_space; });
  std::ranges::sort(rows, [](const Amount& a, const Amount& b) {
    return std::tie(b.idle, b.held, a.name_space, a.pod) < std::tie(a.idle, a.held, b.name_space, b.pod);
  });
  return rows;
}

std::string usage_table(const std::vector<Amount>& pods, const std::vector<Amount>& namespaces,
                        WallTime since, const TableStyle& style) {
  const auto table = [&](const std::vector<Amount>& amounts) {
    TableRows rows;
    for (const auto& amount : amounts) rows.push_back(usage_row(amount));
    return rows.empty() ? std::string() : draw_table(kUsageColumns, rows, style);
  };
  if (!style.headers) return table(pods) + table(namespaces);
  const bool has_begun = since != WallTime{};
  const std::string begin = has_begun ? " since " + seconds_text(since) : std::string();
  if (namespaces.empty() && pods.empty()) return "no Pod has held a GPU" + begin + "\n";
  std::string text;
  if (!pods.empty()) text = "GPU hours of Pods that hold GPUs:\n\n" + table(pods) + "\n";
  return text + "GPU hours of namespaces" + begin + ", with Pods that have ended:\n\n" + table(namespaces);
}

Json usage_row_json(const Amount& amount) {
  Json row{{"namespace", amount.name_space}};
  if (!amount.pod.empty()) {
    row["pod"] = amount.pod;
    row["gpus"] = amount.gpus;
  }
  row["heldSeconds"] = amount.held;
  row["usedSeconds"] = amount.busy;
  row["idleSeconds"] = amount.idle;
  row["joules"] = amount.joules;
  return row;
}

Json usage_document(const std::vector<Amount>& pods, const std::vector<Amount>& namespaces, WallTime since) {
  Json document{{"since", nullptr}, {"pods", Json::array()}, {"namespaces", Json::array()}};
  if (since != WallTime{}) document["since"] = format_wall_time(since);
  for (const auto& amount : pods) document["pods"].push_back(usage_row_json(amount));
  for (const auto& amount : namespaces) document["namespaces"].push_back(usage_row_json(amount));
  return document;
}

}  // namespace

std::string usage_report(const agent::NodeUsage& usage, const UsageOptions& options) {
  const auto pods = chosen_rows(usage.pods, options.name_space);
  const auto namespaces = chosen_rows(usage.namespaces, options.name_space);
  return render_output(
      options.output, [&] { return document_text(usage_document(pods, namespaces, usage.since)); },
      [&](const TableStyle& style) { return usage_table(pods, namespaces, usage.since, style); });
}

int run_usage(const UsageOptions& options) {
  const auto usage = agent::fetch_usage(options.socket, kUsageLimit);
  if (!usage) {
    const auto error =
        explain_connection_error(usage.error(), {.socket = options.socket, .host = {}, .port = 0});
    return print_error("gpulet usage", error.full_message());
  }
  return print_report("gpulet usage", usage_report(*usage, options));
}

void add_usage(CLI::App& app, Run& run) {
  auto& command = add_command(
      app,
      {.name = "usage",
       .summary = "Show who held this node's GPUs, used or idle",
       .details = "Reads the agent's socket. The longest idle are first. A share or MIG device counts as "
                  "its part of a GPU. Held time is idle where the driver reports that the GPU was not "
                  "used. Sums are kept over restarts of the agent.",
       .examples = "  gpulet usage\n"
                   "  gpulet usage -n team-a\n"
                   "  gpulet usage -o json",
       .group = kInspectGroup});
  const auto options = std::make_shared<UsageOptions>();
  add_socket_option(command, options->socket);
  command.add_option("-n,--namespace", options->name_space, "show only this namespace");
  add_output_options(command, options->output);
  command.callback([options, &run] { run = [options] { return run_usage(*options); }; });
}

}  // namespace gpulet::cli

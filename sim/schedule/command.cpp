#include "sim/schedule/command.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "base/text.h"
#include "scheduler/core/policy.h"
#include "sim/schedule/load_simulator.h"
#include "sim/schedule/trace.h"

namespace gpulet::sim {
namespace {

using Json = nlohmann::ordered_json;
using scheduler::ClusterTrace;
using scheduler::PolicySummary;

constexpr std::uint64_t kMaxSeeds = 1000;
constexpr std::size_t kMaxTraceBytes = 256u << 20;

std::string percent_text(double share) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f %%", 100 * share);
  return text.data();
}

// "130 %".
std::string rounded_percent_text(double share) { return std::to_string(std::lround(100 * share)) + " %"; }

Result<ClusterTrace> read_trace(const ScheduleOptions& options) {
  GPULET_TRY_ASSIGN(const std::string nodes, read_file(options.nodes, kMaxTraceBytes));
  GPULET_TRY_ASSIGN(const std::string pods, read_file(options.pods, kMaxTraceBytes));
  return scheduler::read_trace(nodes, options.nodes, pods, options.pods);
}

// The requested policies by their own names, each once.
Result<std::vector<std::string>> requested_policies(const ScheduleOptions& options) {
  std::vector<std::string> names;
  std::vector<std::string> requested = options.policies;
  if (requested.empty() && options.load) requested = {"spread", "load"};
  if (options.policies.empty()) requested.emplace_back("default");
  for (const std::string& name : requested) {
    if (name == "all") {
      names = scheduler::simulator_policy_names();
      break;
    }
    GPULET_TRY_ASSIGN(const auto policy, scheduler::make_simulator_policy(name, {}));
    names.emplace_back(policy->policy_name());
  }
  std::vector<std::string> once;
  for (const std::string& name : names) {
    if (std::ranges::count(once, name) == 0) once.push_back(name);
  }
  return once;
}

Result<std::vector<PolicySummary>> run_policies(const ClusterTrace& trace, const ScheduleOptions& options,
                                                const ScheduleProgress& progress) {
  GPULET_TRY_ASSIGN(const std::vector<std::string> names, requested_policies(options));
  std::vector<PolicySummary> summaries;
  for (const std::string& name : names) {
    std::vector<scheduler::TraceRunResult> runs;
    for (std::uint64_t run = 0; run < options.seeds; ++run) {
      scheduler::TraceRunOptions run_options;
      run_options.policy = name;
      run_options.seed = options.seed + run;
      run_options.target = options.target;
      run_options.progress = [&](double part) {
        progress(name + ", run " + std::to_string(run + 1) + " of " + std::to_string(options.seeds) + ": " +
                 rounded_percent_text(part));
      };
      GPULET_TRY_ASSIGN(auto result, scheduler::replay_trace(trace, run_options));
      runs.push_back(std::move(result));
    }
    summaries.push_back(scheduler::summarize_runs(runs));
  }
  progress("");
  return summaries;
}

// `about`: what the table is of. `rows`: the first is the headings.
std::string titled_table(const std::string& about, TableRows rows, const arguments::TableStyle& style) {
  if (style.headers) return about + "\n\n" + render_table(rows);
  rows.erase(rows.begin());
  return render_table(rows);
}

std::string summary_table(const ClusterTrace& trace, const ScheduleOptions& options,
                          const std::vector<PolicySummary>& summaries, const arguments::TableStyle& style) {
  const std::string text = std::to_string(trace.total_gpu_milli() / scheduler::kWhole) + " GPUs on " +
                           std::to_string(trace.nodes.size()) + " nodes; tasks drawn from " +
                           std::to_string(trace.tasks.size()) + " until " +
                           rounded_percent_text(options.target) + " of the GPUs have been requested";
  TableRows rows = {{"POLICY", "RUNS", "ALLOCATED", "MIN", "MAX", "AT 100 % REQUESTED", "PLACED", "DROPPED"}};
  for (const PolicySummary& summary : summaries) {
    rows.push_back({summary.policy, std::to_string(summary.runs), percent_text(summary.allocated.mean),
                    percent_text(summary.allocated.least), percent_text(summary.allocated.greatest),
                    percent_text(summary.allocated_at_demand.mean),
                    std::to_string(std::lround(summary.placed)),
                    std::to_string(std::lround(summary.dropped))});
  }
  return titled_table(text, std::move(rows), style);
}

// Six digits are enough for a mean of some runs.
double round_share(double share) { return std::round(share * 1e6) / 1e6; }

Json spread_json(const scheduler::Spread& spread) {
  return {{"mean", round_share(spread.mean)},
          {"least", round_share(spread.least)},
          {"greatest", round_share(spread.greatest)}};
}

std::string summary_json(const ClusterTrace& trace, const ScheduleOptions& options,
                         const std::vector<PolicySummary>& summaries) {
  Json document = {{"nodes", trace.nodes.size()}, {"gpus", trace.total_gpu_milli() / scheduler::kWhole},
                   {"tasks", trace.tasks.size()}, {"target", options.target},
                   {"firstSeed", options.seed},   {"policies", Json::array()}};
  for (const PolicySummary& summary : summaries) {
    Json curve = Json::array();
    for (const PolicySummary::Step& step : summary.curve) {
      curve.push_back(
          {{"demand", round_share(step.demand)}, {"allocated", round_share(step.allocated.mean)}});
    }
    document["policies"].push_back({{"policy", summary.policy},
                                    {"runs", summary.runs},
                                    {"allocated", spread_json(summary.allocated)},
                                    {"allocatedAtFullDemand", spread_json(summary.allocated_at_demand)},
                                    {"placed", round_share(summary.placed)},
                                    {"dropped", round_share(summary.dropped)},
                                    {"curve", std::move(curve)}});
  }
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// One policy's load runs: means over the seeds, and the hottest GPU of all runs.
struct LoadSummary {
  std::string policy;
  scheduler::Spread above_95;
  bool rebalanced = false;
  double hottest = 0, unserved = 0, mean_busy = 0, allocated = 0, refused = 0, moves = 0, restarting = 0;
};

Result<LoadSummary> run_load_policy(const std::string& policy, bool rebalance, const ScheduleOptions& options,
                                    const ScheduleProgress& progress) {
  LoadSummary summary;
  summary.policy = policy;
  summary.rebalanced = rebalance;
  summary.above_95.least = 1;
  const auto runs = static_cast<double>(options.seeds);
  for (std::uint64_t run = 0; run < options.seeds; ++run) {
    scheduler::LoadRunOptions run_options;
    run_options.policy = policy;
    run_options.seed = options.seed + run;
    run_options.nodes = options.machines;
    run_options.days = options.days;
    run_options.known_services = options.known_services;
    run_options.rebalance = rebalance;
    run_options.progress = [&](double part) {
      progress(policy + ", run " + std::to_string(run + 1) + " of " + std::to_string(options.seeds) + ": " +
               rounded_percent_text(part));
    };
    GPULET_TRY_ASSIGN(const auto result, scheduler::simulate_load(run_options));
    summary.above_95.mean += result.above_95 / runs;
    summary.above_95.least = std::min(summary.above_95.least, result.above_95);
    summary.above_95.greatest = std::max(summary.above_95.greatest, result.above_95);
    summary.hottest = std::max(summary.hottest, result.hottest);
    summary.unserved += result.unserved / runs;
    summary.mean_busy += result.mean_busy / runs;
    summary.allocated += result.allocated / runs;
    summary.refused += static_cast<double>(result.refused) / runs;
    summary.moves += static_cast<double>(result.moves) / runs;
    summary.restarting += result.restarting / runs;
  }
  return summary;
}

std::string load_table(const ScheduleOptions& options, const std::vector<LoadSummary>& summaries,
                       const arguments::TableStyle& style) {
  const std::string text = std::to_string(options.machines) + " nodes of 8 GPUs, " +
                           std::to_string(options.days) + " days; past use of services is " +
                           (options.known_services ? "" : "not ") + "known";
  TableRows rows = {{"POLICY", "RUNS", "ABOVE 95 % USE", "MIN", "MAX", "HOTTEST GPU", "UNSERVED", "MEAN USE",
                     "ALLOCATED", "REFUSED"}};
  if (options.rebalance) rows[0].insert(rows[0].end(), {"REBALANCED", "MOVES", "RESTARTING"});
  for (const LoadSummary& summary : summaries) {
    rows.push_back({summary.policy, std::to_string(options.seeds), percent_text(summary.above_95.mean),
                    percent_text(summary.above_95.least), percent_text(summary.above_95.greatest),
                    percent_text(summary.hottest), percent_text(summary.unserved),
                    percent_text(summary.mean_busy), percent_text(summary.allocated),
                    std::to_string(std::lround(summary.refused))});
    if (!options.rebalance) continue;
    rows.back().insert(rows.back().end(),
                       {summary.rebalanced ? "yes" : "no", std::to_string(std::lround(summary.moves)),
                        percent_text(summary.restarting)});
  }
  return titled_table(text, std::move(rows), style);
}

std::string load_json(const ScheduleOptions& options, const std::vector<LoadSummary>& summaries) {
  Json document = {{"nodes", options.machines}, {"gpus", options.machines * 8},
                   {"days", options.days},      {"servicesKnown", options.known_services},
                   {"firstSeed", options.seed}, {"policies", Json::array()}};
  for (const LoadSummary& summary : summaries) {
    document["policies"].push_back({{"policy", summary.policy},
                                    {"runs", options.seeds},
                                    {"above95", spread_json(summary.above_95)},
                                    {"hottestGpu", round_share(summary.hottest)},
                                    {"unserved", round_share(summary.unserved)},
                                    {"meanUse", round_share(summary.mean_busy)},
                                    {"held", round_share(summary.allocated)},
                                    {"refused", round_share(summary.refused)}});
    if (!options.rebalance) continue;
    document["policies"].back()["rebalanced"] = summary.rebalanced;
    document["policies"].back()["moves"] = round_share(summary.moves);
    document["policies"].back()["restarting"] = round_share(summary.restarting);
  }
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<std::string> load_report(const ScheduleOptions& options, const ScheduleProgress& progress) {
  if (!options.nodes.empty() || !options.pods.empty() || !options.plot.empty()) {
    return fail(Code::kInvalidArgument, "--load generates its own nodes and tasks and draws no plot: omit " +
                                            std::string(options.nodes.empty() && options.pods.empty()
                                                            ? "--plot"
                                                            : "--nodes and --pods, or --load"));
  }
  GPULET_TRY_ASSIGN(const std::vector<std::string> names, requested_policies(options));
  std::vector<LoadSummary> summaries;
  for (const std::string& name : names) {
    for (const bool rebalance : {false, true}) {
      if (rebalance && !options.rebalance) continue;
      GPULET_TRY_ASSIGN(LoadSummary summary, run_load_policy(name, rebalance, options, progress));
      summaries.push_back(std::move(summary));
    }
  }
  progress("");
  return arguments::render_output(
      options.output, [&] { return load_json(options, summaries); },
      [&](const arguments::TableStyle& style) { return load_table(options, summaries, style); });
}

}  // namespace

Result<std::string> schedule_report(const ScheduleOptions& options, const ScheduleProgress& progress) {
  if (options.seeds == 0 || options.seeds > kMaxSeeds) {
    return fail(Code::kInvalidArgument, "--seeds is " + std::to_string(options.seeds) + ", expected 1 to " +
                                            std::to_string(kMaxSeeds));
  }
  if (options.load) return load_report(options, progress);
  if (options.nodes.empty() || options.pods.empty()) {
    return fail(Code::kInvalidArgument, "name the files of a trace with --nodes and --pods, or use --load");
  }
  GPULET_TRY_ASSIGN(const ClusterTrace trace, read_trace(options));
  GPULET_TRY_ASSIGN(const std::vector<PolicySummary> summaries, run_policies(trace, options, progress));
  if (!options.plot.empty()) {
    const std::string title = std::string(text::base_name(options.pods)) + " on " +
                              std::string(text::base_name(options.nodes)) +
                              (options.seeds > 1 ? ", " + std::to_string(options.seeds) + " runs each" : "");
    GPULET_TRY(write_file_atomic(options.plot, scheduler::draw_allocation_plot(title, summaries)));
  }
  return arguments::render_output(
      options.output, [&] { return summary_json(trace, options, summaries); },
      [&](const arguments::TableStyle& style) { return summary_table(trace, options, summaries, style); });
}

Status run_schedule(const ScheduleOptions& options) {
  const bool terminal = isatty(STDERR_FILENO) == 1;
  const Result<std::string> report = schedule_report(options, [&](const std::string& line) {
    if (terminal) std::cerr << "\r\x1b[K" << line << std::flush;
  });
  if (!report) {
    if (terminal) std::cerr << "\r\x1b[K";
    return fail(report.error());
  }
  std::cout << *report << std::flush;
  return {};
}

}  // namespace gpulet::sim

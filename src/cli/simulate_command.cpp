#include "cli/simulate_command.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "cli/text_table.h"
#include "scheduler/plot.h"
#include "scheduler/policy.h"
#include "scheduler/simulate.h"
#include "scheduler/simulate_load.h"
#include "scheduler/trace.h"

namespace gpulet::cli {
namespace {

using Json = nlohmann::ordered_json;
using scheduler::Summary;
using scheduler::Trace;

constexpr std::uint64_t kMaxSeeds = 1000;
constexpr std::size_t kMaxTraceBytes = 256u << 20;

std::string percent(double share) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f %%", 100 * share);
  return text.data();
}

// As people write it: "130 %".
std::string round_percent(double share) { return std::to_string(std::lround(100 * share)) + " %"; }

Result<Trace> read_trace(const SimulateOptions& options) {
  GPULET_TRY_ASSIGN(const std::string nodes, read_file(options.nodes, kMaxTraceBytes));
  GPULET_TRY_ASSIGN(const std::string pods, read_file(options.pods, kMaxTraceBytes));
  return scheduler::read_trace(nodes, options.nodes, pods, options.pods);
}

// The policies asked for, by their own names and each once.
Result<std::vector<std::string>> policies(const SimulateOptions& options) {
  std::vector<std::string> names;
  std::vector<std::string> all_asked = options.policies;
  if (all_asked.empty() && options.load) all_asked = {"spread", "load"};
  if (options.policies.empty()) all_asked.emplace_back("default");
  for (const std::string& asked : all_asked) {
    if (asked == "all") {
      names = scheduler::simulator_policy_names();
      break;
    }
    GPULET_TRY_ASSIGN(const auto policy, scheduler::simulator_policy_named(asked, {}));
    names.emplace_back(policy->name());
  }
  std::vector<std::string> once;
  for (const std::string& name : names) {
    if (std::ranges::count(once, name) == 0) once.push_back(name);
  }
  return once;
}

Result<std::vector<Summary>> run_all(const Trace& trace, const SimulateOptions& options,
                                     const SimulateProgress& progress) {
  GPULET_TRY_ASSIGN(const std::vector<std::string> names, policies(options));
  std::vector<Summary> summaries;
  for (const std::string& name : names) {
    std::vector<scheduler::RunResult> runs;
    for (std::uint64_t run = 0; run < options.seeds; ++run) {
      scheduler::RunOptions run_options;
      run_options.policy = name;
      run_options.seed = options.seed + run;
      run_options.target = options.target;
      run_options.progress = [&](double part) {
        progress(name + ", run " + std::to_string(run + 1) + " of " + std::to_string(options.seeds) + ": " +
                 round_percent(part));
      };
      GPULET_TRY_ASSIGN(auto result, scheduler::simulate(trace, run_options));
      runs.push_back(std::move(result));
    }
    summaries.push_back(scheduler::summarize(runs));
  }
  progress("");
  return summaries;
}

std::string summary_table(const Trace& trace, const SimulateOptions& options,
                          const std::vector<Summary>& summaries) {
  std::string text = std::to_string(trace.gpu_milli() / scheduler::kWhole) + " GPUs on " +
                     std::to_string(trace.nodes.size()) + " nodes; tasks drawn from " +
                     std::to_string(trace.tasks.size()) + " until " + round_percent(options.target) +
                     " of the GPUs have been asked for\n\n";
  std::vector<std::vector<std::string>> rows = {
      {"POLICY", "RUNS", "ALLOCATED", "LEAST", "GREATEST", "AT 100 % ASKED", "PLACED", "DROPPED"}};
  for (const Summary& summary : summaries) {
    rows.push_back({summary.policy, std::to_string(summary.runs), percent(summary.allocated.mean),
                    percent(summary.allocated.least), percent(summary.allocated.greatest),
                    percent(summary.allocated_at_demand.mean), std::to_string(std::lround(summary.placed)),
                    std::to_string(std::lround(summary.dropped))});
  }
  return text + text_table(rows);
}

// Six digits say all that a mean of some runs does.
double rounded(double share) { return std::round(share * 1e6) / 1e6; }

Json json_of(const scheduler::Spread& spread) {
  return {{"mean", rounded(spread.mean)},
          {"least", rounded(spread.least)},
          {"greatest", rounded(spread.greatest)}};
}

std::string summary_json(const Trace& trace, const SimulateOptions& options,
                         const std::vector<Summary>& summaries) {
  Json document = {{"nodes", trace.nodes.size()}, {"gpus", trace.gpu_milli() / scheduler::kWhole},
                   {"tasks", trace.tasks.size()}, {"target", options.target},
                   {"firstSeed", options.seed},   {"policies", Json::array()}};
  for (const Summary& summary : summaries) {
    Json curve = Json::array();
    for (const Summary::Step& step : summary.curve) {
      curve.push_back({{"demand", rounded(step.demand)}, {"allocated", rounded(step.allocated.mean)}});
    }
    document["policies"].push_back({{"policy", summary.policy},
                                    {"runs", summary.runs},
                                    {"allocated", json_of(summary.allocated)},
                                    {"allocatedAtFullDemand", json_of(summary.allocated_at_demand)},
                                    {"placed", rounded(summary.placed)},
                                    {"dropped", rounded(summary.dropped)},
                                    {"curve", std::move(curve)}});
  }
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// One policy's runs of load: means over the seeds, but for the hottest GPU of any.
struct LoadSummary {
  std::string policy;
  scheduler::Spread above_95;
  double hottest = 0, unserved = 0, mean_busy = 0, allocated = 0, refused = 0;
};

Result<LoadSummary> run_load(const std::string& policy, const SimulateOptions& options,
                             const SimulateProgress& progress) {
  LoadSummary summary;
  summary.policy = policy;
  summary.above_95.least = 1;
  const auto runs = static_cast<double>(options.seeds);
  for (std::uint64_t run = 0; run < options.seeds; ++run) {
    scheduler::LoadRunOptions run_options;
    run_options.policy = policy;
    run_options.seed = options.seed + run;
    run_options.nodes = options.machines;
    run_options.days = options.days;
    run_options.known_services = options.known_services;
    run_options.progress = [&](double part) {
      progress(policy + ", run " + std::to_string(run + 1) + " of " + std::to_string(options.seeds) + ": " +
               round_percent(part));
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
  }
  return summary;
}

std::string load_table(const SimulateOptions& options, const std::vector<LoadSummary>& summaries) {
  std::string text = std::to_string(options.machines) + " nodes of 8 GPUs, " + std::to_string(options.days) +
                     " days; what a service did before is " + (options.known_services ? "" : "not ") +
                     "known\n\n";
  std::vector<std::vector<std::string>> rows = {{"POLICY", "RUNS", "ABOVE 95 % USE", "LEAST", "GREATEST",
                                                 "HOTTEST GPU", "UNSERVED", "MEAN USE", "HELD", "REFUSED"}};
  for (const LoadSummary& summary : summaries) {
    rows.push_back({summary.policy, std::to_string(options.seeds), percent(summary.above_95.mean),
                    percent(summary.above_95.least), percent(summary.above_95.greatest),
                    percent(summary.hottest), percent(summary.unserved), percent(summary.mean_busy),
                    percent(summary.allocated), std::to_string(std::lround(summary.refused))});
  }
  return text + text_table(rows);
}

std::string load_json(const SimulateOptions& options, const std::vector<LoadSummary>& summaries) {
  Json document = {{"nodes", options.machines}, {"gpus", options.machines * 8},
                   {"days", options.days},      {"servicesKnown", options.known_services},
                   {"firstSeed", options.seed}, {"policies", Json::array()}};
  for (const LoadSummary& summary : summaries) {
    document["policies"].push_back({{"policy", summary.policy},
                                    {"runs", options.seeds},
                                    {"above95", json_of(summary.above_95)},
                                    {"hottestGpu", rounded(summary.hottest)},
                                    {"unserved", rounded(summary.unserved)},
                                    {"meanUse", rounded(summary.mean_busy)},
                                    {"held", rounded(summary.allocated)},
                                    {"refused", rounded(summary.refused)}});
  }
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<std::string> load_report(const SimulateOptions& options, const SimulateProgress& progress) {
  if (!options.nodes.empty() || !options.pods.empty() || !options.plot.empty()) {
    return fail(Code::kInvalidArgument, "--load makes its own nodes and tasks, and no plot: leave out " +
                                            std::string(options.nodes.empty() && options.pods.empty()
                                                            ? "--plot"
                                                            : "--nodes and --pods, or --load"));
  }
  GPULET_TRY_ASSIGN(const std::vector<std::string> names, policies(options));
  std::vector<LoadSummary> summaries;
  for (const std::string& name : names) {
    GPULET_TRY_ASSIGN(LoadSummary summary, run_load(name, options, progress));
    summaries.push_back(std::move(summary));
  }
  progress("");
  return options.output == "json" ? load_json(options, summaries) : load_table(options, summaries);
}

}  // namespace

Result<std::string> simulate_report(const SimulateOptions& options, const SimulateProgress& progress) {
  if (options.seeds == 0 || options.seeds > kMaxSeeds) {
    return fail(Code::kInvalidArgument,
                "--seeds is " + std::to_string(options.seeds) + ", want 1 to " + std::to_string(kMaxSeeds));
  }
  if (options.load) return load_report(options, progress);
  if (options.nodes.empty() || options.pods.empty()) {
    return fail(Code::kInvalidArgument,
                "--nodes and --pods name the files of a trace; or --load, which needs none");
  }
  GPULET_TRY_ASSIGN(const Trace trace, read_trace(options));
  GPULET_TRY_ASSIGN(const std::vector<Summary> summaries, run_all(trace, options, progress));
  if (!options.plot.empty()) {
    const std::string title = std::string(text::base_name(options.pods)) + " on " +
                              std::string(text::base_name(options.nodes)) +
                              (options.seeds > 1 ? ", " + std::to_string(options.seeds) + " runs each" : "");
    GPULET_TRY(write_file_atomic(options.plot, scheduler::allocation_plot(title, summaries)));
  }
  return options.output == "json" ? summary_json(trace, options, summaries)
                                  : summary_table(trace, options, summaries);
}

int simulate(const SimulateOptions& options) {
  const bool terminal = isatty(STDERR_FILENO) == 1;
  const Result<std::string> report = simulate_report(options, [&](const std::string& line) {
    if (terminal) std::cerr << "\r\x1b[K" << line << std::flush;
  });
  if (!report) {
    std::cerr << (terminal ? "\r\x1b[K" : "") << "gpulet scheduler simulate: " << report.error().text()
              << '\n';
    return 1;
  }
  std::cout << *report << std::flush;
  return 0;
}

}  // namespace gpulet::cli

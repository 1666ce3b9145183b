#include "migrate/analyse.h"

#include <algorithm>

#include "migrate/differences.h"
#include "migrate/parts.h"
#include "migrate/settings.h"
#include "migrate/steps.h"

namespace gpulet::migrate {
namespace {

std::string what_of(const Program& program) {
  std::string what = program.image;
  if (program.ours) what += what.empty() ? "gpulet, by that name" : ", gpulet by that name";
  if (program.installed == Installed::kByOperator) what += ", by the GPU operator";
  if (!program.release.empty()) {
    what += ", release " + program.release_namespace + "/" + program.release;
    if (!program.chart.empty()) what += " of " + program.chart;
  }
  return what.starts_with(", ") ? what.substr(2) : what;
}

std::string what_of(const Policy& policy) {
  std::string what;
  for (const auto& [field, value] : policy.fields) what += (what.empty() ? "" : ", ") + field + "=" + value;
  return what;
}

void find(const Facts& facts, Report& report) {
  for (const auto& program : facts.programs) {
    if (!program.initial) report.found.push_back({program.part, program.where(), what_of(program)});
  }
  for (const auto& policy : facts.policies) {
    report.found.push_back({Part::kOperator, "ClusterPolicy " + policy.name, what_of(policy)});
  }
  for (const auto& trace : facts.traces) report.found.push_back({trace.part, trace.path, trace.what});
  for (const auto& engine : facts.engines) {
    if (engine.nvidia_runtime.empty()) continue;
    report.found.push_back(
        {Part::kContainerToolkit, engine.nvidia_runtime, "NVIDIA's runtime in " + engine.title});
  }
  std::ranges::stable_sort(report.found, {}, &Found::part);
}

// Labels of nodes that NVIDIA's programs act by, and that the agent acts by too.
void labels(const Facts& facts, Report& report) {
  for (const auto& node : facts.nodes) {
    for (const auto& [name, value] : node.labels) {
      if (name.starts_with("nvidia.com/gpu.deploy.")) continue;
      report.settings.push_back({.of = "node " + node.name,
                                 .name = name,
                                 .value = value,
                                 .fate = Fate::kCarries,
                                 .note = "the agent goes by it too"});
    }
  }
}

}  // namespace

std::string Program::workload() const {
  return kind + " " + (name_space.empty() ? "" : name_space + "/") + name;
}

std::string Program::where() const {
  if (container.empty()) return workload();
  return workload() + (initial ? ", init container " : ", container ") + container;
}

std::string_view key(Fate fate) {
  switch (fate) {
    case Fate::kCarries:
      return "carries";
    case Fate::kNeedless:
      return "needless";
    case Fate::kDiffers:
      return "differs";
    case Fate::kLost:
      return "lost";
    case Fate::kWrong:
      return "wrong";
  }
  return "";
}

std::string_view title(Fate fate) {
  switch (fate) {
    case Fate::kCarries:
      return "carries over";
    case Fate::kNeedless:
      return "not needed";
    case Fate::kDiffers:
      return "differs";
    case Fate::kLost:
      return "is lost";
    case Fate::kWrong:
      return "is refused";
  }
  return "";
}

Report analyse(const Facts& facts) {
  Report report{.place = facts.place};
  find(facts, report);
  auto judged = judge_settings(facts);
  report.settings = std::move(judged.settings);
  labels(facts, report);
  report.differences = differences_of(facts, judged.met);
  auto steps = steps_of(facts, report.settings);
  report.decide = std::move(judged.decide);
  report.decide.insert(report.decide.end(), steps.decide.begin(), steps.decide.end());
  report.next = std::move(steps.next);
  report.back = std::move(steps.back);
  if (!report.decide.empty()) report.next.insert(report.next.begin(), "Settle what is to be decided.");
  report.not_read = facts.not_read;
  return report;
}

}  // namespace gpulet::migrate

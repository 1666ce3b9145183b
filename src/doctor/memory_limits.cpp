#include "doctor/memory_limits.h"

#include <algorithm>

#include "base/file.h"
#include "base/text.h"
#include "fraction/limit_grade.h"
#include "fraction/limit_support.h"

namespace gpulet::doctor {
namespace {

constexpr const char* kControllers = "/fs/cgroup/cgroup.controllers";
constexpr const char* kEnabledControllers = "/fs/cgroup/cgroup.subtree_control";

bool has_word(const std::string& list, std::string_view word) {
  const auto words = text::split(text::trim(list), ' ');
  return std::ranges::find(words, word) != words.end();
}

std::string cgroup_cause(const LimitHost& host) {
  if (!host.controllers)
    return "cgroup v1: boot with systemd.unified_cgroup_hierarchy=1, the driver limits cgroups of version 2";
  const bool has_dmem = has_word(*host.controllers, "dmem");
  if (!has_dmem && !has_word(*host.controllers, "misc"))
    return "the kernel has neither CONFIG_CGROUP_DMEM nor CONFIG_CGROUP_MISC: use one that has";
  if (has_dmem && !has_word(host.enabled_controllers, "dmem"))
    return "containers have no controller dmem, which crun does not enable: use runc, or write +dmem to "
           "cgroup.subtree_control along their path";
  return {};
}

std::string driver_cause(const std::string& version) {
  const auto branch = text::parse_unsigned(version.substr(0, version.find('.')));
  if (!branch || *branch >= fraction::kFirstBranchWithLimits) return {};
  return "driver " + version + ": install " + std::to_string(fraction::kFirstBranchWithLimits) + " or newer";
}

// Containers whose grade is below the node's, with their reasons.
std::vector<std::string> lower_containers(const agent::MemoryLimitStatus& status) {
  std::vector<std::string> lines;
  for (const auto& one : status.containers) {
    if (one.grade == status.grade) continue;
    lines.push_back(one.pod.name_space + "/" + one.pod.name + ", container " + one.container + ", " +
                    one.gpu.str() + ": " + one.grade +
                    (one.reasons.empty() ? "" : ": " + text::join(one.reasons, "; ")));
  }
  return lines;
}

}  // namespace

LimitHost read_limit_host(const HostTrees& trees) {
  LimitHost host;
  if (auto text = read_file(trees.sys + kControllers)) host.controllers = std::move(*text);
  host.enabled_controllers = read_file(trees.sys + kEnabledControllers).value_or("");
  host.driver_parameters = read_file(trees.proc + "/driver/nvidia/params").value_or("");
  return host;
}

std::vector<std::string> driver_limit_causes(const Facts& facts) {
  std::vector<std::string> causes;
  const auto add_cause = [&](std::string cause) {
    if (!cause.empty()) causes.push_back(std::move(cause));
  };
  if (facts.installed.module) add_cause(driver_cause(*facts.installed.module));
  if (facts.limit_host) {
    add_cause(cgroup_cause(*facts.limit_host));
    if (fraction::switches_accounting_off(facts.limit_host->driver_parameters))
      add_cause("RmMemacctMode is 0: remove it from the module's NVreg_RegistryDwords and load it again");
  }
  std::vector<std::string> mig;
  if (facts.agent) {
    for (const auto& gpu : facts.agent->gpus) {
      if (gpu.mig.enabled) mig.push_back(std::to_string(gpu.index));
    }
  }
  if (!mig.empty())
    add_cause("GPU " + text::join(mig, ", ") + " in MIG mode: MIG devices hold their memory themselves");
  return causes;
}

CheckResult check_memory_limits(const Facts& facts) {
  if (!facts.agent) return unknown_result(facts.agent.error());
  const auto& limit = facts.agent->memory_limit;
  if (!limit) return pass_result("no memory limits of shared GPUs are wanted");
  if (limit->grade.empty()) {
    auto result = pass_result("memory limits of GPUs that claims share have grades of their own");
    result.details = lower_containers(*limit);
    return result;
  }
  const std::string found = "memory limits of shared GPUs have the grade " + limit->grade;
  auto details = lower_containers(*limit);
  const auto lower = details.size();
  details.insert(details.end(), limit->reasons.begin(), limit->reasons.end());
  if (limit->grade != "kernel") {
    for (auto& cause : driver_limit_causes(facts)) details.push_back("the driver: " + cause);
  }
  if (!limit->no_compute_limit.empty())
    details.push_back("nvidia.com/gpucores is checked by the scheduler, not held: " +
                      limit->no_compute_limit);
  CheckResult result = pass_result(found);
  if (limit->grade == "none") {
    const bool lacks_pids = std::ranges::find(limit->reasons, fraction::kNoHostPids) != limit->reasons.end();
    result =
        warn_result(found + (limit->reasons.empty() ? "" : ": " + limit->reasons.back()),
                    lacks_pids ? "set hostPID: true in the chart's values, or share the GPUs by MPS"
                               : "set gpulet.fraction.onExceeded to kill or evict, or share the GPUs by MPS");
  } else if (lower != 0) {
    result =
        warn_result(found + ", but " + text::count_text(lower, "container") + " less: " + details.front(),
                    "remove what its Pod's spec names there; a Pod can demand a grade by "
                    "annotation gpulet.io/min-limit-grade");
  }
  result.details = std::move(details);
  return result;
}

}  // namespace gpulet::doctor

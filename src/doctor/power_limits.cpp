#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "doctor/checks.h"
#include "partition/power_plan.h"

namespace gpulet::doctor {
namespace {

// "GPU 3", or the UUID.
std::string shown_gpu(const AgentFacts& agent, const DeviceUuid& uuid) {
  const auto found = std::ranges::find(agent.devices, uuid.str(), &AgentDevice::uuid);
  return found == agent.devices.end() ? uuid.str() : found->name;
}

}  // namespace

CheckResult check_power_limits(const Facts& facts) {
  if (!facts.agent) return skip_result("there is no agent");
  const auto& agent = *facts.agent;
  if (agent.power.empty()) return pass_result("`gpulet.power` has no rule for a GPU of this node");
  std::vector<std::string> problems, details;
  bool is_denied = false;
  for (const auto& status : agent.power) {
    const std::string gpu = shown_gpu(agent, status.gpu);
    for (const auto& problem : status.problems) {
      problems.push_back(gpu + ": " + problem);
      is_denied = is_denied || problem.find("CAP_SYS_ADMIN") != std::string::npos;
    }
    if (!status.limit) continue;
    details.push_back(
        gpu + ": " + partition::watts_text(*status.limit) + " by " + status.source +
        (status.enforced ? ", of which the driver enforces " + partition::watts_text(*status.enforced) : ""));
  }
  auto result = pass_result(text::count_text(details.size(), "power limit") + " in force");
  if (!problems.empty())
    result =
        warn_result(text::join_limited(problems, 2),
                    is_denied ? "give the agent's container CAP_SYS_ADMIN" : "`gpulet.power`: docs/power.md");
  result.details = std::move(details);
  return result;
}

}  // namespace gpulet::doctor

#include "doctor/agent_readings.h"

#include <algorithm>

#include "base/text.h"

namespace gpulet::doctor {

bool agent_reads_gpus(const Facts& facts) { return facts.agent && !facts.agent->gpus.empty(); }

CheckResult result_by_agent(const Facts& facts, std::initializer_list<health::FaultClass> fault_classes,
                            health::Source source, const std::string& good, const std::string& fix) {
  if (!agent_reads_gpus(facts)) return unknown_result(facts.driver.error());
  std::vector<std::string> faults, unread;
  bool withdraws = false;
  for (const auto& gpu : facts.agent->gpus) {
    const std::string name = "GPU " + std::to_string(gpu.index) + ": ";
    for (const auto& fault : gpu.faults) {
      const bool wanted = std::ranges::any_of(
          fault_classes, [&](auto one) { return health::fault_rule(one).name == fault.fault_class; });
      if (!wanted) continue;
      faults.push_back(name + fault.text);
      withdraws = withdraws || fault.effect != enum_name(health::Effect::kFlag);
    }
    if (!gpu.unread) {
      unread.push_back(name + "not read yet");
    } else if (const auto why = gpu.unread->find(std::string(enum_name(source))); why != gpu.unread->end()) {
      unread.push_back(name + why->second);
    }
  }
  if (!faults.empty())
    return withdraws ? fail_result(text::join_limited(faults), fix)
                     : warn_result(text::join_limited(faults), fix);
  if (!unread.empty())
    return unknown_result("the agent cannot check " + std::string(enum_name(source)) + " of " +
                          text::join_limited(unread));
  return pass_result(good + " (by the agent)");
}

std::vector<GpuFacts> gpus_by_agent(const AgentFacts& agent) {
  std::vector<GpuFacts> gpus;
  for (const auto& known : agent.gpus) {
    GpuFacts gpu;
    gpu.index = known.index;
    gpu.mig = known.mig;
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

}  // namespace gpulet::doctor

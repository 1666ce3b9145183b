// What the agent of this node knows about GPUs that this process cannot ask the driver about: in the agent's
// own Pod, a process of `kubectl exec` may have no library, no device nodes or no right to open them. Pure.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "doctor/checks.h"
#include "health/evidence/evidence.h"
#include "health/policy/health_policy.h"

namespace gpulet::doctor {

// Whether the agent reports GPUs.
bool agent_reads_gpus(const Facts& facts);

// The result of a check that the agent makes itself: a fail if a fault of these classes withdraws a GPU, a
// warning if it only flags one, each with `fix`; a pass with `good` where every GPU's `source` is read;
// else unknown. Unknown with the driver's error where the agent reports no GPU.
// Precondition: !facts.driver.
CheckResult result_by_agent(const Facts& facts, std::initializer_list<health::FaultClass> fault_classes,
                            health::Source source, const std::string& good, const std::string& fix);

// The GPUs with their MIG state only. Precondition: agent_reads_gpus().
std::vector<GpuFacts> gpus_by_agent(const AgentFacts& agent);

}  // namespace gpulet::doctor

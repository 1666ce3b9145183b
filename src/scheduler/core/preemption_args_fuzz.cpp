// The body of kube-scheduler's preemption call, and a PodDisruptionBudget of the API server.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "scheduler/core/preemption_json.h"
#include "scheduler/model/disruption_budget.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::scheduler;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto args = parse_preemption_args(text)) {
    if (preemption_result_json(args->proposed).empty()) std::abort();
  }
  if (const auto budget = parse_disruption_budget(text)) {
    // Only a Pod of its namespace with labels can match.
    if (budget->matches_pod(budget->name_space + "x", "app=a\n") ||
        budget->matches_pod(budget->name_space, ""))
      std::abort();
  }
  return 0;
}

// Speed of the trace simulator, in tasks per second.
#include <benchmark/benchmark.h>

#include "sim/schedule/test_generated_trace.h"
#include "sim/schedule/trace.h"

namespace gpulet::scheduler {
namespace {

void simulate_trace(benchmark::State& state, const std::string& policy) {
  const ClusterTrace trace =
      *read_trace(generated_trace::nodes_csv(), "", generated_trace::pods_csv(generated_trace::kSeed), "");
  TraceRunOptions options;
  options.policy = policy;
  std::int64_t tasks = 0;
  for ([[maybe_unused]] const auto step : state) {
    ++options.seed;
    const auto result = replay_trace(trace, options);
    tasks += static_cast<std::int64_t>(result->placed.size() + result->dropped);
  }
  state.SetItemsProcessed(tasks);  // tasks a second
}
BENCHMARK_CAPTURE(simulate_trace, binpack, "binpack")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulate_trace, fragmentation, "fragmentation")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(simulate_trace, default_policy, "default")->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gpulet::scheduler

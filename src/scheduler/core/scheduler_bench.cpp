// Cost of a decision over a whole cluster, and of a forecast. Goal: 2,500 decisions per second over 5,000
// nodes on one thread, so 0.4 ms each.
#include <benchmark/benchmark.h>

#include "scheduler/core/node_table.h"
#include "scheduler/load/forecast.h"
#include "scheduler/load/test_loads.h"
#include "scheduler/model/test_random.h"

namespace gpulet::scheduler {
namespace {

constexpr std::size_t kNodes = 5000;

// A busy cluster of 8-GPU nodes as an extender sees it: CPU and memory are counted by others.
NodeState busy_node(randomly::Random& random, bool load) {
  constexpr std::array<std::uint16_t, 8> kShares = {0, 0, 0, 250, 500, 750, 1000, 1000};
  NodeState node;
  node.gpus = 8;
  for (std::size_t gpu = 0; gpu < 8; ++gpu) {
    node.free[gpu] = kShares[randomly::random_below(random, kShares.size())];
    if (load && node.free[gpu] < kWhole) node.load[gpu] = randomly::random_curve(random);
  }
  node.links = randomly::two_quads();
  return node;
}

Task pod(randomly::Random& random) {
  switch (randomly::random_below(random, 4)) {
    case 0:
      return randomly::task_requesting(1, 250);
    case 1:
      return randomly::task_requesting(1, 500);
    case 2:
      return randomly::task_requesting(1, 1000);
    default:
      return randomly::task_requesting(static_cast<std::uint16_t>(2 + 2 * randomly::random_below(random, 2)),
                                       1000);
  }
}

// One Pod after the other: every node is scored, the best one gets it, and some other node changes too.
void decide(benchmark::State& state, const std::string& name, bool load) {
  randomly::Random random(1);
  NodeTable table;
  for (std::size_t at = 0; at < kNodes; ++at) table.add_node(busy_node(random, load));
  const auto policy = *make_policy(name, {});
  std::vector<std::optional<Choice>> scores(kNodes);
  for ([[maybe_unused]] const auto step : state) {
    const Task task = pod(random);
    NodeTable::Query& query = table.find_query(policy, task);
    NodeTable::Node best = 0;
    for (NodeTable::Node node = 0; node < kNodes; ++node) {
      scores[node] = table.choose_on_node(query, node);
      if (scores[node] && (!scores[best] || scores[node]->score > scores[best]->score)) best = node;
    }
    if (scores[best]) {
      NodeState taken = table.state_of(best);
      taken.allocate_task(task, scores[best]->gpus);
      table.update_node(best, taken);
    }
    table.update_node(randomly::random_below(random, kNodes), busy_node(random, load));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(decide, binpack, "binpack", false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(decide, topology, "topology", false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(decide, fragmentation, "fragmentation", false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(decide, default_without_load, "default", false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(decide, default_with_load_everywhere, "default", true)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(decide, load, "load", true)->Unit(benchmark::kMicrosecond);

// The first Pod of a class, with an empty cache.
void decide_cold(benchmark::State& state) {
  randomly::Random random(1);
  NodeTable table;
  for (std::size_t at = 0; at < kNodes; ++at) table.add_node(busy_node(random, true));
  for ([[maybe_unused]] const auto step : state) {
    auto& query = table.find_query(*make_policy("default", {}), randomly::task_requesting(1, 250));
    for (NodeTable::Node node = 0; node < kNodes; ++node)
      benchmark::DoNotOptimize(table.choose_on_node(query, node));
  }
  state.SetItemsProcessed(state.iterations());
  state.SetLabel(std::to_string(table.kind_count()) + " kinds of nodes");
}
BENCHMARK(decide_cold)->Unit(benchmark::kMicrosecond);

void forecast_sample(benchmark::State& state) {
  Forecast forecast;
  std::int64_t second = 0;
  for ([[maybe_unused]] const auto step : state) {
    forecast.add_load_sample(WallTime(std::chrono::seconds(second)), static_cast<double>(second % 97), 30);
    second += 15;
  }
  state.SetItemsProcessed(state.iterations());
  state.SetLabel(std::to_string(sizeof(Forecast)) + " bytes a GPU");
}
BENCHMARK(forecast_sample);

void forecast_curve(benchmark::State& state) {
  Forecast forecast;
  std::int64_t second = 0;
  for (; second < 10 * loads::kDay; second += 300) {
    forecast.add_load_sample(WallTime(std::chrono::seconds(second)), static_cast<double>(second % 97), 30);
  }
  for ([[maybe_unused]] const auto step : state) {
    benchmark::DoNotOptimize(forecast.daily_curve(WallTime(std::chrono::seconds(second += 60))));
  }
}
BENCHMARK(forecast_curve);

}  // namespace
}  // namespace gpulet::scheduler

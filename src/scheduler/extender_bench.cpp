// What one Pod costs an extender at so many nodes: the body of a question parsed, every node judged or
// scored, the answer written. Nodes of 8 GPUs in sets of 4, with 200 different kinds of occupation.
#include <benchmark/benchmark.h>

#include <memory>
#include <random>

#include "scheduler/extender_json.h"
#include "scheduler/filter.h"
#include "scheduler/score.h"
#include "scheduler/test_nodes.h"

namespace gpulet::scheduler {
namespace {

struct Cluster {
  explicit Cluster(std::size_t count) {
    std::mt19937 random(8);
    body =
        R"({"Pod":{"metadata":{"namespace":"a","name":"p","annotations":{"gpulet.io/gpu-links":"NV"}},"spec":)"
        R"({"containers":[{"name":"m","resources":{"limits":{"nvidia.com/gpu":"2"}}}]}},"Nodes":null,"NodeNames":[)";
    for (std::size_t i = 0; i < count; ++i) {
      const std::string name = "gpu-node-" + std::to_string(i) + ".cluster.example";
      GpuNode node = test_node(8, 4);
      const auto occupation = random() % 200;
      for (std::size_t gpu = 0; gpu < 8; ++gpu) {
        if ((occupation >> gpu & 1) != 0) hold(node, "team/pod-" + std::to_string(gpu), {gpu});
      }
      view.set_node(name, node);
      body.append(i == 0 ? "\"" : ",\"").append(name).append("\"");
    }
    body += "]}";
    view.table();
  }
  ClusterView view;
  Scorer scorer;
  std::string body;
};

Cluster& cluster_of(std::int64_t nodes) {
  static std::map<std::int64_t, std::unique_ptr<Cluster>> clusters;
  auto& cluster = clusters[nodes];
  if (!cluster) cluster = std::make_unique<Cluster>(static_cast<std::size_t>(nodes));
  return *cluster;
}

void parse(benchmark::State& state) {
  const auto& cluster = cluster_of(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(ExtenderArgs::parse(cluster.body));
}

void filter(benchmark::State& state) {
  auto& cluster = cluster_of(state.range(0));
  for (auto _ : state) {
    const auto args = ExtenderArgs::parse(cluster.body).value();
    const Filter filter(args.pod());
    std::vector<std::size_t> passed;
    std::vector<ExtenderArgs::Failed> failed;
    for (std::size_t i = 0; i < args.nodes().size(); ++i) {
      auto verdict = filter.judge(*cluster.view.find(args.nodes()[i]));
      if (verdict.fits()) {
        passed.push_back(i);
      } else {
        failed.push_back({i, verdict.resolvable, std::move(verdict.reason)});
      }
    }
    benchmark::DoNotOptimize(args.filter_result(passed, failed));
  }
}

void prioritize(benchmark::State& state) {
  auto& cluster = cluster_of(state.range(0));
  for (auto _ : state) {
    const auto args = ExtenderArgs::parse(cluster.body).value();
    benchmark::DoNotOptimize(
        args.priorities(cluster.scorer.score(cluster.view, args.pod(), "default", args.nodes())));
  }
}

// One node changes between two decisions, as it does in life.
void change(benchmark::State& state) {
  auto& cluster = cluster_of(state.range(0));
  const std::string name = "gpu-node-0.cluster.example";
  bool held = false;
  for (auto _ : state) {
    GpuNode node = test_node(8, 4);
    if (held = !held; held) hold(node, "team/p", {3});
    cluster.view.set_node(name, std::move(node));
    benchmark::DoNotOptimize(cluster.view.find(name));
  }
}

BENCHMARK(parse)->Arg(500)->Arg(5000);
BENCHMARK(filter)->Arg(500)->Arg(5000);
BENCHMARK(prioritize)->Arg(500)->Arg(5000);
BENCHMARK(change)->Arg(5000);

}  // namespace
}  // namespace gpulet::scheduler

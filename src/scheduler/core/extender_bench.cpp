// Cost of one Pod for an extender by number of nodes: parse the request, filter or score every node, write
// the response. Nodes of 8 GPUs in groups of 4, with 200 different allocations.
#include <benchmark/benchmark.h>

#include <memory>
#include <random>

#include "scheduler/core/decision.h"
#include "scheduler/core/extender_json.h"
#include "scheduler/model/test_nodes.h"

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
        if ((occupation >> gpu & 1) != 0) hold_units(node, "team/pod-" + std::to_string(gpu), {gpu});
      }
      view.set_node(name, node);
      body.append(i == 0 ? "\"" : ",\"").append(name).append("\"");
    }
    body += "]}";
    view.node_table();
  }
  ClusterState view;
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
  for (auto _ : state) benchmark::DoNotOptimize(ExtenderArgs::parse_body(cluster.body));
}

void filter(benchmark::State& state) {
  auto& cluster = cluster_of(state.range(0));
  for (auto _ : state) {
    const auto args = ExtenderArgs::parse_body(cluster.body).value();
    const Filter filter(args.pod_request());
    std::vector<std::size_t> passed;
    std::vector<ExtenderArgs::FailedNode> failed;
    for (std::size_t i = 0; i < args.node_names().size(); ++i) {
      auto verdict = filter.check_node(*cluster.view.find_node(args.node_names()[i]));
      if (verdict.fits()) {
        passed.push_back(i);
      } else {
        failed.push_back({i, verdict.resolvable, std::move(verdict.reason)});
      }
    }
    benchmark::DoNotOptimize(args.filter_result_json(passed, failed));
  }
}

void prioritize(benchmark::State& state) {
  auto& cluster = cluster_of(state.range(0));
  for (auto _ : state) {
    const auto args = ExtenderArgs::parse_body(cluster.body).value();
    benchmark::DoNotOptimize(args.priorities_json(
        cluster.scorer.score_nodes(cluster.view, args.pod_request(), "default", args.node_names())));
  }
}

// One node changes between two decisions, as in production.
void change(benchmark::State& state) {
  auto& cluster = cluster_of(state.range(0));
  const std::string name = "gpu-node-0.cluster.example";
  bool held = false;
  for (auto _ : state) {
    GpuNode node = test_node(8, 4);
    if (held = !held; held) hold_units(node, "team/p", {3});
    cluster.view.set_node(name, std::move(node));
    benchmark::DoNotOptimize(cluster.view.find_node(name));
  }
}

BENCHMARK(parse)->Arg(500)->Arg(5000);
BENCHMARK(filter)->Arg(500)->Arg(5000);
BENCHMARK(prioritize)->Arg(500)->Arg(5000);
BENCHMARK(change)->Arg(5000);

}  // namespace
}  // namespace gpulet::scheduler

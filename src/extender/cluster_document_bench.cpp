// Cost of the cluster page's document by number of nodes of eight GPUs, each held by a Pod, with 1,000 Pods
// that wait for 64 different requests; and of its longest piece, which is what a request of kube-scheduler
// may wait for.
#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>

#include "extender/cluster_document.h"
#include "scheduler/model/test_nodes.h"

namespace gpulet::extender {
namespace {

void make_document(benchmark::State& state) {
  scheduler::ClusterState cluster;
  PageFacts facts;
  for (std::int64_t i = 0; i < state.range(0); ++i) {
    auto node = scheduler::test_node(8, 4);
    for (std::size_t gpu = 0; gpu < 8; ++gpu)
      scheduler::hold_units(node, "team/train-" + std::to_string(i) + "-" + std::to_string(gpu), {gpu});
    cluster.set_node("gpu-node-" + std::to_string(i), std::move(node));
  }
  for (unsigned i = 0; i < kMaxShownPending; ++i)
    facts.set_pending(scheduler::test_pod("waits-" + std::to_string(i), i % kMaxCheckedRequests + 1));
  cluster.node_table();
  std::size_t bytes = 0;
  std::chrono::duration<double, std::milli> longest{};
  for ([[maybe_unused]] auto _ : state) {
    ClusterDocument document({.cluster = cluster, .facts = facts, .node_page = ""});
    bytes = 0;
    for (bool more = true; more;) {
      const auto begun = std::chrono::steady_clock::now();
      const auto piece = document.next_piece();
      longest = std::max<decltype(longest)>(longest, std::chrono::steady_clock::now() - begun);
      more = piece.has_value();
      if (more) bytes += piece->size();
    }
  }
  state.counters["bytes"] = static_cast<double>(bytes);
  state.counters["longest_piece_ms"] = longest.count();
}
BENCHMARK(make_document)->Arg(100)->Arg(1'000)->Arg(5'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gpulet::extender

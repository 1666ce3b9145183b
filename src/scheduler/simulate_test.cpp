#include "scheduler/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/file.h"
#include "scheduler/test_made_trace.h"

namespace gpulet::scheduler {
namespace {

constexpr const char* kNodesFile = "tests/traces/nodes.csv";
constexpr const char* kPodsFile = "tests/traces/pods.csv";

void hold_to(const std::string& file, const std::string& made) {
  if (std::getenv("UPDATE_GOLDEN") != nullptr) {
    ASSERT_TRUE(write_file_atomic(file, made));
  }
  const auto committed = read_file(file);
  ASSERT_TRUE(committed) << committed.error().text() << " (UPDATE_GOLDEN=1 writes it)";
  EXPECT_EQ(*committed, made) << file << " (UPDATE_GOLDEN=1 writes it)";
}

TEST(Simulate, TheSmallTraceIsWhatItsGeneratorMakes) {
  hold_to(kNodesFile, made_trace::nodes());
  hold_to(kPodsFile, made_trace::pods(made_trace::kSeed));
}

const Trace& small_trace() {
  static const Trace trace = [] {
    auto read = read_trace(made_trace::nodes(), kNodesFile, made_trace::pods(made_trace::kSeed), kPodsFile);
    EXPECT_TRUE(read) << (read ? "" : read.error().text());
    return read ? std::move(*read) : Trace{};
  }();
  return trace;
}

RunResult run(const Trace& trace, const std::string& policy, std::uint64_t seed, double target = 1.3) {
  RunOptions options;
  options.policy = policy;
  options.seed = seed;
  options.target = target;
  auto result = simulate(trace, options);
  EXPECT_TRUE(result) << (result ? "" : result.error().text());
  return result ? std::move(*result) : RunResult{};
}

double mean_allocated(const Trace& trace, const std::string& policy, std::uint64_t seeds) {
  std::vector<RunResult> runs;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) runs.push_back(run(trace, policy, seed));
  return 100 * summarize(runs).allocated.mean;
}

// Placed again by hand: no node ever has more on it than it has.
TEST(Simulate, NeverGivesMoreThanANodeHas) {
  const Trace& trace = small_trace();
  for (const std::string& policy : simulator_policy_names()) {
    const RunResult result = run(trace, policy, 3);
    struct Used {
      std::int64_t cpu = 0, memory = 0;
      std::array<unsigned, kMaxGpus> gpus{};
    };
    std::vector<Used> used(trace.nodes.size());
    std::int64_t allocated = 0;
    for (const Placed& placed : result.placed) {
      const Task& task = trace.tasks[placed.task];
      const NodeState& node = trace.nodes[placed.node];
      Used& on = used[placed.node];
      on.cpu += task.cpu_milli;
      on.memory += task.memory_mib;
      ASSERT_LE(on.cpu, node.cpu_milli) << policy;
      ASSERT_LE(on.memory, node.memory_mib) << policy;
      ASSERT_EQ(std::popcount(placed.gpus), task.gpus) << policy;
      ASSERT_TRUE(task.gpus == 0 || task.models.accepts(node.model)) << policy;
      for (unsigned gpu = 0; gpu < kMaxGpus; ++gpu) {
        if ((placed.gpus >> gpu & 1) == 0) continue;
        ASSERT_LT(gpu, node.gpus) << policy;
        on.gpus[gpu] += task.gpu_milli;
        ASSERT_LE(on.gpus[gpu], kWhole) << policy;
      }
      allocated += task.total_milli();
    }
    EXPECT_NEAR(result.allocated, static_cast<double>(allocated) / static_cast<double>(trace.gpu_milli()),
                1e-12);
    EXPECT_GT(result.placed.size(), 300u) << policy;
    EXPECT_GT(result.dropped, 10u) << policy << ": 130 % cannot all be placed";
  }
}

TEST(Simulate, TheSameSeedGivesTheSameRun) {
  const RunResult once = run(small_trace(), "default", 5);
  const RunResult again = run(small_trace(), "default", 5);
  const RunResult other = run(small_trace(), "default", 6);
  ASSERT_EQ(once.placed.size(), again.placed.size());
  for (std::size_t at = 0; at < once.placed.size(); ++at) {
    ASSERT_EQ(once.placed[at].node, again.placed[at].node);
    ASSERT_EQ(once.placed[at].gpus, again.placed[at].gpus);
  }
  EXPECT_NE(once.placed.front().task, other.placed.front().task);
}

TEST(Simulate, TheCurveRisesToItsEnd) {
  const RunResult result = run(small_trace(), "binpack", 1);
  ASSERT_GT(result.curve.size(), 100u);
  EXPECT_EQ(result.curve.front().demand, 0);
  for (std::size_t at = 1; at < result.curve.size(); ++at) {
    ASSERT_GT(result.curve[at].demand, result.curve[at - 1].demand);
    ASSERT_GE(result.curve[at].allocated, result.curve[at - 1].allocated);
    ASSERT_LE(result.curve[at].allocated, std::min(1.0, result.curve[at].demand) + 1e-12);
  }
  EXPECT_GE(result.curve.back().demand, 1.3);
  EXPECT_EQ(result.curve.back().allocated, result.allocated);
  EXPECT_LE(result.allocated_at_demand, result.allocated);
}

TEST(Simulate, ASummaryHasMeanLeastAndGreatest) {
  std::vector<RunResult> runs;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) runs.push_back(run(small_trace(), "default", seed));
  const Summary summary = summarize(runs);
  EXPECT_EQ(summary.runs, 4u);
  double sum = 0;
  for (const RunResult& one : runs) {
    sum += one.allocated;
    EXPECT_GE(one.allocated, summary.allocated.least);
    EXPECT_LE(one.allocated, summary.allocated.greatest);
  }
  EXPECT_NEAR(summary.allocated.mean, sum / 4, 1e-12);
  ASSERT_GT(summary.curve.size(), 100u);
  EXPECT_NEAR(summary.curve[50].demand, 0.5, 1e-9);
  EXPECT_NEAR(summary.curve[50].allocated.mean, 0.5, 0.03);
}

TEST(Simulate, RefusesWhatWouldNotEnd) {
  RunOptions options;
  options.policy = "default";
  for (const double target : {0.0, -1.0, 10.5, std::nan("")}) {
    options.target = target;
    EXPECT_FALSE(simulate(small_trace(), options)) << target;
  }
  options.target = 1.3;
  Trace idle = small_trace();
  std::erase_if(idle.tasks, [](const Task& task) { return task.gpus > 0; });
  const auto result = simulate(idle, options);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message(), "no task of the trace asks for a GPU");
  options.policy = "best";
  EXPECT_FALSE(simulate(small_trace(), options));
}

TEST(Simulate, TellsHowFarItIs) {
  RunOptions options;
  options.policy = "random";
  std::vector<double> told;
  options.progress = [&](double part) { told.push_back(part); };
  ASSERT_TRUE(simulate(small_trace(), options));
  ASSERT_GT(told.size(), 100u);
  EXPECT_TRUE(std::ranges::is_sorted(told));
  EXPECT_EQ(told.back(), 1);
}

// On the small trace as on the published ones: looking ahead beats filling, which beats chance.
TEST(Simulate, ThePoliciesKeepTheirOrderOnTheSmallTrace) {
  constexpr std::uint64_t kSeeds = 10;
  const double blend = mean_allocated(small_trace(), "default", kSeeds);
  const double fgd = mean_allocated(small_trace(), "fgd", kSeeds);
  const double bestfit = mean_allocated(small_trace(), "bestfit", kSeeds);
  const double random = mean_allocated(small_trace(), "random", kSeeds);
  EXPECT_GT(blend, fgd + 0.3);
  EXPECT_GT(fgd, bestfit + 1);
  EXPECT_GT(bestfit, random + 2);
}

}  // namespace
}  // namespace gpulet::scheduler

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "sim/schedule/test_generated_trace.h"
#include "sim/schedule/trace.h"

namespace gpulet::scheduler {
namespace {

constexpr const char* kNodesFile = "tests/traces/nodes.csv";
constexpr const char* kPodsFile = "tests/traces/pods.csv";

void expect_file_content(const std::string& file, const std::string& made) {
  if (std::getenv("UPDATE_GOLDEN") != nullptr) {
    ASSERT_TRUE(write_file_atomic(file, made));
  }
  const auto committed = read_file(file);
  ASSERT_TRUE(committed) << committed.error().full_message() << " (UPDATE_GOLDEN=1 writes it)";
  EXPECT_EQ(*committed, made) << file << " (UPDATE_GOLDEN=1 writes it)";
}

TEST(TraceSimulator, SmallTraceMatchesItsGenerator) {
  expect_file_content(kNodesFile, generated_trace::nodes_csv());
  expect_file_content(kPodsFile, generated_trace::pods_csv(generated_trace::kSeed));
}

const ClusterTrace& small_trace() {
  static const ClusterTrace trace = [] {
    auto read = read_trace(generated_trace::nodes_csv(), kNodesFile,
                           generated_trace::pods_csv(generated_trace::kSeed), kPodsFile);
    EXPECT_TRUE(read) << (read ? "" : read.error().full_message());
    return read ? std::move(*read) : ClusterTrace{};
  }();
  return trace;
}

TraceRunResult run_policy(const ClusterTrace& trace, const std::string& policy, std::uint64_t seed,
                          double target = 1.3) {
  TraceRunOptions options;
  options.policy = policy;
  options.seed = seed;
  options.target = target;
  auto result = replay_trace(trace, options);
  EXPECT_TRUE(result) << (result ? "" : result.error().full_message());
  return result ? std::move(*result) : TraceRunResult{};
}

double mean_allocated(const ClusterTrace& trace, const std::string& policy, std::uint64_t seeds) {
  std::vector<TraceRunResult> runs;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) runs.push_back(run_policy(trace, policy, seed));
  return 100 * summarize_runs(runs).allocated.mean;
}

// Replayed by hand: no node is ever overallocated.
TEST(TraceSimulator, NeverOverallocates) {
  const ClusterTrace& trace = small_trace();
  for (const std::string& policy : simulator_policy_names()) {
    const TraceRunResult result = run_policy(trace, policy, 3);
    struct Used {
      std::int64_t cpu = 0, memory = 0;
      std::array<unsigned, kMaxGpus> gpus{};
    };
    std::vector<Used> used(trace.nodes.size());
    std::int64_t allocated = 0;
    for (const PlacedTask& placed : result.placed) {
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
    EXPECT_NEAR(result.allocated,
                static_cast<double>(allocated) / static_cast<double>(trace.total_gpu_milli()), 1e-12);
    EXPECT_GT(result.placed.size(), 300u) << policy;
    EXPECT_GT(result.dropped, 10u) << policy << ": 130 % cannot all be placed";
  }
}

TEST(TraceSimulator, IsDeterministic) {
  const TraceRunResult once = run_policy(small_trace(), "default", 5);
  const TraceRunResult again = run_policy(small_trace(), "default", 5);
  const TraceRunResult other = run_policy(small_trace(), "default", 6);
  ASSERT_EQ(once.placed.size(), again.placed.size());
  for (std::size_t at = 0; at < once.placed.size(); ++at) {
    ASSERT_EQ(once.placed[at].node, again.placed[at].node);
    ASSERT_EQ(once.placed[at].gpus, again.placed[at].gpus);
  }
  EXPECT_NE(once.placed.front().task, other.placed.front().task);
}

TEST(TraceSimulator, CurveRises) {
  const TraceRunResult result = run_policy(small_trace(), "binpack", 1);
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

TEST(TraceSimulator, SummaryHasMeanLeastAndGreatest) {
  std::vector<TraceRunResult> runs;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) runs.push_back(run_policy(small_trace(), "default", seed));
  const PolicySummary summary = summarize_runs(runs);
  EXPECT_EQ(summary.runs, 4u);
  double sum = 0;
  for (const TraceRunResult& one : runs) {
    sum += one.allocated;
    EXPECT_GE(one.allocated, summary.allocated.least);
    EXPECT_LE(one.allocated, summary.allocated.greatest);
  }
  EXPECT_NEAR(summary.allocated.mean, sum / 4, 1e-12);
  ASSERT_GT(summary.curve.size(), 100u);
  EXPECT_NEAR(summary.curve[50].demand, 0.5, 1e-9);
  EXPECT_NEAR(summary.curve[50].allocated.mean, 0.5, 0.03);
}

TEST(TraceSimulator, RejectsEndlessRuns) {
  TraceRunOptions options;
  options.policy = "default";
  for (const double target : {0.0, -1.0, 10.5, std::nan("")}) {
    options.target = target;
    EXPECT_FALSE(replay_trace(small_trace(), options)) << target;
  }
  options.target = 1.3;
  ClusterTrace idle = small_trace();
  std::erase_if(idle.tasks, [](const Task& task) { return task.gpus > 0; });
  const auto result = replay_trace(idle, options);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message(), "no task of the trace requests a GPU");
  options.policy = "best";
  EXPECT_FALSE(replay_trace(small_trace(), options));
}

TEST(TraceSimulator, ReportsProgress) {
  TraceRunOptions options;
  options.policy = "random";
  std::vector<double> reports;
  options.progress = [&](double part) { reports.push_back(part); };
  ASSERT_TRUE(replay_trace(small_trace(), options));
  ASSERT_GT(reports.size(), 100u);
  EXPECT_TRUE(std::ranges::is_sorted(reports));
  EXPECT_EQ(reports.back(), 1);
}

// On the small trace as on the published ones: looking ahead beats packing, which beats chance.
TEST(TraceSimulator, PoliciesKeepTheirOrder) {
  constexpr std::uint64_t kSeeds = 10;
  const double blend = mean_allocated(small_trace(), "default", kSeeds);
  const double fgd = mean_allocated(small_trace(), "fgd", kSeeds);
  const double bestfit = mean_allocated(small_trace(), "bestfit", kSeeds);
  const double random = mean_allocated(small_trace(), "random", kSeeds);
  EXPECT_GT(blend, fgd + 0.3);
  EXPECT_GT(fgd, bestfit + 1);
  EXPECT_GT(bestfit, random + 2);
}

using testing::HasSubstr;
using testing::Not;

PolicySummary sample_summary(const std::string& policy, double end, std::size_t runs, double target = 1.3) {
  PolicySummary summary;
  summary.policy = policy;
  summary.runs = runs;
  summary.allocated = {end, end - 0.01, end + 0.01};
  for (int step = 0; step <= 100 * target; ++step) {
    const double demand = 0.01 * step;
    const double share = std::min(demand, end);
    summary.curve.push_back({demand, {share, share - 0.01, share + 0.01}});
  }
  return summary;
}

std::size_t count_occurrences(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

TEST(AllocationPlot, DrawsLineBandAndLegendPerPolicy) {
  const std::string plot =
      draw_allocation_plot("two", {sample_summary("worse", 0.88, 10), sample_summary("better", 0.956, 10)});
  EXPECT_THAT(plot, testing::StartsWith("<svg xmlns="));
  EXPECT_THAT(plot, testing::EndsWith("</svg>\n"));
  EXPECT_EQ(count_occurrences(plot, "<polyline"), 4u) << "two panels";
  EXPECT_EQ(count_occurrences(plot, "<polygon"), 4u);
  EXPECT_THAT(plot, HasSubstr("worse  88.0 %"));
  EXPECT_LT(plot.find("better  95.6 %"), plot.find("worse  88.0 %")) << "the best first";
  for (const char* tag : {"g", "text", "svg", "clipPath", "title"}) {
    EXPECT_EQ(count_occurrences(plot, std::string("<") + tag + ">") +
                  count_occurrences(plot, std::string("<") + tag + " "),
              count_occurrences(plot, std::string("</") + tag + ">"))
        << tag;
  }
  EXPECT_THAT(plot, Not(HasSubstr("nan")));
  EXPECT_THAT(plot, Not(HasSubstr("inf")));
}

TEST(AllocationPlot, OneRunHasNoBand) {
  EXPECT_EQ(count_occurrences(draw_allocation_plot("one", {sample_summary("p", 0.9, 1)}), "<polygon"), 0u);
}

TEST(AllocationPlot, EscapesItsTitle) {
  const std::string plot = draw_allocation_plot("<a & \"b\">", {sample_summary("p", 0.9, 1)});
  EXPECT_THAT(plot, HasSubstr("&lt;a &amp; &quot;b&quot;&gt;"));
  EXPECT_THAT(plot, Not(HasSubstr("<a ")));
}

TEST(AllocationPlot, KeepsAPolicysColour) {
  const auto one = draw_allocation_plot("t", {sample_summary("a", 0.9, 1), sample_summary("b", 0.8, 1)});
  const auto other = draw_allocation_plot("t", {sample_summary("a", 0.8, 1), sample_summary("b", 0.9, 1)});
  const auto colour_of = [](const std::string& plot, const std::string& legend) {
    return plot.substr(plot.rfind("stroke=\"#", plot.find(legend)), 16);
  };
  EXPECT_EQ(colour_of(one, "a  90.0"), colour_of(other, "a  80.0"));
  EXPECT_NE(colour_of(one, "a  90.0"), colour_of(one, "b  80.0"));
}

TEST(AllocationPlot, FitsAnyTarget) {
  for (const double target : {0.1, 0.5, 0.9, 1.0, 4.0}) {
    const std::string plot =
        draw_allocation_plot("t", {sample_summary("p", std::min(0.9, target), 3, target)});
    EXPECT_THAT(plot, Not(HasSubstr("nan"))) << target;
    EXPECT_THAT(plot, Not(HasSubstr("inf"))) << target;
    EXPECT_LT(plot.size(), 100'000u) << target;
  }
}

}  // namespace
}  // namespace gpulet::scheduler

#include "scheduler/simulate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace gpulet::scheduler {
namespace {

constexpr double kCurveStep = 0.01;

// Tasks in random order, each once before any comes twice.
class Draw {
 public:
  Draw(std::size_t count, std::mt19937_64& random) : order_(count), random_(random) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
  }
  std::size_t next() {
    // By hand: what std::shuffle does with a seed is each library's own affair.
    if (at_ == order_.size()) at_ = 0;
    std::swap(order_[at_], order_[at_ + random_() % (order_.size() - at_)]);
    return order_[at_++];
  }

 private:
  std::vector<std::size_t> order_;
  std::size_t at_ = 0;
  std::mt19937_64& random_;
};

}  // namespace

Result<RunResult> simulate(const Trace& trace, const RunOptions& options) {
  PolicyContext context;
  context.workload = Workload::of(trace.tasks);
  GPULET_TRY_ASSIGN(const std::shared_ptr<Policy> policy, simulator_policy_named(options.policy, context));
  if (!(options.target > 0 && options.target <= kMaxTarget)) {
    return fail(Code::kInvalidArgument, "the target is " + std::to_string(options.target) +
                                            ", want more than 0 and at most " + std::to_string(kMaxTarget) +
                                            " times the cluster's GPUs");
  }
  if (std::ranges::all_of(trace.tasks, [](const Task& task) { return task.gpus == 0; })) {
    return fail(Code::kInvalidArgument, "no task of the trace asks for a GPU");
  }
  NodeTable table;
  for (const NodeState& node : trace.nodes) table.add(node);
  std::mt19937_64 random(options.seed);
  Draw draw(trace.tasks.size(), random);
  const auto capacity = static_cast<double>(trace.gpu_milli());
  RunResult result;
  result.policy = policy->name();
  result.seed = options.seed;
  std::int64_t demand = 0;
  std::int64_t allocated = 0;
  const auto share = [&](std::int64_t milli) { return static_cast<double>(milli) / capacity; };
  result.curve.push_back({0, 0});
  double next_point = kCurveStep;
  while (share(demand) < options.target) {
    const std::size_t drawn = draw.next();
    const Task& task = trace.tasks[drawn];
    demand += task.total_milli();
    if (const auto best = table.best(table.ask(policy, task), random)) {
      NodeState state = table.at(best->node);
      state.take(task, best->choice.gpus);
      table.update(best->node, state);
      allocated += task.total_milli();
      result.placed.push_back({static_cast<std::uint32_t>(drawn), best->node, best->choice.gpus});
    } else {
      ++result.dropped;
    }
    if (share(demand) <= 1) result.allocated_at_demand = share(allocated);
    if (share(demand) >= next_point || share(demand) >= options.target) {
      next_point = (std::floor(share(demand) / kCurveStep) + 1) * kCurveStep;
      result.curve.push_back({share(demand), share(allocated)});
      if (options.progress) options.progress(std::min(1.0, share(demand) / options.target));
    }
  }
  result.allocated = share(allocated);
  return result;
}

namespace {

template <class Value>
Spread spread(const std::vector<RunResult>& runs, const Value& value) {
  Spread found{0, value(runs.front()), value(runs.front())};
  for (const RunResult& run : runs) {
    found.mean += value(run) / static_cast<double>(runs.size());
    found.least = std::min(found.least, value(run));
    found.greatest = std::max(found.greatest, value(run));
  }
  return found;
}

// Between the two points about `demand`.
double allocated_at(const std::vector<Point>& curve, double demand) {
  const auto next = std::ranges::lower_bound(curve, demand, {}, &Point::demand);
  if (next == curve.end()) return curve.back().allocated;
  if (next == curve.begin()) return next->allocated;
  const Point& before = *(next - 1);
  const double part = (demand - before.demand) / (next->demand - before.demand);
  return before.allocated + part * (next->allocated - before.allocated);
}

}  // namespace

Summary summarize(const std::vector<RunResult>& runs) {
  Summary summary;
  summary.policy = runs.front().policy;
  summary.runs = runs.size();
  summary.allocated = spread(runs, [](const RunResult& run) { return run.allocated; });
  summary.allocated_at_demand = spread(runs, [](const RunResult& run) { return run.allocated_at_demand; });
  summary.placed =
      spread(runs, [](const RunResult& run) { return static_cast<double>(run.placed.size()); }).mean;
  summary.dropped = spread(runs, [](const RunResult& run) { return static_cast<double>(run.dropped); }).mean;
  double end = runs.front().curve.back().demand;
  for (const RunResult& run : runs) end = std::min(end, run.curve.back().demand);
  const auto steps = static_cast<std::size_t>(std::floor(end / kCurveStep + 1e-9));
  for (std::size_t step = 0; step <= steps; ++step) {
    const double demand = static_cast<double>(step) * kCurveStep;
    summary.curve.push_back(
        {demand, spread(runs, [&](const RunResult& run) { return allocated_at(run.curve, demand); })});
  }
  return summary;
}

}  // namespace gpulet::scheduler

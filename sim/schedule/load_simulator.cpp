#include "sim/schedule/load_simulator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numbers>
#include <queue>
#include <random>
#include <vector>

#include "scheduler/core/node_table.h"
#include "scheduler/core/policy.h"
#include "scheduler/load/forecast.h"
#include "scheduler/load/rebalance.h"

namespace gpulet::scheduler {
namespace {

constexpr std::int64_t kMinute = 60, kHour = 3600, kDay = 24 * kHour;
constexpr std::int64_t kStep = 5 * kMinute;
constexpr std::int64_t kPublish = 30 * kMinute;
// A Thursday, as the first day of Unix time.
constexpr std::int64_t kStart = 1'767'225'600;
constexpr double kHot = 95;
// Shares of the cluster's GPUs that services and batch jobs request.
constexpr double kServices = 0.70, kBatch = 0.08;
constexpr double kServiceLife = 4.0 * kDay;      // mean time until a replica is placed again
constexpr std::int64_t kRestart = kStep;         // time between two placements
constexpr std::int64_t kMoveDown = 5 * kMinute;  // of a moved task: its Pod ends, another loads its model
// Of which a GPU has a thousand.
constexpr const char* kShareResource = "share";

WallTime wall_time_at(std::int64_t now) { return WallTime(std::chrono::seconds(kStart + now)); }
Time time_at(std::int64_t now) { return Time(std::chrono::seconds(now)); }

// Not the library's distributions, whose results for a seed differ between libraries.
class RandomSource {
 public:
  explicit RandomSource(std::uint64_t seed) : random_(seed) {}
  double uniform(double from, double to) {
    return from + (to - from) * static_cast<double>(random_() >> 11) * 0x1.0p-53;
  }
  std::size_t below(std::size_t count) { return random_() % count; }
  double exponential(double mean) { return -mean * std::log1p(-uniform(0, 1)); }
  std::mt19937_64& engine() { return random_; }

 private:
  std::mt19937_64 random_;
};

// The load of one task, in percent of the GPU.
struct UsageProfile {
  double low = 0, high = 0, peak_hour = 0, weekend = 1, noise = 0;

  double mean(std::int64_t second) const {
    const double hour = static_cast<double>(second % kDay) / kHour;
    const double wave = 0.5 + 0.5 * std::cos((hour - peak_hour) / 12 * std::numbers::pi);
    const double value = low + (high - low) * wave * wave;
    // 1970 began on a Thursday.
    return (second / kDay + 3) % 7 >= 5 ? weekend * value : value;
  }
};

// A future task: the same for every policy, whenever it is placed.
struct Arrival {
  std::int64_t when = 0;
  std::uint32_t kind = 0;  // in LoadSimulation::kinds_
  bool service = false;
  std::int64_t life = 0;                     // of a batch job, or what is left of a moved task's
  std::optional<std::int64_t> down_since{};  // of a moved task
  friend bool operator>(const Arrival& a, const Arrival& b) {
    return a.when != b.when ? a.when > b.when : a.kind > b.kind;
  }
};

struct TaskKind {
  Task task;  // with the load learnt from its last replica
  UsageProfile use;
};

struct RunningTask {
  std::uint32_t kind = 0;
  bool service = false;
  std::int64_t since = 0;
  std::int64_t until = 0;
  Forecast forecast;
  double busy = 0;  // percent of the GPU, as last measured
};

struct SimulatedGpu {
  std::vector<RunningTask> running;
  std::size_t hot_steps = 0;
  double busy = 0;  // percent, as last measured
};

class LoadSimulation {
 public:
  LoadSimulation(const LoadRunOptions& options,
                 std::shared_ptr<Policy> (*make)(const LoadRunOptions&, const Workload&))
      : options_(options),
        shape_(options.seed * 4 + 1),
        life_(options.seed * 4 + 2),
        noise_(options.seed * 4 + 3),
        ties_(options.seed * 4),
        gpus_(std::size_t{options.nodes} * options.gpus),
        rebalancers_(options.rebalance ? options.nodes : 0) {
    rebalance_policy_.enabled = options.rebalance;
    add_services();
    add_batch_jobs();
    std::vector<Task> tasks;
    for (const TaskKind& kind : kinds_) tasks.push_back(kind.task);
    policy_ = make(options, Workload::from_tasks(tasks));
    for (unsigned node = 0; node < options.nodes; ++node) {
      NodeState state;
      state.gpus = static_cast<std::uint8_t>(options.gpus);
      std::fill_n(state.free.begin(), options.gpus, static_cast<std::uint16_t>(kWhole));
      table_.add_node(state);
    }
  }

  LoadRunResult run_simulation() {
    const std::int64_t end = std::int64_t{options_.days} * kDay;
    for (std::int64_t now = 0; now < end; now += kStep) {
      remove_finished(now);
      if (now % kPublish == 0) publish_forecasts(now);
      while (!arrivals_.empty() && arrivals_.top().when <= now) {
        const Arrival arrival = arrivals_.top();
        arrivals_.pop();
        place_task(arrival, now);
      }
      measure_usage(now);
      for (NodeTable::Node node = 0; node < rebalancers_.size(); ++node) rebalance_node(node, now);
      if (options_.progress && (now + kStep) % kDay == 0) {
        options_.progress(static_cast<double>(now + kStep) / static_cast<double>(end));
      }
    }
    return make_result();
  }

 private:
  void add_services();
  void add_batch_jobs();
  void remove_finished(std::int64_t now);
  void publish_forecasts(std::int64_t now);
  void place_task(const Arrival& arrival, std::int64_t now);
  void measure_usage(std::int64_t now);
  void rebalance_node(NodeTable::Node node, std::int64_t now);
  RebalanceGpu make_rebalance_gpu(NodeTable::Node node, unsigned gpu, std::int64_t now) const;
  void move_task(NodeTable::Node node, unsigned gpu, std::size_t running, std::int64_t now);
  void end_task(NodeState& state, unsigned gpu, const RunningTask& task, std::int64_t now);
  static LoadCurve summed_forecasts(const SimulatedGpu& on, std::int64_t now);
  LoadRunResult make_result() const;

  std::size_t gpu_index(NodeTable::Node node, unsigned gpu) const {
    return std::size_t{node} * options_.gpus + gpu;
  }
  double capacity() const { return static_cast<double>(gpus_.size()) * kWhole; }

  const LoadRunOptions& options_;
  // One generator per purpose, so that a policy's draws do not change the workload.
  RandomSource shape_, life_, noise_, ties_;
  std::vector<TaskKind> kinds_;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
  std::vector<SimulatedGpu> gpus_;
  NodeTable table_;
  std::shared_ptr<Policy> policy_;
  RebalancePolicy rebalance_policy_;
  struct NodeRebalancer {
    Rebalancer rebalancer;
    std::int64_t gone_at = 0;  // when the Pod of the last move has gone
  };
  std::vector<NodeRebalancer> rebalancers_;  // by node; empty: none

  std::size_t steps_ = 0, hot_ = 0, placements_ = 0, refused_ = 0, moves_ = 0;
  double busy_ = 0, wanted_ = 0, unserved_ = 0, held_ = 0, restarting_ = 0;
};

void LoadSimulation::add_services() {
  constexpr std::array<double, 7> kShares = {100, 150, 200, 250, 300, 400, 500};
  constexpr std::array<double, 3> kPeaks = {2, 9, 17};
  double requested = 0;
  while (requested < kServices * capacity()) {
    TaskKind kind;
    const double share = kShares[shape_.below(kShares.size())];
    kind.task.gpus = 1;
    kind.task.gpu_milli = static_cast<std::uint16_t>(share);
    // At its peak a service uses between half and almost twice its request, because people guess shares.
    kind.use.high = share / 10 * shape_.uniform(0.5, 1.9);
    kind.use.low = kind.use.high * shape_.uniform(0.05, 0.3);
    kind.use.peak_hour = kPeaks[shape_.below(kPeaks.size())] + shape_.uniform(-2, 2);
    kind.use.weekend = shape_.uniform(0.4, 1);
    kind.use.noise = 0.1;
    kinds_.push_back(kind);
    for (std::size_t replicas = 1 + shape_.below(6); replicas > 0 && requested < kServices * capacity();
         --replicas) {
      requested += share;
      arrivals_.push({static_cast<std::int64_t>(shape_.uniform(0, kHour)),
                      static_cast<std::uint32_t>(kinds_.size() - 1), true, 0});
    }
  }
}

void LoadSimulation::add_batch_jobs() {
  constexpr std::array<double, 4> kShares = {100, 150, 200, 300};
  constexpr double kMeanShare = 187.5, kMeanLife = 3.5 * kHour;
  const double each = kMeanLife * kMeanShare / (kBatch * capacity());  // mean time between two
  const std::int64_t end = std::int64_t{options_.days} * kDay;
  for (double when = 0; when < static_cast<double>(end); when += shape_.exponential(each)) {
    TaskKind kind;
    const double share = kShares[shape_.below(kShares.size())];
    kind.task.gpus = 1;
    kind.task.gpu_milli = static_cast<std::uint16_t>(share);
    kind.use.low = kind.use.high = share / 10 * shape_.uniform(0.6, 1.2);
    kind.use.noise = 0.3;
    kinds_.push_back(kind);
    arrivals_.push({static_cast<std::int64_t>(when), static_cast<std::uint32_t>(kinds_.size() - 1), false,
                    static_cast<std::int64_t>(shape_.uniform(kHour, 6 * kHour))});
  }
}

void LoadSimulation::remove_finished(std::int64_t now) {
  for (NodeTable::Node node = 0; node < options_.nodes; ++node) {
    for (unsigned gpu = 0; gpu < options_.gpus; ++gpu) {
      SimulatedGpu& on = gpus_[gpu_index(node, gpu)];
      if (std::ranges::none_of(on.running, [&](const RunningTask& task) { return task.until <= now; }))
        continue;
      NodeState state = table_.state_of(node);
      for (const RunningTask& task : on.running) {
        if (task.until > now) continue;
        end_task(state, gpu, task, now);
        if (task.service) arrivals_.push({now + kRestart, task.kind, true, 0});
      }
      std::erase_if(on.running, [&](const RunningTask& task) { return task.until <= now; });
      table_.update_node(node, state);
    }
  }
}

// Frees what the task holds, and remembers its service's load.
void LoadSimulation::end_task(NodeState& state, unsigned gpu, const RunningTask& task, std::int64_t now) {
  state.free[gpu] = static_cast<std::uint16_t>(state.free[gpu] + kinds_[task.kind].task.gpu_milli);
  if (options_.known_services && task.service && now - task.since >= kDay)
    kinds_[task.kind].task.load = task.forecast.daily_curve(wall_time_at(now));
}

// What an agent publishes for a GPU: the sum of its tasks' forecasts.
LoadCurve LoadSimulation::summed_forecasts(const SimulatedGpu& on, std::int64_t now) {
  LoadCurve load;
  for (const RunningTask& task : on.running) load = load + task.forecast.daily_curve(wall_time_at(now));
  return load;
}

void LoadSimulation::publish_forecasts(std::int64_t now) {
  for (NodeTable::Node node = 0; node < options_.nodes; ++node) {
    NodeState state = table_.state_of(node);
    for (unsigned gpu = 0; gpu < options_.gpus; ++gpu)
      state.load[gpu] = summed_forecasts(gpus_[gpu_index(node, gpu)], now);
    table_.update_node(node, state);
  }
}

void LoadSimulation::place_task(const Arrival& arrival, std::int64_t now) {
  const Task& task = kinds_[arrival.kind].task;
  const auto best = table_.best_node(table_.find_query(policy_, task), ties_.engine());
  // Drawn in order of arrival, whether or not the task can be placed.
  const bool is_new_service = arrival.service && !arrival.down_since;
  const double life = is_new_service ? life_.exponential(kServiceLife) : static_cast<double>(arrival.life);
  if (!best) {
    ++refused_;
    Arrival again = arrival;
    again.when = now + kHour;
    if (arrival.service || arrival.down_since) arrivals_.push(again);
    return;
  }
  ++placements_;
  if (arrival.down_since && now >= kDay) {
    for (std::int64_t at = *arrival.down_since; at < now; at += kStep)
      restarting_ += kinds_[arrival.kind].use.mean(kStart + at);
  }
  NodeState state = table_.state_of(best->node);
  state.allocate_task(task, best->choice.gpus);
  state.add_load(best->choice.gpus, expected_load(task));
  table_.update_node(best->node, state);
  SimulatedGpu& on = gpus_[gpu_index(best->node, static_cast<unsigned>(std::countr_zero(best->choice.gpus)))];
  on.running.push_back({arrival.kind, arrival.service, now, now + static_cast<std::int64_t>(life),
                        Forecast(expected_load(task))});
}

void LoadSimulation::move_task(NodeTable::Node node, unsigned gpu, std::size_t running, std::int64_t now) {
  SimulatedGpu& on = gpus_[gpu_index(node, gpu)];
  const RunningTask& task = on.running[running];
  NodeState state = table_.state_of(node);
  end_task(state, gpu, task, now);
  // This step has been measured: the task is down from the next on.
  const std::int64_t down_since = now + kStep;
  arrivals_.push({down_since + kMoveDown, task.kind, task.service, task.until - now, down_since});
  on.running.erase(on.running.begin() + static_cast<std::ptrdiff_t>(running));
  state.load[gpu] = summed_forecasts(on, now);
  table_.update_node(node, state);
  ++moves_;
}

RebalanceGpu LoadSimulation::make_rebalance_gpu(NodeTable::Node node, unsigned gpu, std::int64_t now) const {
  const SimulatedGpu& on = gpus_[gpu_index(node, gpu)];
  RebalanceGpu view;
  view.gpu = std::to_string(gpu);
  view.busy = on.busy;
  view.free[kShareResource] = table_.state_of(node).free[gpu];
  const WallTime later = wall_time_at(now) + rebalance_policy_.horizon;
  double sum = 0;
  bool is_known = !on.running.empty();
  for (const RunningTask& task : on.running) {
    RebalancePod pod;
    pod.pod = std::to_string(task.kind);
    pod.priority = task.service ? 1 : 0;
    pod.created = task.since;
    pod.resource = kShareResource;
    pod.shares = kinds_[task.kind].task.gpu_milli;
    pod.busy = task.busy;
    pod.day = task.forecast.daily_curve(wall_time_at(now));
    view.day = view.day + pod.day;
    sum += task.forecast.busy_at(later);
    is_known = is_known && task.forecast.whole_hours() > 0;
    view.pods.push_back(std::move(pod));
  }
  if (is_known) view.later = sum;
  return view;
}

void LoadSimulation::rebalance_node(NodeTable::Node node, std::int64_t now) {
  auto& [rebalancer, gone_at] = rebalancers_[node];
  if (rebalancer.is_moving() && now >= gone_at) rebalancer.on_move_ended(time_at(now));
  bool is_due = false;
  for (unsigned gpu = 0; gpu < options_.gpus; ++gpu) {
    const std::string name = std::to_string(gpu);
    rebalancer.add_sample(name, gpus_[gpu_index(node, gpu)].busy, rebalance_policy_, time_at(now));
    is_due = is_due || rebalancer.is_due(name, rebalance_policy_, time_at(now));
  }
  if (!is_due || rebalancer.is_moving()) return;
  std::vector<RebalanceGpu> views;
  for (unsigned gpu = 0; gpu < options_.gpus; ++gpu) views.push_back(make_rebalance_gpu(node, gpu, now));
  const auto decision = rebalancer.decide(views, rebalance_policy_, time_at(now));
  if (!decision.move) return;
  rebalancer.on_move_started();
  gone_at = now + kStep;
  move_task(node, static_cast<unsigned>(decision.move->gpu), decision.move->pod, now);
}

void LoadSimulation::measure_usage(std::int64_t now) {
  const std::int64_t second = kStart + now;
  const bool counts = now >= kDay;
  std::vector<double> loads;
  for (SimulatedGpu& gpu : gpus_) {
    loads.clear();
    double total = 0;
    for (const RunningTask& task : gpu.running) {
      const UsageProfile& use = kinds_[task.kind].use;
      loads.push_back(use.mean(second) * (1 + noise_.uniform(-1, 1) * std::numbers::sqrt3 * use.noise));
      total += loads.back();
      if (counts) held_ += kinds_[task.kind].task.gpu_milli;
    }
    // On an overloaded GPU each task gets its part, and only that is measured.
    const double served = total > 100 ? 100 / total : 1;
    for (std::size_t at = 0; at < loads.size(); ++at) {
      gpu.running[at].busy = served * loads[at];
      gpu.running[at].forecast.add_load_sample(wall_time_at(now), served * loads[at], 0);
    }
    const double busy = gpu.busy = served * total;
    if (!counts) continue;
    ++steps_;
    busy_ += busy;
    wanted_ += total;
    unserved_ += total - busy;
    if (busy > kHot) {
      ++hot_;
      ++gpu.hot_steps;
    }
  }
}

LoadRunResult LoadSimulation::make_result() const {
  LoadRunResult result;
  result.policy = policy_->policy_name();
  result.seed = options_.seed;
  const auto steps = static_cast<double>(steps_);
  const double steps_each = steps / static_cast<double>(gpus_.size());
  result.above_95 = static_cast<double>(hot_) / steps;
  for (const SimulatedGpu& gpu : gpus_)
    result.hottest = std::max(result.hottest, static_cast<double>(gpu.hot_steps) / steps_each);
  result.unserved = unserved_ / wanted_;
  result.mean_busy = busy_ / steps / 100;
  result.allocated = held_ / steps / kWhole;
  result.placements = placements_;
  result.refused = refused_;
  result.moves = moves_;
  result.restarting = restarting_ / wanted_;
  return result;
}

Error out_of_range_error(const char* what, unsigned found, unsigned least, unsigned most) {
  return Error(Code::kInvalidArgument, "the number of " + std::string(what) + " is " + std::to_string(found) +
                                           ", expected " + std::to_string(least) + " to " +
                                           std::to_string(most));
}

}  // namespace

Result<LoadRunResult> simulate_load(const LoadRunOptions& options) {
  GPULET_TRY(make_simulator_policy(options.policy, {}));
  if (options.nodes < 1 || options.nodes > kMaxLoadNodes) {
    return fail(out_of_range_error("nodes", options.nodes, 1, kMaxLoadNodes));
  }
  if (options.gpus < 1 || options.gpus > kMaxGpus)
    return fail(out_of_range_error("GPUs", options.gpus, 1, kMaxGpus));
  if (options.days < 2 || options.days > kMaxLoadDays) {
    return fail(out_of_range_error("days", options.days, 2, kMaxLoadDays));
  }
  LoadSimulation world(options, [](const LoadRunOptions& chosen, const Workload& workload) {
    return *make_simulator_policy(chosen.policy, {workload});  // the name was checked
  });
  return world.run_simulation();
}

}  // namespace gpulet::scheduler

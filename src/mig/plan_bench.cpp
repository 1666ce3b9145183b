// The cost of a plan: from every layout of a board to every other one, applied before, with nothing
// in use and with half of it in use; and the cost of refusing. Limit: 1 ms each.
#include <benchmark/benchmark.h>

#include <chrono>

#include "mig/layout.h"
#include "mig/plan.h"
#include "mig/test_states.h"

namespace gpulet::mig {
namespace {

struct Pair {
  State from;
  Layout to;
};

State reached(const std::string& machine_name, const Layout& layout, bool held) {
  const auto machine = states::test_machine(machine_name);
  sim::Gpu& gpu = machine->gpus[0];
  states::set_mig_mode(gpu);
  if (const auto made = make_plan(states::state_of(gpu), layout)) states::carry_out(gpu, *made);
  states::set_mig_mode(gpu, layout.enabled);
  State state = states::state_of(gpu);
  for (std::size_t i = 0; held && i < state.instances.size(); i += 2)
    state.instances[i].holders = {"process 1"};
  return state;
}

std::vector<Pair> pairs(const std::string& machine_name, bool held) {
  std::vector<Pair> all;
  const auto layouts = derive_layouts(states::state_of(states::test_machine(machine_name)->gpus[0]));
  for (const auto& from : layouts) {
    const State state = reached(machine_name, from.layout, held);
    for (const auto& to : layouts) all.push_back({state, to.layout});
  }
  return all;
}

// One round is all pairs; `worst_us` is the slowest plan of the fastest rounds.
void every_pair(benchmark::State& bench, const std::string& machine_name, bool held) {
  using Clock = std::chrono::steady_clock;
  const auto all = pairs(machine_name, held);
  std::vector<double> best(all.size(), 1e9);
  for (auto step : bench) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto start = Clock::now();
      benchmark::DoNotOptimize(make_plan(all[i].from, all[i].to));
      best[i] = std::min(best[i], std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
  }
  bench.counters["pairs"] = static_cast<double>(all.size());
  bench.counters["worst_us"] = *std::ranges::max_element(best);
  bench.counters["each"] = benchmark::Counter(static_cast<double>(bench.iterations() * all.size()),
                                              benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// The maximum of every profile, or of every smaller compute instance too: the search for the
// nearest layout covers all of them.
void report_refused(benchmark::State& bench, const std::string& machine_name, bool parts) {
  const State state = reached(machine_name, {true, {}}, false);
  Layout layout{true, {}};
  for (const auto& profile : state.profiles) {
    for (const auto& compute : profile.compute) {
      const bool whole = compute.slices == profile.slices;
      if (parts || whole) {
        layout.devices[device_name(profile, compute.slices)] =
            profile.max_instances * profile.slices / compute.slices;
      }
    }
  }
  for (auto step : bench) benchmark::DoNotOptimize(make_plan(state, layout));
}

const int kRegistered = [] {
  for (const auto& name : states::machines_with_mig()) {
    benchmark::RegisterBenchmark(("every_pair/" + name).c_str(), every_pair, name, false)
        ->Unit(benchmark::kMicrosecond);
    benchmark::RegisterBenchmark(("every_pair_in_use/" + name).c_str(), every_pair, name, true)
        ->Unit(benchmark::kMicrosecond);
    benchmark::RegisterBenchmark(("refuse/" + name).c_str(), report_refused, name, false)
        ->Unit(benchmark::kMicrosecond);
    benchmark::RegisterBenchmark(("refuse_parts/" + name).c_str(), report_refused, name, true)
        ->Unit(benchmark::kMicrosecond);
  }
  return 0;
}();

}  // namespace
}  // namespace gpulet::mig

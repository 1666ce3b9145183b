// Cost of one GetPreferredAllocation by size, and of building a chooser. Limits: 0.3 ms for 8 GPUs, 1 ms for
// 16 at the worst size, 50 ms to build (docs/placement.md has the figures).
#include <benchmark/benchmark.h>

#include <random>

#include "placement/chooser.h"
#include "placement/test_machines.h"

namespace gpulet::placement {
namespace {

enum Machine : std::int64_t {
  kDirect8,
  kSwitched8,
  kPcie8,
  kDirect16,
  kSwitched16,
  kDgx2,
  kSwitched64,
  kAllDifferent64,
};

topology::Topology topology_of(std::int64_t machine) {
  std::mt19937 random(1);
  switch (machine) {
    case kDirect8:
      return machines::dgx1();
    case kSwitched8:
      return machines::nvswitch(8, 18);
    case kPcie8:
      return machines::pcie(8, 4, true);
    case kDirect16:
      return machines::direct16();
    case kSwitched16:
      return machines::nvswitch(16, 18);
    case kDgx2:
      return machines::nvswitch(16, 6, true);
    case kSwitched64:
      return machines::nvswitch(64, 18);
    default:
      return machines::random(64, 400, random);
  }
}

const char* label_of(std::int64_t machine) {
  constexpr const char* kLabels[] = {"8 direct",    "8 NVSwitch",      "8 PCIe",
                                     "16 direct",   "16 NVSwitch",     "16 NVSwitch in pairs",
                                     "64 NVSwitch", "64 all different"};
  return kLabels[machine];
}

void choose(benchmark::State& state, Policy policy) {
  const topology::Topology topology = topology_of(state.range(0));
  const std::vector<Device> devices = machines::devices(topology.size);
  const auto chooser = Chooser::build_chooser(topology, devices, {policy, SharedPolicy::kDistributed});
  const std::vector<DeviceId> available = machines::ids(devices);
  for ([[maybe_unused]] const auto step : state) {
    benchmark::DoNotOptimize(
        chooser->choose_devices(available, {}, static_cast<std::size_t>(state.range(1))));
  }
  state.SetLabel(label_of(state.range(0)));
}
void best_effort(benchmark::State& state) { choose(state, Policy::kBestEffort); }
void tightest(benchmark::State& state) { choose(state, Policy::kTightest); }

void every_size(benchmark::internal::Benchmark* bench) {
  for (const Machine machine : {kDirect8, kSwitched8, kPcie8, kDirect16, kSwitched16, kDgx2}) {
    const std::int64_t gpus = machine <= kPcie8 ? 8 : 16;
    for (std::int64_t size = 1; size <= gpus; ++size) bench->Args({machine, size});
  }
  for (const Machine machine : {kSwitched64, kAllDifferent64}) {
    for (const std::int64_t size : {1, 2, 4, 8, 16, 32, 63}) bench->Args({machine, size});
  }
  bench->Unit(benchmark::kMicrosecond);
}
BENCHMARK(best_effort)->Apply(every_size);
BENCHMARK(tightest)->Apply(every_size);

// `range(0)` available of twice as many that are all different: tables are built during the request while
// they fit.
void partly(benchmark::State& state) {
  std::mt19937 random(1);
  const auto count = static_cast<std::size_t>(state.range(0));
  const std::vector<Device> devices = machines::devices(2 * count);
  const auto chooser = Chooser::build_chooser(machines::random(2 * count, 400, random), devices, {});
  std::vector<DeviceId> available = machines::ids(devices);
  available.resize(count);
  Method method = Method::kShared;
  for ([[maybe_unused]] const auto step : state) {
    const auto choice = chooser->choose_devices(available, {}, static_cast<std::size_t>(state.range(1)));
    method = choice->method;
    benchmark::DoNotOptimize(choice);
  }
  state.SetLabel(std::string(method_name(method)));
}
BENCHMARK(partly)->ArgsProduct({{10, 11, 12, 13, 64}, {2, 3, 4, 5, 6}})->Unit(benchmark::kMicrosecond);

void make(benchmark::State& state) {
  const topology::Topology topology = topology_of(state.range(0));
  const std::vector<Device> devices = machines::devices(topology.size);
  for ([[maybe_unused]] const auto step : state)
    benchmark::DoNotOptimize(Chooser::build_chooser(topology, devices, {}));
  state.SetLabel(label_of(state.range(0)));
}
BENCHMARK(make)->DenseRange(kDirect8, kAllDifferent64)->Unit(benchmark::kMicrosecond);

// 8 GPUs (16 for 4096) in shares: all available, `range(1)` requested.
void shares(benchmark::State& state) {
  const auto total = static_cast<std::size_t>(state.range(0));
  const std::size_t gpus = total > 1024 ? 16 : 8;
  const std::vector<Device> devices = machines::devices(gpus, total / gpus);
  const auto chooser = Chooser::build_chooser(machines::nvswitch(gpus, 18), devices, {});
  const std::vector<DeviceId> available = machines::ids(devices);
  for ([[maybe_unused]] const auto step : state) {
    benchmark::DoNotOptimize(
        chooser->choose_devices(available, {}, static_cast<std::size_t>(state.range(1))));
  }
}
BENCHMARK(shares)
    ->Args({64, 1})
    ->Args({384, 1})
    ->Args({384, 8})
    ->Args({384, 384})
    ->Args({4096, 1})
    ->Args({4096, 64})
    ->Args({4096, 4096})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace gpulet::placement

// Cost of a page: at most 2 ms for 8 GPUs shared by 30 Pods, 5 ms for 56 MIG devices held by 56 Pods. A page
// is rendered at most once per sample, when it is scraped, and served to all scrapes until the next.
#include <benchmark/benchmark.h>

#include "metrics/aggregator.h"

namespace gpulet::metrics {
namespace {

std::uint64_t whole(std::uint64_t value) { return value; }

Values values_of(bool instance) {
  Values values;
  for (const auto& counter : default_counters().all) {
    if (instance && !field_info(counter.field).of_instance) continue;
    if (counter.type == Type::kLabel) {
      values[counter.field] = "570.124.06";
    } else if (counter.name.find("_PROF_") != std::string::npos) {
      values[counter.field] = 0.123456;
    } else {
      values[counter.field] = whole(12345);
    }
  }
  return values;
}

// 8 GPUs, each of `instances` MIG devices or shared by Pods in turn.
void page(benchmark::State& state, unsigned instances, unsigned pods) {
  auto snapshot = std::make_shared<inventory::Snapshot>();
  Sample sample;
  Aggregator::PodContext held;
  const auto pod = [](unsigned i) {
    return PodName{"namespace-" + std::to_string(i % 7), "pod-" + std::to_string(i)};
  };
  for (unsigned i = 0; i < 8; ++i) {
    GpuSample gpu;
    gpu.index = i;
    gpu.uuid = DeviceUuid("GPU-20cc1717-0cbf-4a52-b5e2-df77121b095" + std::to_string(i));
    gpu.pci_bus_id = "00000000:1B:00.0";
    gpu.model = "NVIDIA H100 80GB HBM3";
    gpu.values = values_of(false);
    gpu.mig = instances > 0;
    inventory::Gpu known;
    known.index = i;
    known.uuid = gpu.uuid;
    for (unsigned j = 0; j < instances; ++j) {
      const DeviceUuid uuid("MIG-" + std::to_string(i) + "-" + std::to_string(j));
      gpu.instances.push_back(
          {j, "1g.10gb", values_of(true), {}, {}, {{uuid, 0, {{i * 100 + j, mebibytes(5), 0}}}}});
      held.holders[uuid] = {{pod(i * instances + j), {"main"}, {}}};
      inventory::MigDevice mig;
      mig.uuid = uuid;
      known.mig_devices.push_back(mig);
    }
    sample.gpus.push_back(gpu);
    snapshot->gpus.push_back(known);
  }
  for (unsigned i = 0; instances == 0 && i < pods; ++i) {
    auto& gpu = sample.gpus[i % 8];
    gpu.processes.push_back({i + 1, mebibytes(5), 3});
    held.processes[i + 1] = pod(i);
    held.holders[gpu.uuid].push_back({pod(i), {"main"}, {std::to_string(i / 8)}});
  }
  Aggregator meter;
  Time now{};
  std::size_t bytes = 0;
  for (auto _ : state) {
    meter.ingest_sample(snapshot, sample, held, now += std::chrono::seconds(15));
    Exposition page;
    meter.add_metrics_to(page);
    const auto text = page.text_format();
    benchmark::DoNotOptimize(bytes = text.size());
  }
  state.counters["bytes"] = static_cast<double>(bytes);
}
void shared_by_30_pods(benchmark::State& state) { page(state, 0, 30); }
void mig_56_devices(benchmark::State& state) { page(state, 7, 56); }
BENCHMARK(shared_by_30_pods)->Unit(benchmark::kMillisecond);
BENCHMARK(mig_56_devices)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gpulet::metrics

// What one piece of evidence costs: a storm of 10,000 XIDs a second may take 2 % of a core, so 2 µs each.
#include <benchmark/benchmark.h>

#include "health/state/test_feed.h"

namespace gpulet::health {
namespace {

void storm(benchmark::State& state, std::uint64_t code, Source source, unsigned pids) {
  HealthFeed feed;
  std::uint32_t pid = 0;
  for (auto _ : state) {
    feed.pass_time(std::chrono::microseconds(100));
    benchmark::DoNotOptimize(feed.add_xid(make_scope("GPU-0"), code, source, ++pid % pids));
  }
}
void fatal_xids(benchmark::State& state) { storm(state, 79, Source::kDriverEvents, 1); }
void application_xids(benchmark::State& state) { storm(state, 31, Source::kKernelLog, 2); }
void many_applications_xids(benchmark::State& state) { storm(state, 31, Source::kKernelLog, 1000); }
void good_polls(benchmark::State& state) {
  HealthFeed feed;
  for (auto _ : state) {
    feed.pass_time(seconds(1));
    benchmark::DoNotOptimize(feed.add_good_readings(make_scope("GPU-0")));
  }
}
BENCHMARK(fatal_xids);
BENCHMARK(application_xids);
BENCHMARK(many_applications_xids);
BENCHMARK(good_polls);

}  // namespace
}  // namespace gpulet::health

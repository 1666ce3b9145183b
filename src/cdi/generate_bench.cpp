// The cost of a node's document: eight GPUs and 56 MIG devices by index and uuid with `all`, and
// the search for the driver's files and device nodes. Limit: 20 ms in total.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <fstream>

#include "cdi/test_node.h"

namespace gpulet::cdi {
namespace {

void generate_and_write(benchmark::State& state, unsigned gpus, unsigned mig) {
  const TestNode node(gpus, mig);
  std::size_t bytes = 0;
  for (auto step : state) {
    const auto made = generate(node.snapshot, node.driver, node.files, {});
    bytes = to_json(made->spec).size();
  }
  state.counters["bytes"] = static_cast<double>(bytes);
}
BENCHMARK_CAPTURE(generate_and_write, two_gpus, 2u, 0u)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(generate_and_write, eight_gpus, 8u, 0u)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(generate_and_write, mig_devices_56, 8u, 8u)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(generate_and_write, gpus_8_and_mig_devices_56, 16u, 8u)->Unit(benchmark::kMicrosecond);

// Everything, from a driver root of 60 libraries on this machine's file system.
void scan_generate_and_write(benchmark::State& state) {
  const auto root = std::filesystem::temp_directory_path() / "gpulet-cdi-bench";
  const auto libraries = root / "usr/lib/x86_64-linux-gnu";
  std::filesystem::create_directories(libraries);
  for (const char* directory : {"proc", "sys", "dev", "usr/bin"})
    std::filesystem::create_directories(root / directory);
  std::ofstream(libraries / "libcuda.so.570.124.06") << "x";
  for (int i = 0; i < 60; ++i) {
    std::ofstream(libraries / ("libnvidia-" + std::to_string(i) + ".so.570.124.06")) << "x";
  }
  const TestNode node(16, 8);
  for (auto step : state) {
    const auto roots = open_roots({root, {}, root, {}, root / "proc", root / "sys"});
    const auto driver = find_driver_files(*roots, "570.124.06");
    auto files = DeviceFiles::scan_dev_root(*roots);
    benchmark::DoNotOptimize(collect_node_files(Mode::kNvml, *roots, files, node.snapshot));
    const auto made = generate(node.snapshot, *driver, node.files, {});
    benchmark::DoNotOptimize(to_json(made->spec));
  }
  std::filesystem::remove_all(root);
}
BENCHMARK(scan_generate_and_write)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace gpulet::cdi

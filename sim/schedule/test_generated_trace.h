// The generated trace of tests/traces: four kinds of nodes, and tasks that set policies apart: shares of
// many sizes, whole GPUs, sets of 2, 4 and 8, models, CPU-heavy tasks, tasks without GPUs.
#pragma once

#include <array>
#include <random>
#include <string>

namespace gpulet::scheduler::generated_trace {

inline constexpr std::uint64_t kSeed = 20231;

inline std::string nodes_csv() {
  struct Kind {
    int count;
    const char* rest;
  };
  constexpr std::array<Kind, 4> kKinds = {{{40, "96000,393216,8,A100"},
                                           {10, "128000,786432,8,H100"},
                                           {10, "32000,131072,4,L40S"},
                                           {80, "104000,524288,2,T4"}}};
  std::string text = "sn,cpu_milli,memory_mib,gpu,model\n";
  int number = 0;
  for (const Kind& kind : kKinds) {
    for (int at = 0; at < kind.count; ++at)
      text += "node-" + std::to_string(number++) + "," + kind.rest + "\n";
  }
  return text;
}

inline std::string pods_csv(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto one_of = [&](const auto& list) { return list[random() % list.size()]; };
  constexpr std::array<int, 12> kShares = {50, 100, 150, 200, 250, 300, 330, 400, 480, 500, 600, 750};
  constexpr std::array<int, 4> kCpuEach = {8000, 8000, 12000, 16000};
  constexpr std::array<const char*, 5> kModels = {"A100|H100", "H100", "T4", "L40S|T4", "A100"};
  std::string text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n";
  for (int at = 0; at < 900; ++at) {
    int gpus = 1;
    int milli = 1000;
    const auto kind = random() % 100;
    if (kind < 8) {
      gpus = 0;
    } else if (kind < 50) {
      milli = one_of(kShares);
    } else if (kind >= 95) {
      gpus = std::array{2, 4, 8}[random() % 3];
    }
    if (gpus == 0) milli = 0;
    const int cpu = gpus == 0 ? 8000 : std::max(1000, one_of(kCpuEach) * gpus * milli / 1000);
    const char* models = random() % 5 == 0 && gpus == 1 ? one_of(kModels) : "";
    text += "task-" + std::to_string(at) + "," + std::to_string(cpu) + "," + std::to_string(cpu * 4) + "," +
            std::to_string(gpus) + "," + std::to_string(milli) + "," + models + "\n";
  }
  return text;
}

}  // namespace gpulet::scheduler::generated_trace

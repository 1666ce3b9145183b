// `make bench`: the agent as a process on the simulated driver, called by the embedded kubelet over the real
// protocol. Prints one table; bench/README.md explains each row and its limit.
//
//   agent_bench BIN    BIN: the directory of gpulet and gpulet-sim, as built by `make build`
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "base/file.h"
#include "measure.h"
#include "process_usage.h"
#include "sim/demo/demo.h"
#include "warm_pages.h"

namespace gpulet::bench {
namespace {

using namespace std::chrono_literals;

constexpr const char* kGpu = "nvidia.com/gpu";
constexpr auto kPatience = 10s;
constexpr int kStarts = 20;
constexpr int kCalls = 200;
constexpr auto kSettle = 5s;
constexpr auto kIdle = 120s;

class Bench {
 public:
  explicit Bench(std::string bin) : bin_(std::move(bin)) {}

  void run() {
    double load[3] = {};
    static_cast<void>(::getloadavg(load, 3));
    std::printf("load %.2f, %u cores\n\n%-58s %6s %11s %11s %11s   %s\n", load[0],
                std::thread::hardware_concurrency(), "what", "count", "min", "p50", "p99", "bar");
    starts();
    steady();
    idle();
    for (const char* machine : {"dgx1-v100", "hgx-h100", "dgx2-v100"}) preferred_sizes(machine);
    replicas();
    config_changes();
    figure("gpulet's size",
           number(static_cast<double>(std::filesystem::file_size(bin_ + "/gpulet")) / 1e6, "MB"), "");
  }

 private:
  std::unique_ptr<sim::SimulatedNode> stage(const std::string& machine) {
    return must(sim::SimulatedNode::start_node(machine, bin_));
  }

  static void ready(sim::SimulatedNode& stage, const std::string& resource, std::size_t count) {
    must(stage.kubelet().wait_for_allocatable(resource, count, kPatience), "every device allocatable");
  }

  static Times calls(sim::SimulatedNode& stage, const std::string& call) {
    Times times;
    for (const auto& latency : stage.kubelet().kubelet_state().latencies) {
      if (latency.call == call) times.push_back(latency.took);
    }
    return times;
  }

  void starts() {
    auto stage = this->stage("hgx-h100");
    Times to_register, ends;
    for (int i = 0; i < kStarts; ++i) {
      const auto before = registrations(*stage);
      const auto start = Clock::now();
      must(stage->start_agent());
      must(stage->kubelet().wait_for([&](const auto& state) { return registrations_in(state) > before; },
                                     kPatience),
           "Register");
      to_register.push_back(Clock::now() - start);
      ready(*stage, kGpu, 8);
      ends.push_back(must(stage->stop_agent()));
    }
    row("start → Register (8 GPUs)", to_register, "≤ 8 ms");
    row("Register → first list", calls(*stage, "FirstList"), "");
    row("SIGTERM → exit", ends, "≤ 6 ms");
  }

  static std::uint64_t registrations_in(const sim::KubeletState& state) {
    std::uint64_t count = 0;
    for (const auto& [name, resource] : state.resources) count += resource.registrations;
    return count;
  }
  static std::uint64_t registrations(sim::SimulatedNode& stage) {
    return registrations_in(stage.kubelet().kubelet_state());
  }

  static Times admit(sim::SimulatedNode& stage, const std::string& resource, unsigned size,
                     const std::string& call, int count) {
    stage.kubelet().clear_latencies();
    for (int i = 0; i < count; ++i) {
      must(stage.kubelet().admit_pod(
          {.name = "pod", .uid = "pod", .containers = {{"main", {{resource, size}}}}}));
      must(stage.kubelet().remove_pod("pod"));
    }
    return calls(stage, call);
  }

  void steady() {
    auto stage = this->stage("hgx-h100");
    // How long a GPU must prove itself is a setting and no figure.
    must(stage->start_agent(
        {.arguments = {"--health-recovery-hold=0s", "--health-recovery-action-delay=0s"}}));
    ready(*stage, kGpu, 8);
    row("Allocate 1", admit(*stage, kGpu, 1, "Allocate", kCalls), "≤ 0.15 / 0.35–0.5 ms");
    row("Allocate 8", admit(*stage, kGpu, 8, "Allocate", kCalls), "≤ 0.15 / 0.35–0.5 ms");
    kubelet_back(*stage);
    faults(*stage);
  }

  static void kubelet_back(sim::SimulatedNode& stage) {
    Times times;
    for (int i = 0; i < kStarts; ++i) {
      stage.kubelet().stop_kubelet();
      const auto before = registrations(stage);
      const auto start = Clock::now();
      must(stage.kubelet().resume_kubelet());
      must(stage.kubelet().wait_for([&](const auto& state) { return registrations_in(state) > before; },
                                    kPatience),
           "Register after the kubelet is back");
      times.push_back(Clock::now() - start);
      ready(stage, kGpu, 8);
    }
    row("kubelet back → Register", times, "< 100 ms");
  }

  static void faults(sim::SimulatedNode& stage) {
    const auto [withdrawn, back] = fault_times(
        stage.driver_root(),
        [&] { must(stage.kubelet().wait_for_allocatable(kGpu, 7, kPatience), "7 devices left"); },
        [&] { ready(stage, kGpu, 8); }, kStarts);
    row("XID event → Unhealthy at the kubelet", withdrawn, "milliseconds");
    row("fault cleared → Healthy at the kubelet", back, "");
  }

  // An agent with its defaults that nothing has happened to. Two minutes hold several periods of each of its
  // timers, so that where the window begins does not matter.
  void idle() {
    auto stage = this->stage("hgx-h100");
    must(stage->start_agent());
    ready(*stage, kGpu, 8);
    const auto pass = [&](auto time) { stage->kubelet().wait_for([](const auto&) { return false; }, time); };
    pass(kSettle);
    // Before its pages are read: that brings in those of its files, too.
    const auto [resident, proportional] = memory_mb(stage->agent_id());
    const WarmPages warm(stage->agent_id());
    const auto before = usage_of(stage->agent_id());
    pass(kIdle);
    const auto after = usage_of(stage->agent_id());
    const double minutes = std::chrono::duration<double>(kIdle).count() / 60;
    figure("resident memory (driver's library included)", number(resident, "MB"), "≤ 20 MB");
    figure("resident memory, shared pages by share", number(proportional, "MB"), "");
    figure("threads, the listener child's included", std::to_string(after.threads), "");
    figure("idle CPU a minute, the child's included",
           number(sim::Milliseconds(after.cpu - before.cpu).count() / minutes, "ms"), "≤ 12 ms");
    figure("wake-ups a minute, the child's included",
           number(static_cast<double>(after.wake_ups - before.wake_ups) / minutes, ""), "");
  }

  void preferred_sizes(const std::string& machine) {
    auto stage = this->stage(machine);
    must(stage->start_agent());
    must(stage->kubelet().wait_for(
             [](const auto& state) {
               return state.resources.contains(kGpu) && !state.resources.at(kGpu).devices.empty();
             },
             kPatience),
         "a list of devices");
    const auto gpus =
        static_cast<unsigned>(stage->kubelet().kubelet_state().resources.at(kGpu).devices.size());
    for (unsigned size = 1; size <= gpus; ++size) {
      row("GetPreferredAllocation " + std::to_string(size) + " of " + std::to_string(gpus) + ", " + machine,
          admit(*stage, kGpu, size, "GetPreferredAllocation", kCalls), gpus <= 8 ? "≤ 0.3 ms" : "≤ 1 ms");
    }
  }

  void replicas() {
    auto stage = this->stage("hgx-h100");
    const std::string file = stage->driver_root() + "/sharing.yaml";
    must(write_file_atomic(
        file,
        "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n"
        "      replicas: 48\n"));
    must(stage->start_agent({.arguments = {"--config-file=" + file}}));
    ready(*stage, kGpu, 384);
    row("Register → first list of 384 replicas", calls(*stage, "FirstList"), "≤ 1 ms");
    for (const unsigned size : {1u, 8u, 64u}) {
      row("GetPreferredAllocation " + std::to_string(size) + " of 384 replicas",
          admit(*stage, kGpu, size, "GetPreferredAllocation", kCalls), "≤ 1 ms");
    }
    row("Allocate 1 of 384 replicas", admit(*stage, kGpu, 1, "Allocate", kCalls), "≤ 1 ms");
  }

  void config_changes() {
    auto stage = this->stage("hgx-h100");
    const std::string file = stage->driver_root() + "/sharing.yaml";
    const auto share = [&](unsigned count) {
      must(write_file_atomic(file, "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: " +
                                       std::to_string(count) + "}]}}\n"));
    };
    share(4);
    must(stage->start_agent({.arguments = {"--config-file=" + file}}));
    ready(*stage, kGpu, 32);
    Times times;
    for (int i = 0; i < kStarts; ++i) {
      const unsigned count = i % 2 == 0 ? 8 : 4;
      const auto start = Clock::now();
      share(count);
      ready(*stage, kGpu, 8 * count);
      times.push_back(Clock::now() - start);
    }
    row("config file changed → the kubelet has the new list", times, "≤ 50 ms");
  }

  std::string bin_;
};

}  // namespace
}  // namespace gpulet::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: agent_bench BIN\n";
    return 2;
  }
  gpulet::bench::Bench(argv[1]).run();
  return 0;
}

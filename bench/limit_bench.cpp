// `make bench`: what `gpulet-hook limit-memory` adds to the start of a container. The hook runs as a process,
// asks the agent on the simulated driver of branch 615, and the agent asks the simulated kubelet and an API
// server on this machine. Prints one table; bench/README.md explains each row and its limit.
//
//   limit_bench BIN [STARTS]    BIN: the directory of gpulet, gpulet-hook and gpulet-sim, as built by `make
//                               build`; STARTS: of each kind, 1,000
#include <poll.h>

#include <cstdint>
#include <deque>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "device_plugin/held_devices.h"
#include "measure.h"
#include "sim/demo/demo.h"
#include "tests/sim/limited_pods.h"

namespace gpulet::bench {
namespace {

using namespace std::chrono_literals;
using tests::LimitedPods;
using tests::TestContainer;

constexpr const char* kPart = "nvidia.com/gpu.part";
constexpr std::uint64_t kStarts = 1000, kMaxStarts = 100'000;
constexpr int kWarmUp = 20;
constexpr unsigned kNeighbours = 30;
constexpr unsigned kShares = 64;
constexpr unsigned kLimitMib = 64;
constexpr std::size_t kEndedContainers = 8;  // whose cgroups stay until their limits are cleared
constexpr auto kPatience = 30s;
// The least that a kubelet takes from Allocate to the hook: the sandbox with its network, and the container's
// creation.
constexpr int kSandboxMs = 40;

std::string uid_of(unsigned number) {
  char text[48];
  std::snprintf(text, sizeof text, "0b1d4c8e-1111-4222-8333-%012u", number);
  return text;
}

class LimitBench {
 public:
  LimitBench(std::string bin, int count) : bin_(std::move(bin)), count_(count) {}

  void run() {
    bring_up();
    std::printf("\n%-58s %6s %11s %11s %11s   %s\n", "what", "count", "min", "p50", "p99", "bar");
    for (const unsigned neighbours : {0u, kNeighbours}) {
      while (neighbours_ < neighbours) admit("neighbour-" + std::to_string(neighbours_++), kLimitMib);
      const std::string beside = neighbours == 0 ? "" : ", beside 30 Pods";
      starts(beside);
    }
    must(node_->stop_agent());
  }

 private:
  void bring_up() {
    node_ = must(sim::SimulatedNode::start_node("hgx-h100", bin_));
    must(node_->run_gpulet_sim({"driver-reload", "--version", "615.71.09"}));
    must(node_->run_gpulet_sim({"memacct", "dmem"}));
    pods_ = std::make_unique<LimitedPods>(node_->directory());
    const std::string config = node_->directory() + "/config.yaml", limits = node_->directory() + "/limits";
    socket_ = limits + "/agent.sock";
    must(write_file_atomic(
        config,
        "version: v1\nflags: {plugin: {deviceListStrategy: [cdi-cri], passDeviceSpecs: false}}\nsharing: "
        "{timeSlicing: {resources: [{name: gpu, devices: [0], rename: gpu.part, replicas: " +
            std::to_string(kShares) + "}]}}\ngpulet: {cdi: {hookDir: " + node_->directory() +
            "/hooks}, fraction: {driverLimits: true, limitDir: " + limits + "}}\n"));
    must(node_->start_agent({.arguments = {"--config-file=" + config, "--pass-device-specs=false"},
                             .environment = pods_->environment(),
                             .launcher = tests::cgroup_launcher()}));
    must(node_->kubelet().wait_for_allocatable(kPart, kShares, kPatience), "every share allocatable");
    // Until then, allocations of an earlier agent count as not recorded.
    ::poll(nullptr, 0,
           static_cast<int>(std::chrono::milliseconds(device_plugin::kAllocationRecorded).count()));
  }

  std::string admit(const std::string& name, unsigned limit_mib) {
    const auto uid = uid_of(++last_);
    pods_->put_pod(LimitedPods::make_pod(name, uid, limit_mib));
    must(node_->kubelet().admit_pod(
        {.name_space = "team", .name = name, .uid = uid, .containers = {{"main", {{kPart, 1}}}}}));
    return uid;
  }

  // Runs the hook as a runtime does, from its start to its end.
  std::chrono::nanoseconds time_hook(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), bin_ + "/gpulet-hook");
    const auto start = Clock::now();
    must(sim::program_output(std::move(arguments)));
    return Clock::now() - start;
  }
  std::chrono::nanoseconds time_question(const std::string& uid, const std::string& pod) {
    char id[65];
    std::snprintf(id, sizeof id, "%064u", ++last_);
    auto container = must(TestContainer::start_container(uid, id));
    const std::string state = node_->directory() + "/state.json";
    must(write_file_atomic(state, container->oci_state(uid, "main", pod)));
    const auto took = time_hook({"limit-memory", "--socket", socket_, "--container-spec", state});
    container->end_processes();
    ended_.push_back(std::move(container));
    if (ended_.size() > kEndedContainers) ended_.pop_front();
    return took;
  }

  // The kinds of start take turns, so that load affects all equally.
  void starts(const std::string& beside) {
    Times bare, known_limited, known_plain, new_limited, new_plain, at_once;
    const std::string limited_name = beside.empty() ? "limited" : "limited-2";
    const std::string plain_name = beside.empty() ? "plain" : "plain-2";
    const auto limited = admit(limited_name, kLimitMib), plain = admit(plain_name, 0);
    for (int i = -kWarmUp; i < count_; ++i) {
      const auto measure = [&](Times& times, std::chrono::nanoseconds took) {
        if (i >= 0) times.push_back(took);
      };
      measure(bare, time_hook({"--version"}));
      measure(known_limited, time_question(limited, limited_name));
      measure(known_plain, time_question(plain, plain_name));
      for (auto* times : {&new_limited, &new_plain, &at_once}) {
        const auto name = "new-" + std::to_string(last_);
        const auto uid = admit(name, times == &new_plain ? 0 : kLimitMib);
        if (times != &at_once) ::poll(nullptr, 0, kSandboxMs);
        measure(*times, time_question(uid, name));
        must(node_->kubelet().remove_pod(uid));
      }
    }
    row("the hook's process without a question" + beside, bare, "");
    row("a limit is set: another start in its Pod" + beside, known_limited, "≤ 5 ms more");
    row("no memory requested: another start in its Pod" + beside, known_plain, "≤ 5 ms more");
    row("a limit is set: first start of a Pod" + beside, new_limited, "≤ 5 ms more");
    row("no memory requested: first start of a Pod" + beside, new_plain, "≤ 5 ms more");
    row("a limit is set: without a sandbox before it" + beside, at_once, "");
  }

  const std::string bin_;
  const int count_;
  std::unique_ptr<sim::SimulatedNode> node_;
  std::unique_ptr<LimitedPods> pods_;
  std::string socket_;
  unsigned last_ = 0, neighbours_ = 0;
  std::deque<std::unique_ptr<TestContainer>> ended_;
};

}  // namespace
}  // namespace gpulet::bench

int main(int argc, char** argv) {
  const auto count =
      argc == 3 ? gpulet::text::parse_unsigned(argv[2]) : std::optional(gpulet::bench::kStarts);
  if (argc < 2 || argc > 3 || !count || *count == 0 || *count > gpulet::bench::kMaxStarts) {
    std::cerr << "usage: limit_bench BIN [STARTS]\n";
    return 2;
  }
  gpulet::bench::LimitBench(argv[1], static_cast<int>(*count)).run();
  return 0;
}

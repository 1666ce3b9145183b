// `make bench`: the CPU time of an agent at rest that audits the memory of 30 Pods on eight time-sliced GPUs,
// each with one process, beside one that does not. All threads and the listener's process count. Prints one
// table.
//
//   audit_bench BIN [SECONDS]   BIN: as of limit_bench; SECONDS: that each is measured for, 60
#include <poll.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "measure.h"
#include "sim/demo/demo.h"
#include "tests/sim/limited_pods.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::bench {
namespace {

using namespace std::chrono_literals;
using tests::LimitedPods;
using tests::TestContainer;

constexpr const char* kAuditedPart = "nvidia.com/gpu.part";
constexpr std::uint64_t kRestSeconds = 60, kMaxRestSeconds = 3600;
constexpr unsigned kAuditedPods = 30, kSharesOfEach = 4, kGpus = 8, kAuditedMib = 8192;
constexpr auto kAuditPatience = 30s;
constexpr int kSettleMs = 15'000;  // after the start

class AuditBench {
 public:
  AuditBench(std::string bin, std::uint64_t seconds) : bin_(std::move(bin)), seconds_(seconds) {}

  void run() {
    node_ = must(sim::SimulatedNode::start_node("hgx-h100", bin_));
    pods_ = std::make_unique<LimitedPods>(node_->directory());
    start_agent("none");
    for (unsigned i = 0; i < kAuditedPods; ++i) add_pod(i);
    std::printf("\n%-58s %42s   %s\n", "what", "CPU time in a minute", "bar");
    const double without = rest();
    start_agent("kill");
    const double with = rest();
    figure("no audit, 30 Pods", number(without, "ms"), "");
    figure("memory audit, 30 Pods", number(with, "ms"), "");
    figure("the audit", number(with - without, "ms"), "≤ 20 ms");
    must(node_->stop_agent());
  }

 private:
  void start_agent(const std::string& action) {
    const std::string config = node_->directory() + "/config.yaml";
    must(write_file_atomic(
        config, "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, rename: gpu.part, replicas: " +
                    std::to_string(kSharesOfEach) + "}]}}\ngpulet: {fraction: {onExceeded: " + action +
                    "}}\n"));
    must(node_->start_agent({.arguments = {"--config-file=" + config},
                             .environment = pods_->environment(),
                             .launcher = tests::cgroup_launcher()}));
    must(node_->kubelet().wait_for_allocatable(kAuditedPart, kGpus * kSharesOfEach, kAuditPatience),
         "every share allocatable");
    ::poll(nullptr, 0, kSettleMs);
  }
  void add_pod(unsigned index) {
    char uid[48], id[65];
    std::snprintf(uid, sizeof uid, "0b1d4c8e-1111-4222-8333-%012u", index);
    std::snprintf(id, sizeof id, "%064u", index);
    const std::string name = "limited-" + std::to_string(index);
    pods_->put_pod(LimitedPods::make_pod(name, uid, kAuditedMib));
    const auto grant = must(node_->kubelet().admit_pod(
        {.name_space = "team", .name = name, .uid = uid, .containers = {{"main", {{kAuditedPart, 1}}}}}));
    const auto& share = grant.containers.front().devices.at(kAuditedPart).front();
    containers_.push_back(must(TestContainer::start_container(uid, id)));
    must(node_->run_gpulet_sim({"load", share.substr(0, share.find("::")), "1", "--memory",
                                std::to_string(kAuditedMib), "--pid",
                                std::to_string(containers_.back()->pid())}));
  }

  // Of each thread, in the kernel's nanoseconds.
  static double cpu_ms_of(const std::string& pid) {
    double total = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + pid + "/task")) {
      double nanoseconds = 0;
      std::ifstream(task.path() / "schedstat") >> nanoseconds;
      total += nanoseconds / 1e6;
    }
    return total;
  }
  double cpu_ms() const {
    const auto agent = std::to_string(node_->agent_id());
    double total = cpu_ms_of(agent);
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + agent + "/task")) {
      std::ifstream children(task.path() / "children");
      for (std::string child; children >> child;) total += cpu_ms_of(child);
    }
    return total;
  }
  double rest() const {
    const double before = cpu_ms();
    const auto start = Clock::now();
    ::poll(nullptr, 0, static_cast<int>(seconds_ * 1000));
    const std::chrono::duration<double, std::ratio<60>> minutes = Clock::now() - start;
    return (cpu_ms() - before) / minutes.count();
  }

  const std::string bin_;
  const std::uint64_t seconds_;
  std::unique_ptr<sim::SimulatedNode> node_;
  std::unique_ptr<LimitedPods> pods_;
  std::vector<std::unique_ptr<TestContainer>> containers_;
};

}  // namespace
}  // namespace gpulet::bench

int main(int argc, char** argv) {
  const auto seconds =
      argc == 3 ? gpulet::text::parse_unsigned(argv[2]) : std::optional(gpulet::bench::kRestSeconds);
  if (argc < 2 || argc > 3 || !seconds || *seconds == 0 || *seconds > gpulet::bench::kMaxRestSeconds) {
    std::cerr << "usage: audit_bench BIN [SECONDS]\n";
    return 2;
  }
  gpulet::bench::AuditBench(argv[1], *seconds).run();
  return 0;
}

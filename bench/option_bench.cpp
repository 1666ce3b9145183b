// `make bench`: the CPU time in a minute of what users can switch on, of an agent at rest whose eight
// time-sliced GPUs have 30 Pods with memory limits, each with one process. The configuration switches each
// option off and on in the same agent, and what else the agent does by the clock is rare. All threads and the
// listener's process count. Prints one table.
//
//   option_bench BIN [SECONDS [OPTION]]    BIN: as of limit_bench; SECONDS: of each measurement, 60, as some
//                                          work comes once a minute; OPTION: of kOptions, all without it
#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "measure.h"
#include "process_usage.h"
#include "sim/demo/demo.h"
#include "tests/sim/limited_pods.h"
#include "tests/sim/node_fixture.h"
#include "warm_pages.h"

namespace gpulet::bench {
namespace {

using namespace std::chrono_literals;
using tests::LimitedPods;
using tests::TestContainer;

constexpr const char* kPart = "nvidia.com/gpu.part";
constexpr std::uint64_t kRestSeconds = 60, kMaxRestSeconds = 3600;
constexpr unsigned kPods = 30, kSharesOfEach = 4, kGpus = 8, kMemoryMib = 8192;
constexpr auto kPatience = 30s;
constexpr int kSettleMs = 15'000;       // after the start
constexpr int kSwitchMs = 10'000;       // after a change of the configuration: its events are sent
constexpr unsigned kMeasuredPairs = 3;  // without the option, then with it

// What is at /metrics while the option is on, and only then.
struct Option {
  std::string_view name, off, on, evidence, bar;
};
constexpr Option kOptions[] = {
    {"memory audit", "fraction: {onExceeded: none}", "fraction: {onExceeded: kill}",
     "\ngpulet_container_gpu_memory_used_bytes{", "median ≤ 20 ms"},
    {"metrics interval 15 s", "metrics: {interval: 1h}", "metrics: {interval: 15s}", "", ""},
    {"links, metrics interval 15 s", "metrics: {interval: 15s}", "metrics: {interval: 15s, nvlinks: true}",
     "\ngpulet_nvlink_", ""},
    {"power, a rule", "power: {rules: []}", "power: {rules: [{limit: 80%}]}",
     "\ngpulet_gpu_power_limit_watts{", ""},
    {"power, a rule and Pods' annotations", "power: {rules: []}",
     "power: {rules: [{limit: 80%}], podAnnotation: {enabled: true, min: 50%}}",
     "\ngpulet_gpu_power_limit_watts{", ""},
    {"repair", "repair: {reset: {enabled: false}}", "repair: {reset: {enabled: true}}", "\ngpulet_gpu_reset",
     ""},
};

class OptionBench {
 public:
  OptionBench(std::string bin, std::uint64_t seconds, std::string_view only)
      : bin_(std::move(bin)), seconds_(seconds), only_(only) {}

  void run() {
    node_ = must(sim::SimulatedNode::start_node("hgx-h100", bin_));
    pods_ = std::make_unique<LimitedPods>(node_->directory());
    start_agent();
    for (unsigned i = 0; i < kPods; ++i) add_pod(i);
    ::poll(nullptr, 0, kSettleMs);
    const WarmPages warm(node_->agent_id());
    std::printf("\n%-58s %42s   %s\n", "what is switched on", "CPU time in a minute: least, median, most",
                "bar");
    for (const auto& option : kOptions) {
      if (only_.empty() || only_ == option.name) measure(option);
    }
    must(node_->stop_agent());
  }

 private:
  void measure(const Option& option) {
    std::vector<double> without, cost;
    for (unsigned i = 0; i < kMeasuredPairs; ++i) {
      without.push_back(rest(option, false));
      cost.push_back(rest(option, true) - without.back());
    }
    print_spread(std::string(option.name) + ": without it", without, "");
    print_spread(std::string(option.name) + ": its cost", cost, option.bar);
  }
  static void print_spread(const std::string& what, std::vector<double> values, std::string_view bar) {
    std::ranges::sort(values);
    figure(what,
           number(values.front(), "ms") + " " + number(values[values.size() / 2], "ms") + " " +
               number(values.back(), "ms"),
           std::string(bar).c_str());
    std::fflush(stdout);
  }
  std::string config_path() const { return node_->directory() + "/config.yaml"; }
  void write_config(std::string_view setting) const {
    std::string config =
        "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, rename: gpu.part, replicas: " +
        std::to_string(kSharesOfEach) + "}]}}\ngpulet:\n  health: {pollInterval: 1h, livenessInterval: 1h}\n";
    if (!setting.starts_with("metrics")) config += "  metrics: {interval: 1h}\n";
    must(write_file_atomic(config_path(), config + "  " + std::string(setting) + "\n"));
  }
  void start_agent() {
    write_config(kOptions[0].off);
    must(node_->start_agent({.arguments = {"--config-file=" + config_path()},
                             .environment = pods_->environment(),
                             .launcher = tests::cgroup_launcher()}));
    must(node_->kubelet().wait_for_allocatable(kPart, kGpus * kSharesOfEach, kPatience),
         "every share allocatable");
  }
  void add_pod(unsigned index) {
    char uid[48], id[65];
    std::snprintf(uid, sizeof uid, "0b1d4c8e-1111-4222-8333-%012u", index);
    std::snprintf(id, sizeof id, "%064u", index);
    const std::string name = "limited-" + std::to_string(index);
    pods_->put_pod(LimitedPods::make_pod(name, uid, kMemoryMib));
    const auto grant = must(node_->kubelet().admit_pod(
        {.name_space = "team", .name = name, .uid = uid, .containers = {{"main", {{kPart, 1}}}}}));
    const auto& share = grant.containers.front().devices.at(kPart).front();
    containers_.push_back(must(TestContainer::start_container(uid, id)));
    must(node_->run_gpulet_sim({"load", share.substr(0, share.find("::")), "1", "--memory",
                                std::to_string(kMemoryMib), "--pid",
                                std::to_string(containers_.back()->pid())}));
  }

  double cpu_ms() const {
    return std::chrono::duration<double, std::milli>(usage_of(node_->agent_id()).cpu).count();
  }
  bool shows(std::string_view evidence) const {
    const auto page = tests::http_get(node_->socket(), "/metrics").body;
    must(page.find("\ngpulet_") != std::string::npos, "a page of metrics");
    return page.find(evidence) != std::string::npos;
  }
  double rest(const Option& option, bool on) const {
    write_config(on ? option.on : option.off);
    ::poll(nullptr, 0, kSwitchMs);
    const auto limit = Clock::now() + kPatience;
    while (!option.evidence.empty() && shows(option.evidence) != on) {
      must(Clock::now() < limit, "the option on, or off");
      ::poll(nullptr, 0, kSwitchMs);
    }
    const double before = cpu_ms();
    const auto start = Clock::now();
    ::poll(nullptr, 0, static_cast<int>(seconds_ * 1000));
    const std::chrono::duration<double, std::ratio<60>> minutes = Clock::now() - start;
    return (cpu_ms() - before) / minutes.count();
  }

  const std::string bin_;
  const std::uint64_t seconds_;
  const std::string_view only_;
  std::unique_ptr<sim::SimulatedNode> node_;
  std::unique_ptr<LimitedPods> pods_;
  std::vector<std::unique_ptr<TestContainer>> containers_;
};

}  // namespace
}  // namespace gpulet::bench

int main(int argc, char** argv) {
  const auto seconds =
      argc >= 3 ? gpulet::text::parse_unsigned(argv[2]) : std::optional(gpulet::bench::kRestSeconds);
  if (argc < 2 || argc > 4 || !seconds || *seconds == 0 || *seconds > gpulet::bench::kMaxRestSeconds) {
    std::cerr << "usage: option_bench BIN [SECONDS [OPTION]]\n";
    return 2;
  }
  gpulet::bench::OptionBench(argv[1], *seconds, argc == 4 ? argv[3] : "").run();
  return 0;
}

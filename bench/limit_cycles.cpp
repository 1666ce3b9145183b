// `make limit-cycles`: creates and deletes Pods with memory limits on the simulated driver of branch 615,
// with the agent and gpulet-hook as processes, while the agent is killed and the driver is loaded again. Each
// container that starts has its limit; in the end nothing is left of any: no limit in the driver, no record,
// no other file, no device, no line in the agent's list. Prints one line for each kind of accounting; exits
// with 1 after the first check that fails.
//
//   limit_cycles BIN [CYCLES]   BIN: as of limit_bench; CYCLES: of each kind, 5,000
#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "measure.h"
#include "sim/demo/demo.h"
#include "sim/state/memory_limits.h"
#include "sim/state/state.h"
#include "tests/sim/limited_pods.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::bench {
namespace {

using namespace std::chrono_literals;
using tests::LimitedPods;
using tests::TestContainer;

constexpr const char* kPart = "nvidia.com/gpu.part";
constexpr std::uint64_t kCycles = 5000, kMaxCycles = 1'000'000;
constexpr unsigned kShares = 32;
constexpr std::size_t kMostPods = 8;           // at the same time
constexpr std::uint64_t kCheckInterval = 250;  // cycles, after which nothing may be left
constexpr unsigned kKillInterval = 100, kReloadInterval = 125;
constexpr unsigned kPlainInterval = 8;  // Pods without a limit
constexpr unsigned kMostLimitMib = 2048;
constexpr unsigned kRandomSeed = 23;
constexpr auto kPatience = 30s;
constexpr int kLookMs = 5;

// Waits for `condition`, at most for kPatience.
template <class Condition>
void wait_until(Condition condition, const std::string& what) {
  const auto end = Clock::now() + kPatience;
  while (!condition()) {
    must(Clock::now() < end, what.c_str());
    ::poll(nullptr, 0, kLookMs);
  }
}

struct CycledPod {
  std::string name, uid;
  unsigned limit_mib = 0;  // 0: none
  std::unique_ptr<TestContainer> container;
};

struct CycleCounts {
  std::uint64_t starts = 0, restarts = 0, kills = 0, reloads = 0, checks = 0;
};

class LimitCycles {
 public:
  LimitCycles(std::string bin, std::string accounting)
      : bin_(std::move(bin)), accounting_(std::move(accounting)) {}

  void run(std::uint64_t cycles) {
    bring_up();
    for (std::uint64_t i = 1; i <= cycles; ++i) {
      if (chance(kKillInterval)) kill_agent_during_start();
      if (chance(kReloadInterval)) reload_driver();
      if (!pods_.empty() && chance(kMostPods)) restart_container();
      create_pod();
      if (pods_.size() >= kMostPods) delete_pod(pick());
      if (i % kCheckInterval == 0 || i == cycles) check_nothing_left();
    }
    must(node_->stop_agent());
    std::printf(
        "%s: %llu Pods created and deleted, %llu containers restarted, %llu agents killed, %llu driver "
        "reloads: nothing left at %llu checks\n",
        accounting_.c_str(), static_cast<unsigned long long>(counts_.starts),
        static_cast<unsigned long long>(counts_.restarts), static_cast<unsigned long long>(counts_.kills),
        static_cast<unsigned long long>(counts_.reloads), static_cast<unsigned long long>(counts_.checks));
    std::fflush(stdout);
  }

 private:
  void bring_up() {
    node_ = must(sim::SimulatedNode::start_node("t4", bin_));
    load_driver();
    must(node_->run_gpulet_sim({"memacct", accounting_}));
    api_ = std::make_unique<LimitedPods>(node_->directory());
    limits_ = node_->directory() + "/limits";
    must(write_file_atomic(
        config(),
        "version: v1\nflags: {plugin: {deviceListStrategy: [cdi-cri], passDeviceSpecs: false}}\nsharing: "
        "{timeSlicing: {resources: [{name: gpu, devices: [0], rename: gpu.part, replicas: " +
            std::to_string(kShares) + "}]}}\ngpulet: {cdi: {hookDir: " + node_->directory() +
            "/hooks}, fraction: {driverLimits: true, limitDir: " + limits_ + "}}\n"));
    start_agent();
  }
  std::string config() const { return node_->directory() + "/config.yaml"; }
  void start_agent() {
    must(node_->start_agent({.arguments = {"--config-file=" + config(), "--pass-device-specs=false"},
                             .environment = api_->environment(),
                             .launcher = tests::cgroup_launcher()}));
  }
  void wait_for_shares() {
    must(node_->kubelet().wait_for_allocatable(kPart, kShares, kPatience), "every share allocatable");
  }
  // Forced, where the agent has it open.
  void load_driver() { must(node_->run_gpulet_sim({"driver-reload", "--force", "--version", "615.71.09"})); }
  bool chance(std::size_t of) { return random_() % of == 0; }
  std::size_t pick() { return random_() % pods_.size(); }

  std::string make_name(const char* prefix, const char* form) {
    char text[80];
    std::snprintf(text, sizeof text, form, ++last_);
    return prefix + std::string(text);
  }

  void admit(const CycledPod& pod, unsigned shares = 1) {
    wait_for_shares();
    api_->put_pod(LimitedPods::make_pod(pod.name, pod.uid, pod.limit_mib));
    must(node_->kubelet().admit_pod({.name_space = "team",
                                     .name = pod.name,
                                     .uid = pod.uid,
                                     .containers = {{"main", {{kPart, shares}}}}}));
  }
  CycledPod make_pod() {
    // Names come back, as those of a StatefulSet do.
    return {"cycle-" + std::to_string(last_ % (4 * kMostPods)) + "-" + std::to_string(pods_.size()),
            make_name("0b1d4c8e-1111-4222-8333-", "%012u"),
            chance(kPlainInterval) ? 0 : 1 + static_cast<unsigned>(random_() % kMostLimitMib),
            {}};
  }

  std::vector<std::string> hook_command(CycledPod& pod) {
    pod.container = must(TestContainer::start_container(pod.uid, make_name("", "%064u")));
    const std::string state = node_->directory() + "/state.json";
    must(write_file_atomic(state, pod.container->oci_state(pod.uid, "main", pod.name)));
    return {bin_ + "/gpulet-hook",   "limit-memory",     "--socket",
            limits_ + "/agent.sock", "--container-spec", state};
  }
  void start_container(CycledPod& pod) {
    must(sim::program_output(hook_command(pod)));
    ++counts_.starts;
    check_limit(pod);
  }
  // MiB by container id, of containers; a Pod's own limit is in it by its directory.
  std::map<std::string, std::uint64_t> driver_limits() {
    std::map<std::string, std::uint64_t> limits;
    // Another one after each reload.
    const auto state = must(sim::StateFile::open_state(node_->driver_root() + "/run/gpulet-sim/state"));
    const auto machine = state.lock_for_read();
    for (const auto& limit : machine->memory.limits) {
      const std::string cgroup = limit.cgroup;
      if (!cgroup.empty()) limits[cgroup.substr(cgroup.rfind('/') + 1)] = limit.hard >> 20;
    }
    return limits;
  }
  bool has_limit(const CycledPod& pod) {
    const auto limits = driver_limits();
    const auto found = limits.find("cri-containerd-" + pod.container->id() + ".scope");
    return pod.limit_mib == 0 ? found == limits.end()
                              : found != limits.end() && found->second == pod.limit_mib;
  }
  void check_limit(const CycledPod& pod) { must(has_limit(pod), "the container that starts has its limit"); }

  void create_pod() {
    auto pod = make_pod();
    while (std::ranges::any_of(pods_, [&](const auto& one) { return one.name == pod.name; }))
      pod.name += "-x";
    admit(pod);
    start_container(pod);
    pods_.push_back(std::move(pod));
  }
  // The cgroup stays for a moment, as until the runtime removes it.
  void end_container(CycledPod& pod) {
    pod.container->end_processes();
    ended_.push_back(std::move(pod.container));
    if (ended_.size() > kMostPods) {
      const std::string id = ended_.front()->id();
      wait_until([&] { return !driver_limits().contains("cri-containerd-" + id + ".scope"); },
                 "the limit of a container that has ended is cleared");
      ended_.pop_front();
    }
  }
  void restart_container() {
    auto& pod = pods_[pick()];
    end_container(pod);
    start_container(pod);
    --counts_.starts;
    ++counts_.restarts;
  }
  void delete_pod(std::size_t index) {
    end_container(pods_[index]);
    must(node_->kubelet().remove_pod(pods_[index].uid));
    pods_.erase(pods_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  // The hook waits for the next agent. Containers may end while there is none.
  void kill_agent_during_start() {
    auto pod = make_pod();
    pod.name += "-kill";
    admit(pod);
    auto command = hook_command(pod);
    auto hook = must(Process::spawn({.program = command.front(), .arguments = command}));
    if (chance(2)) ::poll(nullptr, 0, static_cast<int>(random_() % 8));
    node_->kill_agent();
    ++counts_.kills;
    if (!pods_.empty() && chance(2)) {
      auto& ended = pods_[pick()];
      ended.container->end_processes();
      ended_.push_back(std::move(ended.container));
      must(node_->kubelet().remove_pod(ended.uid));
      std::erase_if(pods_, [](const auto& one) { return one.container == nullptr; });
    }
    start_agent();
    wait_for_shares();
    const auto exit = must(hook->wait_for_exit(kPatience));
    // The agent may have died between its answer and the hook's end, but no container starts without a limit.
    if (exit.succeeded()) {
      ++counts_.starts;
      wait_until([&] { return has_limit(pod); }, "the container's limit after its agent was killed");
      for (const auto& other : pods_)
        wait_until([&] { return has_limit(other); },
                   "the limit of a container that ran when the agent ended");
    }
    end_container(pod);
    must(node_->kubelet().remove_pod(pod.uid));
  }
  void reload_driver() {
    load_driver();
    ++counts_.reloads;
    wait_for_shares();
    for (const auto& pod : pods_)
      wait_until([&] { return has_limit(pod); }, "the limit of a running container after a driver reload");
  }

  bool agent_lists_nothing() {
    const auto node =
        nlohmann::json::parse(tests::http_get(node_->socket(), "/api/node").body, nullptr, false);
    return node.is_object() &&
           (!node.contains("memory_limit") || !node["memory_limit"].contains("containers") ||
            node["memory_limit"]["containers"].empty());
  }
  std::string left_files() {
    std::string names;
    for (const auto& entry : std::filesystem::directory_iterator(limits_)) {
      if (entry.path().filename() != "agent.sock") names += entry.path().filename().string() + " ";
    }
    return names;
  }
  void check_nothing_left() {
    while (!pods_.empty()) delete_pod(pods_.size() - 1);
    wait_until([&] { return driver_limits().empty(); }, "no limit is left in the driver");
    wait_until([&] { return left_files().empty(); }, "no record of a limit is left");
    ended_.clear();
    // One Pod gets all devices: none is reserved. Its Allocate makes the agent read the holders.
    CycledPod all{"all", make_name("0b1d4c8e-1111-4222-8333-", "%012u"), 0, {}};
    admit(all, kShares);
    must(node_->kubelet().remove_pod(all.uid));
    wait_until([&] { return agent_lists_nothing(); }, "the agent lists no container");
    ++counts_.checks;
  }

  const std::string bin_, accounting_;
  std::unique_ptr<sim::SimulatedNode> node_;
  std::unique_ptr<LimitedPods> api_;
  std::string limits_;
  std::mt19937 random_{kRandomSeed};
  unsigned last_ = 0;
  std::vector<CycledPod> pods_;
  std::deque<std::unique_ptr<TestContainer>> ended_;
  CycleCounts counts_;
};

}  // namespace
}  // namespace gpulet::bench

int main(int argc, char** argv) {
  const auto cycles =
      argc == 3 ? gpulet::text::parse_unsigned(argv[2]) : std::optional(gpulet::bench::kCycles);
  if (argc < 2 || argc > 3 || !cycles || *cycles == 0 || *cycles > gpulet::bench::kMaxCycles) {
    std::cerr << "usage: limit_cycles BIN [CYCLES]\n";
    return 2;
  }
  for (const char* accounting : {"misc", "dmem"})
    gpulet::bench::LimitCycles(argv[1], accounting).run(*cycles);
  return 0;
}

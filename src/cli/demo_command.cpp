#include "cli/demo_command.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/narrator.h"
#include "cli/simulated_node.h"

namespace gpulet::cli {
namespace {

using namespace std::chrono_literals;

constexpr const char* kGpu = "nvidia.com/gpu";
constexpr int kFallenOffTheBus = 79;
constexpr auto kPatience = 10s;
constexpr unsigned kTimedAllocations = 100;

tl::unexpected<Error> untrue(const std::string& claim) {
  return fail(Code::kInternal, "this did not happen: " + claim);
}

std::chrono::nanoseconds since(std::chrono::steady_clock::time_point start) {
  return std::chrono::steady_clock::now() - start;
}

class Demo {
 public:
  Demo(SimulatedNode& node, Narrator& narrator) : node_(node), tell_(narrator) {}

  Status run(const std::string& machine) {
    GPULET_TRY(discover(machine));
    GPULET_TRY(register_agent());
    GPULET_TRY(place_pods());
    GPULET_TRY(break_and_heal());
    GPULET_TRY(restart_kubelet());
    GPULET_TRY(latencies());
    return finish();
  }

 private:
  Status discover(const std::string& machine) {
    tell_.heading("A simulated node: " + machine);
    tell_.command("gpulet-sim up " + machine + " --root /run/gpulet-sim");
    tell_.say("The agent loads its libnvidia-ml.so.1 as it would NVIDIA's, and cannot tell the difference.");
    tell_.heading("What the driver says");
    tell_.command("gpulet list");
    GPULET_TRY_ASSIGN(const std::string table, node_.gpulet({"list"}));
    tell_.block(table);
    tell_.command("gpulet topo");
    GPULET_TRY_ASSIGN(const std::string topology, node_.gpulet({"topo"}));
    tell_.block(topology);
    GPULET_TRY_ASSIGN(const std::string list, node_.gpulet({"list", "-o", "json"}));
    const auto json = nlohmann::json::parse(list, nullptr, false);
    if (!json.is_object() || !json.contains("gpus")) return untrue("`gpulet list -o json` is JSON with gpus");
    for (const auto& gpu : json["gpus"]) gpus_.push_back(gpu.value("uuid", ""));
    if (gpus_.empty()) return untrue("the machine has GPUs");
    return {};
  }

  Status register_agent() {
    tell_.heading("The agent offers them to a kubelet");
    tell_.command("gpulet agent");
    const auto start = std::chrono::steady_clock::now();
    // As long as a GPU must prove itself in earnest nobody wants to wait here.
    GPULET_TRY(node_.start_agent({.arguments = {"--health-hold=1s"}}));
    if (!node_.kubelet().wait_for([](const auto& state) { return state.resources.contains(kGpu); },
                                  kPatience)) {
      return untrue("the agent registers");
    }
    const auto registered = since(start);
    if (!node_.kubelet().wait_for_allocatable(kGpu, gpus_.size(), kPatience)) {
      return untrue("the kubelet sees every GPU as allocatable");
    }
    tell_.done("registered " + text_of(registered) + " after the start; allocatable " + kGpu + ": " +
               std::to_string(gpus_.size()));
    return {};
  }

  Status place_pods() {
    tell_.heading("Pods ask for GPUs");
    std::size_t left = gpus_.size();
    for (const unsigned size : {2u, 4u, 1u}) {
      if (size > left) continue;
      GPULET_TRY(place_pod("train-" + std::to_string(size), size));
      left -= size;
    }
    return {};
  }

  // The kubelet's grant must be what `gpulet place` says for the devices that were free.
  Status place_pod(const std::string& name, unsigned size) {
    GPULET_TRY_ASSIGN(const std::string advice,
                      node_.gpulet({"place", "--size", std::to_string(size), "--available",
                                    text::join(free_gpus(), ","), "-o", "json"}));
    const auto choice = nlohmann::json::parse(advice, nullptr, false);
    if (!choice.is_object()) return untrue("`gpulet place -o json` is JSON");
    GPULET_TRY_ASSIGN(
        const sim::PodGrant grant,
        node_.kubelet().admit({.name = name, .uid = name, .containers = {{"main", {{kGpu, size}}}}}));
    auto got = grant.containers.at(0).devices.at(kGpu);
    std::vector<std::string> advised;
    for (const auto& device : choice["devices"]) advised.push_back(device.value("id", ""));
    std::ranges::sort(got);
    std::ranges::sort(advised);
    if (got != advised) return untrue(name + " gets the set that `gpulet place` names");
    holders_[name] = got;
    tell_.done("Pod " + name + " asks for " + std::to_string(size) + ": GPU " + indices(got) + ", score " +
               std::to_string(choice.value("score", std::int64_t{0})));
    tell_.say("     " + choice.value("reason", ""));
    return {};
  }

  Status break_and_heal() {
    const auto& [pod, held] = *holders_.begin();
    const std::string victim = held.front(), index = indices({victim});
    tell_.heading("GPU " + index + " breaks, under Pod " + pod);
    tell_.command("gpulet-sim xid " + index + " " + std::to_string(kFallenOffTheBus));
    const auto broken = std::chrono::steady_clock::now();
    GPULET_TRY(node_.sim({"xid", index, std::to_string(kFallenOffTheBus)}));
    const auto healthy = [&](const sim::KubeletState& state) {
      const auto& devices = state.resources.at(kGpu).devices;
      const auto found = devices.find(victim);
      return found != devices.end() && found->second.healthy;
    };
    if (!node_.kubelet().wait_for([&](const auto& state) { return !healthy(state); }, kPatience)) {
      return untrue("the kubelet sees GPU " + index + " as unhealthy");
    }
    tell_.done("withdrawn from the kubelet " + text_of(since(broken)) + " after the command; the other " +
               std::to_string(gpus_.size() - 1) + " stay");
    if (node_.kubelet().state().resources.at(kGpu).allocatable() != gpus_.size() - 1) {
      return untrue("only that one GPU is withdrawn");
    }
    std::string said;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while ((said = node_.agent_said("GPUUnhealthy")).empty() && std::chrono::steady_clock::now() < deadline) {
      node_.kubelet().wait_for([](const auto&) { return false; }, 10ms);
    }
    if (said.find(pod) == std::string::npos) return untrue("the agent names the Pod that holds it");
    tell_.say("the agent: " + said);

    tell_.command("gpulet-sim heal " + index);
    const auto healed = std::chrono::steady_clock::now();
    GPULET_TRY(node_.sim({"heal", index}));
    if (!node_.kubelet().wait_for(healthy, kPatience)) return untrue("GPU " + index + " is offered again");
    tell_.done("proven healthy and offered again after " + text_of(since(healed)));
    return {};
  }

  Status restart_kubelet() {
    tell_.heading("The kubelet restarts");
    const auto before = node_.kubelet().state().resources.at(kGpu).registrations;
    const auto start = std::chrono::steady_clock::now();
    GPULET_TRY(node_.kubelet().restart());
    if (!node_.kubelet().wait_for(
            [&](const auto& state) {
              const auto found = state.resources.find(kGpu);
              return found != state.resources.end() && found->second.registrations > before &&
                     found->second.connected && found->second.allocatable() == gpus_.size();
            },
            kPatience)) {
      return untrue("the agent registers again");
    }
    tell_.done("registered again, all GPUs offered, " + text_of(since(start)) + " after the restart began");
    const auto state = node_.kubelet().state();
    for (const auto& [pod, held] : holders_) {
      const auto found = state.grants.find(pod);
      if (found == state.grants.end()) return untrue("Pod " + pod + " keeps its devices");
      auto devices = found->second.containers.at(0).devices.at(kGpu);
      std::ranges::sort(devices);
      if (devices != held) return untrue("Pod " + pod + " keeps its devices");
    }
    tell_.done("all " + std::to_string(holders_.size()) + " Pods keep their GPUs");
    return {};
  }

  Status latencies() {
    tell_.heading("How long the kubelet waited");
    for (const auto& [pod, held] : holders_) GPULET_TRY(node_.kubelet().remove(pod));
    for (unsigned i = 0; i < kTimedAllocations; ++i) {
      const std::string name = "timed-" + std::to_string(i);
      const auto size = static_cast<unsigned>(1 + i % gpus_.size());
      GPULET_TRY(
          node_.kubelet().admit({.name = name, .uid = name, .containers = {{"main", {{kGpu, size}}}}}));
      GPULET_TRY(node_.kubelet().remove(name));
    }
    std::map<std::string, std::vector<std::chrono::nanoseconds>> calls;
    for (const auto& latency : node_.kubelet().state().latencies) calls[latency.call].push_back(latency.took);
    char line[128];
    std::snprintf(line, sizeof line, "%-24s %6s %12s %12s %12s", "call", "count", "min", "p50", "p99");
    tell_.say(line);
    for (auto& [call, times] : calls) {
      std::ranges::sort(times);
      std::snprintf(line, sizeof line, "%-24s %6zu %12s %12s %12s", call.c_str(), times.size(),
                    text_of(times.front()).c_str(), text_of(times[times.size() / 2]).c_str(),
                    text_of(times[times.size() * 99 / 100]).c_str());
      tell_.say(line);
    }
    std::snprintf(line, sizeof line, "the agent's resident memory: %.1f MB",
                  static_cast<double>(node_.agent_resident_bytes()) / 1e6);
    tell_.say(line);
    return {};
  }

  Status finish() {
    tell_.heading("The agent is told to end");
    GPULET_TRY_ASSIGN(const auto took, node_.stop_agent());
    tell_.done("gone " + text_of(took) + " after SIGTERM");
    return {};
  }

  std::vector<std::string> free_gpus() const {
    std::vector<std::string> free;
    for (const auto& uuid : gpus_) {
      const bool held = std::ranges::any_of(
          holders_, [&](const auto& holder) { return std::ranges::count(holder.second, uuid) != 0; });
      if (!held) free.push_back(uuid);
    }
    return free;
  }

  std::string indices(const std::vector<std::string>& uuids) const {
    std::vector<std::string> numbers;
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      if (std::ranges::count(uuids, gpus_[i]) != 0) numbers.push_back(std::to_string(i));
    }
    return text::join(numbers, ", ");
  }

  SimulatedNode& node_;
  Narrator& tell_;
  std::vector<std::string> gpus_;                            // UUIDs by index
  std::map<std::string, std::vector<std::string>> holders_;  // Pod → sorted UUIDs
};

}  // namespace

int demo(const DemoOptions& options) {
  Narrator narrator;
  auto node = SimulatedNode::start(options.machine);
  Status status = node ? Demo(**node, narrator).run(options.machine) : fail(node.error());
  if (!status) {
    std::cerr << "gpulet demo: " << status.error().text() << '\n';
    return 1;
  }
  narrator.say("");
  narrator.say("All of this happened. `make test` checks it, and much more, on a real Kubernetes too.");
  return 0;
}

}  // namespace gpulet::cli

#include "sim/demo/demo.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include <nlohmann/json.hpp>

#include "base/text.h"

namespace gpulet::sim {
namespace {

using namespace std::chrono_literals;

constexpr const char* kGpu = "nvidia.com/gpu";
constexpr int kFallenOffTheBus = 79;
constexpr auto kWaitLimit = 10s;
constexpr unsigned kTimedAllocations = 100;

// Headings, commands and results, one line each; colour and weight only on a terminal.
class DemoPrinter {
 public:
  DemoPrinter() : colour_(::isatty(STDOUT_FILENO) == 1), start_(std::chrono::steady_clock::now()) {}

  void print_heading(const std::string& text) {
    char clock[16];
    std::snprintf(clock, sizeof clock, "%4.1f s",
                  Milliseconds(std::chrono::steady_clock::now() - start_).count() / 1e3);
    std::cout << '\n'
              << (colour_ ? "\033[1;36m" : "") << ++step_ << ". " << text << (colour_ ? "\033[0m\033[2m" : "")
              << "  [" << clock << "]" << (colour_ ? "\033[0m" : "") << std::endl;
  }
  // A command that a person could type.
  void print_command(const std::string& text) {
    std::cout << (colour_ ? "   \033[2m$ " : "   $ ") << text << (colour_ ? "\033[0m" : "") << std::endl;
  }
  void print_line(const std::string& text) { std::cout << "   " << text << std::endl; }
  // A claim that was checked.
  void print_result(const std::string& text) {
    std::cout << (colour_ ? "   \033[1;32m✓\033[0m " : "   ok: ") << text << std::endl;
  }
  // A program's output, indented.
  void print_block(const std::string& text) {
    std::string_view rest = text;
    while (!rest.empty()) {
      const auto end = std::min(rest.find('\n'), rest.size());
      std::cout << "   " << rest.substr(0, end) << '\n';
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    std::cout << std::flush;
  }

 private:
  bool colour_;
  std::chrono::steady_clock::time_point start_;
  int step_ = 0;
};

tl::unexpected<Error> claim_failed(const std::string& claim) {
  return fail(Code::kInternal, "check failed: " + claim);
}

std::chrono::nanoseconds elapsed_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::steady_clock::now() - start;
}

class Demo {
 public:
  Demo(SimulatedNode& node, DemoPrinter& printer) : node_(node), printer_(printer) {}

  Status play_steps(const std::string& machine) {
    GPULET_TRY(discover_gpus(machine));
    GPULET_TRY(register_agent());
    GPULET_TRY(place_pods());
    GPULET_TRY(break_and_heal());
    GPULET_TRY(restart_kubelet());
    GPULET_TRY(print_latencies());
    return end_agent();
  }

 private:
  Status discover_gpus(const std::string& machine) {
    printer_.print_heading("A simulated node: " + machine);
    printer_.print_command("gpulet-sim up " + machine + " --root /run/gpulet-sim");
    printer_.print_line("The agent loads its libnvidia-ml.so.1 as it loads NVIDIA's.");
    printer_.print_heading("The driver reports");
    printer_.print_command("gpulet list");
    GPULET_TRY_ASSIGN(const std::string table, node_.run_gpulet({"list"}));
    printer_.print_block(table);
    printer_.print_command("gpulet topo");
    GPULET_TRY_ASSIGN(const std::string topology, node_.run_gpulet({"topo"}));
    printer_.print_block(topology);
    GPULET_TRY_ASSIGN(const std::string list, node_.run_gpulet({"list", "-o", "json"}));
    const auto json = nlohmann::json::parse(list, nullptr, false);
    if (!json.is_object() || !json.contains("gpus"))
      return claim_failed("`gpulet list -o json` is JSON with gpus");
    for (const auto& gpu : json["gpus"]) gpus_.push_back(gpu.value("uuid", ""));
    if (gpus_.empty()) return claim_failed("the machine has GPUs");
    return {};
  }

  Status register_agent() {
    printer_.print_heading("The agent registers the GPUs with a kubelet");
    printer_.print_command("gpulet agent");
    const auto start = std::chrono::steady_clock::now();
    // Shorter than the default, to keep the demo short.
    GPULET_TRY(node_.start_agent({.arguments = {"--health-recovery-hold=1s"}}));
    if (!node_.kubelet().wait_for([](const auto& state) { return state.resources.contains(kGpu); },
                                  kWaitLimit)) {
      return claim_failed("the agent registers");
    }
    const auto registered = elapsed_since(start);
    if (!node_.kubelet().wait_for_allocatable(kGpu, gpus_.size(), kWaitLimit)) {
      return claim_failed("the kubelet sees every GPU as allocatable");
    }
    printer_.print_result("registered " + duration_text(registered) + " after its start; allocatable " +
                          kGpu + ": " + std::to_string(gpus_.size()));
    return {};
  }

  Status place_pods() {
    printer_.print_heading("Pods request GPUs");
    std::size_t left = gpus_.size();
    for (const unsigned size : {2u, 4u, 1u}) {
      if (size > left) continue;
      GPULET_TRY(place_pod("train-" + std::to_string(size), size));
      left -= size;
    }
    return {};
  }

  // The kubelet must allocate what `gpulet place` chooses from the free devices.
  Status place_pod(const std::string& name, unsigned size) {
    GPULET_TRY_ASSIGN(const std::string advice,
                      node_.run_gpulet({"place", "--size", std::to_string(size), "--available",
                                        text::join(free_gpus(), ","), "-o", "json"}));
    const auto choice = nlohmann::json::parse(advice, nullptr, false);
    if (!choice.is_object()) return claim_failed("`gpulet place -o json` is JSON");
    GPULET_TRY_ASSIGN(
        const PodGrant grant,
        node_.kubelet().admit_pod({.name = name, .uid = name, .containers = {{"main", {{kGpu, size}}}}}));
    auto got = grant.containers.at(0).devices.at(kGpu);
    std::vector<std::string> advised;
    for (const auto& device : choice["devices"]) advised.push_back(device.value("id", ""));
    std::ranges::sort(got);
    std::ranges::sort(advised);
    if (got != advised) return claim_failed(name + " gets the GPUs that `gpulet place` chooses");
    holders_[name] = got;
    printer_.print_result("Pod " + name + " requests " + std::to_string(size) + ": GPU " + gpu_indices(got) +
                          ", score " + std::to_string(choice.value("score", std::int64_t{0})));
    printer_.print_line("     " + choice.value("reason", ""));
    return {};
  }

  Status break_and_heal() {
    const auto& [pod, held] = *holders_.begin();
    const std::string victim = held.front(), index = gpu_indices({victim});
    printer_.print_heading("GPU " + index + " fails while Pod " + pod + " uses it");
    printer_.print_command("gpulet-sim xid " + index + " " + std::to_string(kFallenOffTheBus));
    const auto broken = std::chrono::steady_clock::now();
    GPULET_TRY(node_.run_gpulet_sim({"xid", index, std::to_string(kFallenOffTheBus)}));
    const auto healthy = [&](const KubeletState& state) {
      const auto& devices = state.resources.at(kGpu).devices;
      const auto found = devices.find(victim);
      return found != devices.end() && found->second.healthy;
    };
    if (!node_.kubelet().wait_for([&](const auto& state) { return !healthy(state); }, kWaitLimit)) {
      return claim_failed("the kubelet sees GPU " + index + " as unhealthy");
    }
    printer_.print_result("withdrawn from the kubelet " + duration_text(elapsed_since(broken)) +
                          " after the command; the other " + std::to_string(gpus_.size() - 1) + " stay");
    if (node_.kubelet().kubelet_state().resources.at(kGpu).allocatable() != gpus_.size() - 1) {
      return claim_failed("only that GPU is withdrawn");
    }
    std::string message;
    const auto deadline = std::chrono::steady_clock::now() + kWaitLimit;
    while ((message = node_.logged_message("GPUUnhealthy")).empty() &&
           std::chrono::steady_clock::now() < deadline) {
      node_.kubelet().wait_for([](const auto&) { return false; }, 10ms);
    }
    if (message.find(pod) == std::string::npos)
      return claim_failed("the agent's log names the Pod that uses it");
    printer_.print_line("agent log: " + message);

    printer_.print_command("gpulet-sim heal " + index);
    const auto healed = std::chrono::steady_clock::now();
    GPULET_TRY(node_.run_gpulet_sim({"heal", index}));
    if (!node_.kubelet().wait_for(healthy, kWaitLimit))
      return claim_failed("GPU " + index + " returns to service");
    printer_.print_result("its health checks passed; back in service after " +
                          duration_text(elapsed_since(healed)));
    return {};
  }

  Status restart_kubelet() {
    printer_.print_heading("The kubelet restarts");
    const auto before = node_.kubelet().kubelet_state().resources.at(kGpu).registrations;
    const auto start = std::chrono::steady_clock::now();
    GPULET_TRY(node_.kubelet().restart_kubelet());
    if (!node_.kubelet().wait_for(
            [&](const auto& state) {
              const auto found = state.resources.find(kGpu);
              return found != state.resources.end() && found->second.registrations > before &&
                     found->second.connected && found->second.allocatable() == gpus_.size();
            },
            kWaitLimit)) {
      return claim_failed("the agent registers again");
    }
    printer_.print_result("registered again with all GPUs " + duration_text(elapsed_since(start)) +
                          " after the restart");
    const auto state = node_.kubelet().kubelet_state();
    for (const auto& [pod, held] : holders_) {
      const auto found = state.grants.find(pod);
      if (found == state.grants.end()) return claim_failed("Pod " + pod + " keeps its devices");
      auto devices = found->second.containers.at(0).devices.at(kGpu);
      std::ranges::sort(devices);
      if (devices != held) return claim_failed("Pod " + pod + " keeps its devices");
    }
    printer_.print_result("all " + std::to_string(holders_.size()) + " Pods keep their GPUs");
    return {};
  }

  Status print_latencies() {
    printer_.print_heading("Latency of the kubelet's calls");
    for (const auto& [pod, held] : holders_) GPULET_TRY(node_.kubelet().remove_pod(pod));
    for (unsigned i = 0; i < kTimedAllocations; ++i) {
      const std::string name = "timed-" + std::to_string(i);
      const auto size = static_cast<unsigned>(1 + i % gpus_.size());
      GPULET_TRY(
          node_.kubelet().admit_pod({.name = name, .uid = name, .containers = {{"main", {{kGpu, size}}}}}));
      GPULET_TRY(node_.kubelet().remove_pod(name));
    }
    std::map<std::string, std::vector<std::chrono::nanoseconds>> calls;
    for (const auto& latency : node_.kubelet().kubelet_state().latencies)
      calls[latency.call].push_back(latency.took);
    char line[128];
    std::snprintf(line, sizeof line, "%-24s %6s %12s %12s %12s", "call", "count", "min", "p50", "p99");
    printer_.print_line(line);
    for (auto& [call, times] : calls) {
      std::ranges::sort(times);
      std::snprintf(line, sizeof line, "%-24s %6zu %12s %12s %12s", call.c_str(), times.size(),
                    duration_text(times.front()).c_str(), duration_text(times[times.size() / 2]).c_str(),
                    duration_text(times[times.size() * 99 / 100]).c_str());
      printer_.print_line(line);
    }
    std::snprintf(line, sizeof line, "resident memory of the agent: %.1f MB",
                  static_cast<double>(node_.agent_resident_bytes()) / 1e6);
    printer_.print_line(line);
    return {};
  }

  Status end_agent() {
    printer_.print_heading("The agent stops");
    GPULET_TRY_ASSIGN(const auto took, node_.stop_agent());
    printer_.print_result("exited " + duration_text(took) + " after SIGTERM");
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

  std::string gpu_indices(const std::vector<std::string>& uuids) const {
    std::vector<std::string> numbers;
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      if (std::ranges::count(uuids, gpus_[i]) != 0) numbers.push_back(std::to_string(i));
    }
    return text::join(numbers, ", ");
  }

  SimulatedNode& node_;
  DemoPrinter& printer_;
  std::vector<std::string> gpus_;                            // UUIDs by index
  std::map<std::string, std::vector<std::string>> holders_;  // Pod → sorted UUIDs
};

}  // namespace

std::string duration_text(std::chrono::nanoseconds time) {
  char text[32];
  if (time < 1ms) {
    std::snprintf(text, sizeof text, "%.0f µs", static_cast<double>(time.count()) / 1e3);
  } else {
    std::snprintf(text, sizeof text, "%.1f ms", Milliseconds(time).count());
  }
  return text;
}

int run_demo(const std::string& machine) {
  DemoPrinter printer;
  auto node = SimulatedNode::start_node(machine);
  const Status status = node ? Demo(**node, printer).play_steps(machine) : fail(node.error());
  if (!status) {
    std::cerr << "gpulet-sim demo: " << status.error().full_message() << '\n';
    return 1;
  }
  printer.print_line("");
  printer.print_line("Each result was checked on the kubelet's side. `make test` adds a real Kubernetes.");
  return 0;
}

}  // namespace gpulet::sim

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

// One table: a row for each step, printed once its claim was checked. With `details`, what the step's
// commands print goes before its row. Bold and colour only on a terminal.
class DemoTable {
 public:
  explicit DemoTable(bool details) : details_(details), colour_(::isatty(STDOUT_FILENO) == 1) {}

  void print_title(const std::string& text) const {
    std::cout << text << "\n\n";
    print_cells("1", "STEP", "TIME", "RESULT");
  }
  // Continuation lines of `result` are indented to its column.
  void print_row(const std::string& step, const std::string& time, const std::string& result) const {
    print_cells("1;32", step, time, result);
  }
  void print_details(const std::string& command, const std::string& output) const {
    if (!details_) return;
    std::cout << (colour_ ? "\033[2m" : "") << "\n  $ " << command << "\n  " << indented(output, 2)
              << (colour_ ? "\033[0m" : "") << std::endl;
  }
  void print_text(const std::string& text) const { std::cout << text << std::endl; }

 private:
  static constexpr std::size_t kStepColumns = 10, kTimeColumns = 10;

  void print_cells(const char* style, const std::string& step, const std::string& time,
                   const std::string& result) const {
    const std::string head =
        step + std::string(kStepColumns - step.size() + kTimeColumns - display_width(time), ' ') + time;
    std::cout << (colour_ ? "\033[" + std::string(style) + "m" + head + "\033[0m" : head) << "  "
              << indented(result, kStepColumns + kTimeColumns + 2) << std::endl;
  }
  static std::string indented(std::string_view text, std::size_t columns) {
    std::string result;
    for (const char letter : text) {
      result += letter;
      if (letter == '\n') result.append(columns, ' ');
    }
    return result;
  }

  const bool details_, colour_;
};

tl::unexpected<Error> claim_failed(const std::string& claim) {
  return fail(Code::kInternal, "check failed: " + claim);
}

std::chrono::nanoseconds elapsed_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::steady_clock::now() - start;
}

class Demo {
 public:
  Demo(SimulatedNode& node, const DemoTable& table) : node_(node), table_(table) {}

  Status play_steps(const std::string& machine) {
    GPULET_TRY(read_machine(machine));
    GPULET_TRY(register_agent());
    GPULET_TRY(place_pods());
    GPULET_TRY(break_gpu());
    GPULET_TRY(move_pod());
    GPULET_TRY(heal_gpu());
    GPULET_TRY(restart_kubelet());
    GPULET_TRY(measure_latencies());
    return end_agent();
  }

 private:
  Status read_machine(const std::string& machine) {
    GPULET_TRY_ASSIGN(const std::string list, node_.run_gpulet({"list", "-o", "json"}));
    const auto json = nlohmann::json::parse(list, nullptr, false);
    if (!json.is_object() || !json.contains("gpus"))
      return claim_failed("`gpulet list -o json` is JSON with gpus");
    for (const auto& gpu : json["gpus"]) gpus_.push_back(gpu.value("uuid", ""));
    if (gpus_.empty()) return claim_failed("the machine has GPUs");
    GPULET_TRY_ASSIGN(const std::string table, node_.run_gpulet({"list"}));
    GPULET_TRY_ASSIGN(const std::string topology, node_.run_gpulet({"topo"}));
    table_.print_details("gpulet list", table);
    table_.print_details("gpulet topo", topology);
    table_.print_title("A node with " + std::to_string(gpus_.size()) + " simulated " +
                       json["gpus"][0].value("model", "GPU") + " (" + machine + ") and a kubelet");
    return {};
  }

  Status register_agent() {
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
    table_.print_row(
        "discover", duration_text(registered),
        "the agent starts and registers; " + std::to_string(gpus_.size()) + " " + kGpu + " allocatable");
    return {};
  }

  Status place_pods() {
    std::size_t left = gpus_.size();
    for (const unsigned size : {2u, 4u, 1u}) {
      if (size > left) continue;
      const std::string name = "train-" + std::to_string(size);
      GPULET_TRY_ASSIGN(const Placed placed, place_pod(name, size, free_gpus()));
      table_.print_row("place", duration_text(placed.took),
                       "Pod " + name + ": " + text::join(text::split(placed.reason, ';'), ";\n"));
      left -= size;
    }
    return {};
  }

  struct Placed {
    std::vector<std::string> gpus;  // UUIDs, sorted
    std::string reason;
    std::chrono::nanoseconds took;
  };

  // The kubelet must allocate what `gpulet place` chooses from `free`.
  Result<Placed> place_pod(const std::string& name, unsigned size, const std::vector<std::string>& free) {
    const std::vector<std::string> command{
        "place", "--size", std::to_string(size), "--available", text::join(free, ","), "-o", "json"};
    GPULET_TRY_ASSIGN(const std::string advice, node_.run_gpulet(command));
    const auto choice = nlohmann::json::parse(advice, nullptr, false);
    if (!choice.is_object()) return claim_failed("`gpulet place -o json` is JSON");
    table_.print_details("gpulet " + text::join(command, " "), advice);
    const auto start = std::chrono::steady_clock::now();
    GPULET_TRY_ASSIGN(
        const PodGrant grant,
        node_.kubelet().admit_pod({.name = name, .uid = name, .containers = {{"main", {{kGpu, size}}}}}));
    const auto took = elapsed_since(start);
    auto got = grant.containers.at(0).devices.at(kGpu);
    std::vector<std::string> advised;
    for (const auto& device : choice["devices"]) advised.push_back(device.value("id", ""));
    std::ranges::sort(got);
    std::ranges::sort(advised);
    if (got != advised) return claim_failed(name + " gets the GPUs that `gpulet place` chooses");
    holders_[name] = got;
    return Placed{got, choice.value("reason", ""), took};
  }

  bool is_healthy(const KubeletState& state, const std::string& gpu) const {
    const auto& devices = state.resources.at(kGpu).devices;
    const auto found = devices.find(gpu);
    return found != devices.end() && found->second.healthy;
  }

  Status break_gpu() {
    const std::string pod = holders_.begin()->first;
    broken_ = holders_.begin()->second.front();
    const std::string name = gpu_names({broken_});
    const auto start = std::chrono::steady_clock::now();
    GPULET_TRY(node_.run_gpulet_sim({"xid", index_of(broken_), std::to_string(kFallenOffTheBus)}));
    if (!node_.kubelet().wait_for([&](const auto& state) { return !is_healthy(state, broken_); }, kWaitLimit))
      return claim_failed("the kubelet sees " + name + " as unhealthy");
    const auto took = elapsed_since(start);
    if (node_.kubelet().kubelet_state().resources.at(kGpu).allocatable() != gpus_.size() - 1)
      return claim_failed("only that GPU is withdrawn");
    std::string message;
    const auto deadline = std::chrono::steady_clock::now() + kWaitLimit;
    while ((message = node_.logged_message("GPUUnhealthy")).empty() &&
           std::chrono::steady_clock::now() < deadline) {
      node_.kubelet().wait_for([](const auto&) { return false; }, 10ms);
    }
    if (message.find(pod) == std::string::npos)
      return claim_failed("the agent's log names the Pod that uses it");
    table_.print_details("gpulet-sim xid " + index_of(broken_) + " " + std::to_string(kFallenOffTheBus),
                         "agent log: " + message);
    table_.print_row("break", duration_text(took),
                     "XID " + std::to_string(kFallenOffTheBus) + " on " + name +
                         ": withdrawn, with an event that names Pod " + pod + "\nthe other " +
                         std::to_string(gpus_.size() - 1) + " GPUs stay in service");
    return {};
  }

  // In a cluster the agent asks the Eviction API to remove the Pod, and its controller creates another.
  Status move_pod() {
    const auto [pod, held] = *holders_.begin();
    GPULET_TRY(node_.kubelet().remove_pod(pod));
    holders_.erase(pod);
    auto free = free_gpus();
    std::erase(free, broken_);
    if (held.size() > free.size()) return {};
    GPULET_TRY_ASSIGN(const Placed placed,
                      place_pod(pod + "-again", static_cast<unsigned>(held.size()), free));
    if (std::ranges::count(placed.gpus, broken_) != 0)
      return claim_failed("the replacement gets no broken GPU");
    table_.print_row("move", duration_text(placed.took),
                     "Pod " + pod + " is replaced: " + gpu_names(placed.gpus));
    return {};
  }

  Status heal_gpu() {
    const auto start = std::chrono::steady_clock::now();
    GPULET_TRY(node_.run_gpulet_sim({"heal", index_of(broken_)}));
    if (!node_.kubelet().wait_for([&](const auto& state) { return is_healthy(state, broken_); }, kWaitLimit))
      return claim_failed(gpu_names({broken_}) + " returns to service");
    table_.print_row("heal", duration_text(elapsed_since(start)),
                     gpu_names({broken_}) + " passes its health checks and returns to service");
    return {};
  }

  Status restart_kubelet() {
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
    const auto took = elapsed_since(start);
    const auto state = node_.kubelet().kubelet_state();
    for (const auto& [pod, held] : holders_) {
      const auto found = state.grants.find(pod);
      if (found == state.grants.end()) return claim_failed("Pod " + pod + " keeps its devices");
      auto devices = found->second.containers.at(0).devices.at(kGpu);
      std::ranges::sort(devices);
      if (devices != held) return claim_failed("Pod " + pod + " keeps its devices");
    }
    table_.print_row("restart", duration_text(took),
                     "the kubelet restarts: all GPUs are registered again, " +
                         std::to_string(holders_.size()) + " Pods keep theirs");
    return {};
  }

  Status measure_latencies() {
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
    std::string table;
    for (auto& [call, times] : calls) {
      std::ranges::sort(times);
      std::snprintf(line, sizeof line, "%-24s %4zu calls, median %s, 99th percentile %s\n", call.c_str(),
                    times.size(), duration_text(times[times.size() / 2]).c_str(),
                    duration_text(times[times.size() * 99 / 100]).c_str());
      table += line;
    }
    table_.print_details("the kubelet's calls", table);
    auto& allocations = calls["Allocate"];
    if (allocations.size() < kTimedAllocations) return claim_failed("the kubelet timed every Allocate");
    std::snprintf(line, sizeof line,
                  "%u Pods of 1 to %zu GPUs: Allocate at the median; the agent has %.1f MB",
                  kTimedAllocations, gpus_.size(), static_cast<double>(node_.agent_resident_bytes()) / 1e6);
    table_.print_row("allocate", duration_text(allocations[allocations.size() / 2]), line);
    return {};
  }

  Status end_agent() {
    GPULET_TRY_ASSIGN(const auto took, node_.stop_agent());
    table_.print_row("stop", duration_text(took), "the agent exits after SIGTERM");
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

  std::string index_of(const std::string& uuid) const {
    return std::to_string(std::ranges::find(gpus_, uuid) - gpus_.begin());
  }

  // "GPU 0", "GPUs 0, 1".
  std::string gpu_names(const std::vector<std::string>& uuids) const {
    std::vector<std::string> numbers;
    for (const auto& uuid : gpus_) {
      if (std::ranges::count(uuids, uuid) != 0) numbers.push_back(index_of(uuid));
    }
    return (numbers.size() == 1 ? "GPU " : "GPUs ") + text::join(numbers, ", ");
  }

  SimulatedNode& node_;
  const DemoTable& table_;
  std::vector<std::string> gpus_;                            // UUIDs by index
  std::map<std::string, std::vector<std::string>> holders_;  // Pod → sorted UUIDs
  std::string broken_;                                       // UUID
};

}  // namespace

std::string duration_text(std::chrono::nanoseconds time) {
  char text[32];
  if (time < 1ms) {
    std::snprintf(text, sizeof text, "%.0f µs", static_cast<double>(time.count()) / 1e3);
  } else if (time < 1s) {
    std::snprintf(text, sizeof text, "%.1f ms", Milliseconds(time).count());
  } else {
    std::snprintf(text, sizeof text, "%.1f s", Milliseconds(time).count() / 1e3);
  }
  return text;
}

int run_demo(const std::string& machine, bool details) {
  const DemoTable table(details);
  auto node = SimulatedNode::start_node(machine);
  const Status status = node ? Demo(**node, table).play_steps(machine) : fail(node.error());
  if (!status) {
    std::cerr << "gpulet-sim demo: " << status.error().full_message() << '\n';
    return 1;
  }
  table.print_text(R"(
Each row was checked on the kubelet's side of the real protocol. Next:
  make demo DETAILS=1      the same with the GPUs' topology, each choice and all latencies
  make test                everything that CI runs, a real Kubernetes included
  docs/INSTALL.md          install on a cluster with GPUs)");
  return 0;
}

}  // namespace gpulet::sim

#include "tests/storm/storm_node.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "sim/mps/daemon.h"
#include "sim/root/driver_root.h"
#include "sim/state/clients.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::storm {
namespace {

using namespace std::chrono_literals;

constexpr milliseconds kTurn = 3ms;     // between two looks at a condition
constexpr auto kStartLimit = 60s;       // until all devices are offered for the first time
constexpr auto kStopLimit = 10s;        // of an agent after SIGTERM
constexpr std::size_t kShareCount = 4;  // of kShares
constexpr const char* kVolumeOptions = "size=512k,mode=0755";
constexpr const char *kFiller = "/filler", *kConfig = "/config.yaml";  // on the volume

std::string config_text(const std::string& mps_root, bool sliced) {
  return "version: v1\nflags: {migStrategy: mixed, mpsRoot: " + mps_root +
         ", plugin: {deviceListStrategy: [cdi-cri]}}\n"
         "sharing: {mps: {resources: [{name: gpu, devices: [0, 1], rename: gpu.shared, replicas: 2}]}}\n"
         "gpulet:\n  partition:\n  - {devices: [" +
         std::to_string(kMigGpu) + "], " + (sliced ? "mig: {layout: all-1g.10gb}" : "whole: {}") + "}\n";
}

std::set<pid_t> children_of(pid_t parent) {
  std::set<pid_t> children;
  std::error_code ignored;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(parent) + "/task", ignored)) {
    const auto text = read_file(task.path().string() + "/children");
    for (const auto& child : text::split(text.value_or(""), ' ')) {
      if (const auto pid = text::parse_unsigned(text::trim(child))) children.insert(static_cast<pid_t>(*pid));
    }
  }
  return children;
}

void set_limit(pid_t pid, __rlimit_resource resource, rlim_t value) {
  rlimit limit{};
  if (::prlimit(pid, resource, nullptr, &limit) != 0) return;
  limit.rlim_cur = std::min(value, limit.rlim_max);
  ::prlimit(pid, resource, &limit, nullptr);
}

}  // namespace

Result<std::unique_ptr<StormNode>> StormNode::start_node(const std::string& programs,
                                                         const std::string& library) {
  std::unique_ptr<StormNode> storm(new StormNode);
  GPULET_TRY_ASSIGN(storm->node_, sim::SimulatedNode::start_node("hgx-h100", programs));
  GPULET_TRY_ASSIGN(storm->machine_, sim::open_driver_state(storm->node_->driver_root()));
  const std::string volume = storm->state_dir();
  GPULET_TRY(make_directories(volume));
  if (::mount("storm", volume.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, kVolumeOptions) != 0)
    return fail(errno_error("cannot mount a tmpfs", errno, volume));
  storm->mounted_ = true;
  GPULET_TRY_ASSIGN(storm->faults_, FaultFile::create_file(storm->node_->directory() + "/faults"));
  storm->sanitized_ = is_sanitized(programs);
  storm->preload_ = storm->faults_->environment(library, programs, volume);
  storm->api_ = std::make_unique<ClusterApi>(storm->node_->directory());
  storm->liveness_ = std::make_unique<LivenessProbe>(storm->node_->socket());
  if (!storm->set_mig_layout(false)) return fail(Code::kIo, "cannot write the config", volume);
  GPULET_TRY(storm->start_agent());
  const bool offered = storm->wait_until(
      [&] {
        return storm->kubelet().wait_for(
            [&](const auto& state) {
              const auto* gpus = tests::find_resource(state, kGpus);
              const auto* shares = tests::find_resource(state, kShares);
              if (gpus == nullptr || shares == nullptr) return false;
              storm->first_devices_ = {{kGpus, tests::healthy_ids(*gpus)},
                                       {kShares, tests::healthy_ids(*shares)}};
              return gpus->allocatable() == 6 && shares->allocatable() == kShareCount;
            },
            0ms);
      },
      kStartLimit, [] {});
  if (!offered) {
    storm->add_violation("not all devices are offered after " + std::to_string(kStartLimit.count()) +
                         " s: " + storm->devices_text());
  }
  return storm;
}

StormNode::~StormNode() {
  liveness_.reset();
  if (node_) node_->kill_agent();
  api_.reset();
  if (mounted_) ::umount2(state_dir().c_str(), MNT_DETACH);
}

void StormNode::add_violation(const std::string& text) {
  if (std::ranges::count(violations_, text) == 0) violations_.push_back(text);
}

bool StormNode::set_mig_layout(bool sliced) {
  if (!write_file_atomic(state_dir() + kConfig, config_text(node_->mps_root(), sliced))) return false;
  sliced_ = sliced;
  return true;
}

Status StormNode::start_agent() {
  const std::string volume = state_dir();
  sim::AgentOptions options{
      .arguments = {"--config-file=" + volume + kConfig, "--cdi-spec-dir=" + volume + "/cdi",
                    "--health-file=" + volume + "/health.json"},
      .environment = {"KUBECONFIG=" + api_->kubeconfig(), "NODE_NAME=node-1",
                      "GPULET_HEALTH_RECOVERY_HOLD=200ms", "GPULET_HEALTH_UNHEALTHY_POLL_INTERVAL=200ms",
                      "GPULET_HEALTH_RECOVERY_ACTION_DELAY=200ms", "GPULET_HEALTH_HOLD_GROWTH_FACTOR=1",
                      "GPULET_HEALTH_LIVENESS_INTERVAL=1s", "GPULET_PUBLISH_GPU_NODE=false",
                      "GPULET_METRICS_INTERVAL=1s", "GPULET_FAULTS_EVICTION=true",
                      "GPULET_FAULTS_EVICTION_QUARANTINED=evict", "GPULET_FAULTS_EVICTION_DRAINING=evict",
                      "GPULET_FAULTS_EVICTION_MAX_EVICTIONS=1000",
                      "GPULET_FAULTS_EVICTION_MAX_UNHEALTHY_GPUS_PERCENT=100"}};
  options.environment.insert(options.environment.end(), preload_.begin(), preload_.end());
  for (auto& option : tests::sanitizer_options()) options.environment.push_back(std::move(option));
  log_start_ = node_->agent_log().size();
  GPULET_TRY(node_->start_agent(options));
  agent_runs_ = true;
  killed_ = stopping_ = false;
  denied_since_start_ = faults_->block().error != 0;
  liveness_->on_agent_started();
  return {};
}

void StormNode::supervise() {
  kubelet().wait_for(
      [this](const auto& state) {
        check_devices(state);
        return true;
      },
      0ms);
  if (const auto why = liveness_->violation(); !why.empty()) add_violation(why);
  if (!agent_runs_) {
    if (!agent_wanted_ || (restart_at_ && Clock::now() < *restart_at_)) return;
    if (const auto started = start_agent(); !started) add_violation(started.error().full_message());
    return;
  }
  siginfo_t info{};
  const pid_t pid = node_->agent_id();
  if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
    if (!stopping_ || Clock::now() < stop_deadline_) return;
    add_violation("the agent did not end within " + std::to_string(kStopLimit.count()) + " s after SIGTERM");
    killed_ = true;
    node_->signal_agent(SIGKILL);
    return;
  }
  const auto exit = node_->wait_agent(1s);
  agent_runs_ = false;
  liveness_->on_agent_ended();
  restart_at_ = Clock::now() + restart_delay_;
  const auto lines = text::split(std::string(text::trim(node_->agent_log().substr(log_start_))), '\n');
  // An agent that cannot start says why in one line, and the kubelet starts it again (docs/ERRORS.md).
  const bool cannot_start = exit && exit->code == 1 && lines.size() == 1 && denied_since_start_;
  const bool expected =
      exit && ((killed_ && exit->signal == SIGKILL) || (stopping_ && exit->succeeded()) || cannot_start);
  if (expected) return;
  add_violation("the agent ended by itself: " + (exit ? exit->exit_text() : exit.error().full_message()) +
                ": " + (lines.empty() ? "" : lines.back()));
}

bool StormNode::wait_until(const std::function<bool()>& condition, milliseconds limit,
                           const std::function<void()>& update) {
  const auto deadline = Clock::now() + limit;
  for (;;) {
    update();
    supervise();
    if (condition()) return true;
    if (Clock::now() > deadline) return false;
    kubelet().wait_for([](const auto&) { return false; }, kTurn);
  }
}

void StormNode::stop_agent(milliseconds delay) {
  if (!agent_runs_) return;
  restart_delay_ = delay;
  stopping_ = true;
  stop_deadline_ = Clock::now() + kStopLimit;
  node_->signal_agent(SIGTERM);
}

void StormNode::end_agent() {
  agent_wanted_ = false;
  stop_agent(0ms);
  wait_until([this] { return !agent_runs_; }, 2 * kStopLimit, [] {});
  const auto log = node_->agent_log();
  for (const char* report : {"Sanitizer", "runtime error:", "terminate called", "Assertion"}) {
    // A listener that gets no memory may end in any way.
    if (!memory_was_limited_ && log.find(report) != std::string::npos)
      add_violation(std::string("the agent's log has a report of ") + report);
  }
}

void StormNode::kill_agent(milliseconds delay) {
  if (!agent_runs_) return;
  restart_delay_ = delay;
  killed_ = true;
  node_->signal_agent(SIGKILL);
}

std::optional<pid_t> StormNode::listener_pid() const {
  if (!agent_runs_) return std::nullopt;
  for (const pid_t child : children_of(node_->agent_id())) {
    const auto command = read_file("/proc/" + std::to_string(child) + "/cmdline");
    if (command && command->starts_with("gpulet-listener")) return child;
  }
  return std::nullopt;
}

void StormNode::kill_listener() {
  if (const auto listener = listener_pid()) ::kill(*listener, SIGKILL);
}

void StormNode::kill_mps_daemon() {
  static_cast<void>(sim::mps::crash_daemon(node_->mps_root() + "/" + kShares + "/pipe"));
}

void StormNode::stop_kubelet() {
  kubelet().stop_kubelet();
  kubelet_runs_ = false;
}

void StormNode::lose_checkpoint() {
  // As after a drain: no container runs whose devices the kubelet does not know.
  while (!pods_.empty()) remove_pod(std::string(pods_.begin()->first));
  for (const auto& [uid, pod] : kubelet().kubelet_state().pods) static_cast<void>(kubelet().remove_pod(uid));
  std::error_code ignored;
  std::filesystem::remove(kubelet().plugin_dir() + "/kubelet_internal_checkpoint", ignored);
}

void StormNode::resume_kubelet() {
  if (std::exchange(kubelet_runs_, true)) return;
  if (const auto resumed = kubelet().resume_kubelet(); !resumed)
    add_violation("the simulated kubelet: " + resumed.error().full_message());
}

void StormNode::fill_volume() {
  const FileDescriptor fd(
      ::open((state_dir() + kFiller).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const std::string page(4096, 'x');
  while (::write(fd.get(), page.data(), page.size()) > 0) {
  }
}

void StormNode::set_file_error(int error) {
  faults_->block().error = error;
  denied_since_start_ |= error != 0;
}

void StormNode::free_volume() { ::unlink((state_dir() + kFiller).c_str()); }

void StormNode::limit_descriptors(unsigned spare) {
  if (!agent_runs_ || sanitized_) return;
  limited_agent_ = node_->agent_id();
  denied_since_start_ = true;
  std::error_code ignored;
  rlim_t open = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(limited_agent_) + "/fd", ignored))
    ++open;
  set_limit(limited_agent_, RLIMIT_NOFILE, open + spare);
}

void StormNode::limit_listener_memory(unsigned spare) {
  const auto listener = listener_pid();
  if (!listener) return;
  limited_listener_ = *listener;
  memory_was_limited_ = true;
  const auto text = read_file("/proc/" + std::to_string(*listener) + "/statm").value_or("0");
  const auto pages = text::parse_unsigned(text.substr(0, text.find(' '))).value_or(0);
  set_limit(*listener, RLIMIT_AS, pages * static_cast<rlim_t>(::getpagesize()) + spare * 1024);
  liveness_->set_load(true);
}

void StormNode::remove_limits() {
  // Neither process may be another one by now: the agent is this process's child, and has not been reaped
  // while it runs; the listener is the agent's.
  if (agent_runs_ && limited_agent_ == node_->agent_id())
    set_limit(limited_agent_, RLIMIT_NOFILE, RLIM_INFINITY);
  if (const auto listener = listener_pid(); listener && *listener == limited_listener_)
    set_limit(limited_listener_, RLIMIT_AS, RLIM_INFINITY);
  limited_agent_ = limited_listener_ = 0;
  liveness_->set_load(false);
}

Result<sim::PodGrant> StormNode::admit_pod(const std::string& name,
                                           const std::map<std::string, unsigned>& resources) {
  sim::PodRequest pod{.name = name, .uid = name, .containers = {{"main", resources}}};
  pod.containers[0].resources.erase(kShares);
  const auto shares = resources.find(kShares);
  for (unsigned i = 0; shares != resources.end() && i < shares->second; ++i)
    pod.containers.push_back({"share-" + std::to_string(i), {{kShares, 1}}});
  return kubelet().admit_pod(std::move(pod));
}

void StormNode::add_pod(const std::string& name, sim::PodGrant grant) {
  api_->add_pod(name);
  pods_[name] = std::move(grant);
}

void StormNode::remove_pod(const std::string& name) {
  pods_.erase(name);
  api_->delete_pod(name);
  static_cast<void>(kubelet().remove_pod(name));
}

std::optional<std::uint32_t> StormNode::gpu_of_device(const std::string& id) const {
  const std::string uuid = id.substr(0, id.find("::"));
  const auto machine = machine_.lock_for_read();
  for (std::uint32_t i = 0; i < machine->gpu_count; ++i) {
    const auto& gpu = machine->gpus[i];
    if (uuid == gpu.uuid) return i;
    for (const auto& instance : gpu.mig.instances) {
      for (const auto& compute : instance.compute) {
        if (instance.used && compute.used && uuid == compute.uuid) return i;
      }
    }
  }
  return std::nullopt;
}

// No device is in two Pods, and no GPU whole in one and in parts in another.
void StormNode::check_devices(const sim::KubeletState& state) {
  std::map<std::string, std::string> owners;                          // device → Pod
  std::map<std::uint32_t, std::pair<std::string, std::string>> gpus;  // GPU → resource, Pod
  for (const auto& [pod, grant] : state.grants) {
    for (const auto& container : grant.containers) {
      for (const auto& [resource, ids] : container.devices) {
        for (const auto& id : ids) {
          const auto [owner, is_new] = owners.try_emplace(id, pod);
          if (!is_new) add_violation(id + " is allocated to the Pods " + owner->second + " and " + pod);
          const auto gpu = gpu_of_device(id);
          if (!gpu) {
            add_violation("the Pod " + pod + " holds " + id + ", which the node does not have");
            continue;
          }
          const auto [use, first] = gpus.try_emplace(*gpu, resource, pod);
          if (!first && use->second.first != resource) {
            add_violation("GPU " + std::to_string(*gpu) + " is allocated as " + use->second.first +
                          " to the Pod " + use->second.second + " and as " + resource + " to " + pod);
          }
        }
      }
    }
  }
}

std::map<std::string, std::set<std::string>> StormNode::expected_devices() const {
  auto expected = first_devices_;
  if (!sliced_) return expected;
  const auto machine = machine_.lock_for_read();
  const auto& gpu = machine->gpus[kMigGpu];
  expected[kGpus].erase(gpu.uuid);
  for (const auto& instance : gpu.mig.instances) {
    for (const auto& compute : instance.compute) {
      if (instance.used && compute.used) expected[kSlices].insert(compute.uuid);
    }
  }
  return expected;
}

bool StormNode::is_settled() const {
  if (!agent_runs_ || killed_ || stopping_) return false;
  const auto expected = expected_devices();
  if (sliced_ && (!expected.contains(kSlices) || expected.at(kSlices).size() != 7)) return false;
  return node_->kubelet().wait_for(
      [&](const auto& state) {
        for (const auto& [name, resource] : state.resources) {
          const auto wanted = expected.find(name);
          // The kubelet keeps the devices of a withdrawn resource for a while, as unhealthy.
          if (wanted == expected.end() ? resource.connected
                                       : !resource.connected || !tests::unhealthy_ids(resource).empty() ||
                                             tests::healthy_ids(resource) != wanted->second)
            return false;
        }
        return state.running && std::ranges::all_of(expected, [&](const auto& e) {
                 return state.resources.contains(e.first);
               });
      },
      0ms);
}

std::string StormNode::devices_text() const {
  std::string text;
  const auto state = node_->kubelet().kubelet_state();
  for (const auto& [name, resource] : state.resources) {
    text += (text.empty() ? "" : ", ") + name + ": " + std::to_string(resource.allocatable()) + " of " +
            std::to_string(resource.capacity()) + " healthy" + (resource.connected ? "" : ", not connected");
  }
  return text.empty() ? "no resource is registered" : text;
}

bool StormNode::is_driver_held() const { return !sim::check_unused(machine_, *machine_.lock_for_read(), {}); }

}  // namespace gpulet::storm

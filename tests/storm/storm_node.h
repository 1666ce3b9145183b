// The node of a storm: the simulated node with an API server, the agent as a process that is restarted as a
// kubelet restarts a container, and what can break. Everything that the agent writes but its sockets is on
// one volume, a small tmpfs. Needs root, for that mount.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/demo/demo.h"
#include "sim/state/state.h"
#include "tests/storm/cluster_api.h"
#include "tests/storm/fault_file.h"
#include "tests/storm/liveness_probe.h"

namespace gpulet::storm {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

inline constexpr const char* kGpus = "nvidia.com/gpu";
inline constexpr const char* kShares = "nvidia.com/gpu.shared";   // by MPS, of the GPUs 0 and 1
inline constexpr const char* kSlices = "nvidia.com/mig-1g.10gb";  // of kMigGpu
inline constexpr std::uint32_t kMigGpu = 7;
inline constexpr std::int64_t kDayS = 86'400;

class StormNode {
 public:
  // `programs`: the directory with gpulet and gpulet-sim. `library`: what is preloaded into the agent.
  // Returns once all devices are offered; if they are not, that is a violation. Precondition: the caller's
  // mount namespace is its own.
  static Result<std::unique_ptr<StormNode>> start_node(const std::string& programs,
                                                       const std::string& library);
  ~StormNode();
  StormNode(const StormNode&) = delete;

  // Restarts an agent that has ended, once its delay has passed. Records an end that nothing here caused.
  void supervise();
  // Calls `update` and supervise() until the condition holds. Returns false after `limit`.
  bool wait_until(const std::function<bool()>& condition, milliseconds limit,
                  const std::function<void()>& update);

  // What must not have happened, one line each.
  const std::vector<std::string>& violations() const { return violations_; }
  void add_violation(const std::string& text);

  // SIGTERM; the agent starts again after `delay`.
  void stop_agent(milliseconds delay);
  // SIGTERM for good. Waits for the end.
  void end_agent();
  // Writes the config, which is on the volume too, with MIG on or off on kMigGpu. Returns false if the volume
  // is full.
  bool set_mig_layout(bool sliced);

  // Faults. Each may be called at any time, and does nothing where its target does not exist.
  void kill_agent(milliseconds delay);
  void kill_listener();
  void kill_mps_daemon();
  void stop_kubelet();
  // Forgets all Pods too, which are no longer in pods().
  void lose_checkpoint();
  void resume_kubelet();
  void fill_volume();
  void free_volume();
  void set_file_error(int error);
  void set_clock_shift(std::int64_t seconds) { faults_->block().clock_shift_s = seconds; }
  // The agent has `spare` descriptors left, the listener `spare` KiB of memory. A sanitized agent keeps its
  // descriptors: UndefinedBehaviorSanitizer needs a pipe to check an object's type, and ends without one.
  void limit_descriptors(unsigned spare);
  void limit_listener_memory(unsigned spare);
  void remove_limits();

  // Pods that were admitted and not removed, with what they got.
  const std::map<std::string, sim::PodGrant>& pods() const { return pods_; }
  void add_pod(const std::string& name, sim::PodGrant grant);
  void remove_pod(const std::string& name);
  // Admits a Pod. Each share goes to a container of its own, which may have only one. Thread-safe.
  Result<sim::PodGrant> admit_pod(const std::string& name, const std::map<std::string, unsigned>& resources);

  // What the kubelet must have once no fault is left: resource → healthy ids.
  std::map<std::string, std::set<std::string>> expected_devices() const;
  // Whether the kubelet has exactly that.
  bool is_settled() const;
  // "nvidia.com/gpu: 5 of 6 healthy, …": for messages.
  std::string devices_text() const;
  bool is_driver_held() const;

  sim::Kubelet& kubelet() { return node_->kubelet(); }
  ClusterApi& api() { return *api_; }
  LivenessProbe& liveness() { return *liveness_; }
  const sim::StateFile& machine() const { return machine_; }
  std::string gpu_uuid(std::uint32_t gpu) const { return machine_.lock_for_read()->gpus[gpu].uuid; }
  std::optional<std::uint32_t> gpu_of_device(const std::string& id) const;
  std::string state_dir() const { return node_->state_dir(); }
  std::string agent_log() const { return node_->agent_log(); }

 private:
  StormNode() = default;
  Status start_agent();
  void check_devices(const sim::KubeletState& state);
  std::optional<pid_t> listener_pid() const;

  std::unique_ptr<sim::SimulatedNode> node_;
  std::unique_ptr<ClusterApi> api_;
  std::unique_ptr<LivenessProbe> liveness_;
  sim::StateFile machine_;
  std::optional<FaultFile> faults_;
  std::vector<std::string> preload_;  // environment variables
  bool sanitized_ = false;
  bool mounted_ = false;

  bool agent_runs_ = false, agent_wanted_ = true;
  bool killed_ = false, stopping_ = false;  // the end that is expected
  bool denied_since_start_ = false;         // files or descriptors, to the agent
  Clock::time_point stop_deadline_{};
  milliseconds restart_delay_{0};
  std::optional<Clock::time_point> restart_at_;
  std::size_t log_start_ = 0;
  bool kubelet_runs_ = true, sliced_ = false;
  pid_t limited_agent_ = 0, limited_listener_ = 0;
  bool memory_was_limited_ = false;

  std::map<std::string, std::set<std::string>> first_devices_;
  std::map<std::string, sim::PodGrant> pods_;
  std::vector<std::string> violations_;
};

}  // namespace gpulet::storm

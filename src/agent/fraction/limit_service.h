// Answers gpulet-hook: sets the driver's memory limits of a container on its cgroup before its first
// instruction, and clears them when its last process has ended. A container starts only where each of its
// GPUs has the limit that its Pod requests, as read back from the driver. One that requests no memory starts
// without a limit.
//
// The container is the one whose cgroup the process is in, as the kernel shows it; what the hook says must
// agree. A record is written before the first limit is set. Limits are set again when the driver has been
// loaded again and when another agent takes over; records of containers that have ended are cleared then.
//
// Where the kernel counts the memory of a cgroup for all its ancestors (dmem_controller.h), the Pod's cgroup
// has the sum of its running containers' limits too: memory that one has passed to another still counts there
// when the first has ended. It is raised before a container's own limit is set and lowered after that is
// cleared, so that none gets less than its own; where the driver refuses it, the Pod has none. With other
// accounting a container's limit would take the place of the Pod's, so it has none, and likewise on a GPU
// that another of its containers holds without a limit.
//
// Limits are cleared at the end of the last process, while the cgroup still exists: one kind of the driver's
// accounting keeps a limit for a cgroup that is gone, and could then hit a stranger.
//
// Cost at rest: one inotify watch for each container with a limit.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "agent/fraction/container_cgroup.h"
#include "agent/fraction/limit_records.h"
#include "agent/fraction/limit_request.h"
#include "agent/fraction/memory_ledger.h"
#include "agent/remediation/pod_evictor.h"
#include "base/loop.h"

namespace gpulet::agent {

// gpulet-hook waits longer (hook/limit_memory.h): it gets the reason.
inline constexpr Duration kLimitAnswerLimit = std::chrono::seconds(6);
inline constexpr std::size_t kMaxPendingLimits = 64;

// Reasons of the events about Pods.
inline constexpr const char* kLimitRefusedReason = "GpuMemoryLimitFailed";
inline constexpr const char* kLimitLostReason = "GpuMemoryLimitLost";
inline constexpr const char* kComputeRefusedReason = "GpuComputeLimitFailed";

struct LimitPorts {
  using Done = std::function<void(const Status&)>;

  Loop& loop;
  // MemoryLedger::find_limits() and refresh_pods().
  std::function<ContainerLimits(const std::string& pod_uid, const std::string& container)> find_limits;
  std::function<void(const PodRef& starting)> refresh_pods;
  // As in container_cgroup.h.
  std::function<Result<ContainerCgroup>(unsigned pid, const std::string& runtime_path)> find_cgroup;
  std::function<bool(const std::string& cgroup)> has_processes;
  std::function<Result<Subscription>(const std::string& cgroup, std::function<void()> ended)> watch_end;
  // Sets the limit of a cgroup on a GPU and reads it back. Does not block; `done` is called once, from the
  // loop.
  std::function<void(const DeviceUuid&, const std::string& cgroup, Bytes, Done done)> set_limit;
  // Errors: kNotFound where the driver or the kernel does not know the cgroup.
  std::function<void(const DeviceUuid&, const std::string& cgroup, Done done)> clear_limit;
  std::function<void(const EvictionEvent&)> notify;
  // Whether a limit of the GPU's memory counts for all cgroups below.
  std::function<bool(const DeviceUuid&)> counts_for_ancestors;
  // set_pod_memory_limit() (agent/driver/memory_limits.h).
  std::function<void(const DeviceUuid&, const std::string& cgroup, Bytes, Done done)> set_pod_limit;
  // ComputeLimits::hold_compute(), before the memory limits; empty: there are no compute limits.
  std::function<void(const ContainerLimits&, Duration within, Done done)> hold_compute = {};
};

// Loop's thread only.
class LimitService {
 public:
  using Done = LimitPorts::Done;

  // Reads the records; call restore_limits() once the driver is there.
  LimitService(LimitPorts ports, LimitRecordStore store);

  // Calls `done` once, at once or from the loop, within kLimitAnswerLimit: without an error the limits are in
  // force.
  void answer_request(const LimitRequest& request, Done done);

  // MemoryLedgerPorts::refreshed.
  void on_pods_read(const Status& result);

  // The driver is there, for the first time or again: sets the limits of all containers that run, and clears
  // those of the others.
  void restore_limits();

  // Whether the container has the driver's limit on the GPU, as read back.
  bool is_in_force(const std::string& container_id, const DeviceUuid& gpu) const;
  // Whether a container has a limit, or one that could not be cleared.
  bool has_limits() const { return !containers_.empty(); }

 private:
  struct Pending {
    LimitRequest request;
    std::string cgroup, pod_cgroup;
    bool has_asked = false;           // for the Pods to be read
    bool is_holding_compute = false;  // resolved, and waits for that alone
    Done done;
    Time until{};
    Subscription deadline;
  };
  enum class Phase {
    kHeld,     // the limits are in force, or were when the driver was there
    kSetting,  // for a container that waits
    kRestoring,
    kClearing,
    kStale,  // has ended or been refused, and could not be cleared
  };
  struct Limited {
    LimitRecord record;
    Phase phase = Phase::kHeld;
    bool is_again_due = false;  // the driver came back meanwhile
    Error clear_error{Code::kInternal, ""};
    bool has_clear_error = false;
    bool is_lost = false;  // could not be set again
    Done done{};           // while kSetting, until it is answered
    Subscription deadline{}, watch{};
  };

  void load_records();
  void resolve_pending(const std::string& id, const Status& result);
  void refuse_pending(const std::string& id, const PodRef& pod, const Error& why);
  void hold_compute(const std::string& id, const ContainerLimits& limits);
  void begin_setting(Pending pending, const ContainerLimits& limits);
  void set_next(const std::string& id, std::size_t index);
  void set_own(const std::string& id, std::size_t index);
  Bytes pod_limit(const LimitRecord& record, const DeviceUuid& gpu) const;
  void settle_pod(const LimitRecord& record, const DeviceUuid& gpu, Done done);
  void finish_setting(const std::string& id);
  void fail_setting(const std::string& id, const Error& why);
  void watch_container(const std::string& id, Limited& limited);
  void on_end(const std::string& id);
  void begin_clearing(const std::string& id);
  void clear_next(const std::string& id, std::size_t index);
  void note_clear_error(const std::string& id, const DeviceUuid& gpu, const Status& result);
  void finish_clearing(const std::string& id);
  void restore_one(const std::string& id);
  void notify_refusal(const PodRef& pod, const std::string& container, const Error& why);

  LimitPorts ports_;
  LimitRecordStore store_;
  std::map<std::string, Pending> pending_;     // by container id
  std::map<std::string, Limited> containers_;  // by container id
  Lifetime lifetime_;
};

}  // namespace gpulet::agent

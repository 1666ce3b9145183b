// Holds the memory limits of containers on shared GPUs where the driver has none: once a second, the memory
// that the driver lists for each container's processes is compared with the ledger. A container above its
// limit is told by an event at once. Another reading half a second later confirms it, and what the setting
// gpulet.fraction.onExceeded says is done: nothing more, its processes on the GPU are killed, or its Pod is
// evicted. Where it has no process to kill, the Pod is evicted instead.
//
// Where MPS shares the GPU, the work of the container's clients is ended before they are killed, and when an
// eviction has been accepted (one that is refused ends nobody). With another program's daemon the Pod is
// evicted instead of a kill.
//
// A process belongs to a container by the cgroup that the kubelet and the engine made, which no container can
// leave. It is looked up again before anything is done. Processes of unknown containers are nobody's.
//
// Nothing is read while no container with a limit holds a GPU. Cost with a limit: one turn of the driver's
// thread each second, with one driver call for each such GPU; two turns of the loop every kReadingsPerList
// seconds and where a use has changed, with another driver call for that GPU; one file of /proc for each new
// process.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/fraction/memory_ledger.h"
#include "agent/remediation/pod_evictor.h"
#include "base/loop.h"
#include "config/gpulet_settings.h"
#include "fraction/limit_grade.h"
#include "fraction/memory_audit.h"
#include "inventory/snapshot.h"
#include "k8s/object_reader.h"
#include "k8s/pods.h"
#include "metrics/gpulet_page.h"
#include "metrics/pods.h"

namespace gpulet::agent {

inline constexpr Duration kAuditInterval = std::chrono::seconds(1);
// A process that ends is listed beside its successor until its memory is free: 122 ms on an H100.
inline constexpr Duration kConfirmationDelay = std::chrono::milliseconds(500);
// Where the use of a GPU stays the same its processes are listed at every so many readings only: what one
// container took, another would have to give back in the same second.
inline constexpr unsigned kReadingsPerList = 5;
// A client of MPS that is killed with work in flight can hang others, so its work is ended first; one whose
// daemon takes longer is killed all the same.
inline constexpr Duration kEndClientsLimit = std::chrono::milliseconds(500);
// Of one GPU; further ones are nobody's.
inline constexpr std::size_t kMaxAuditedProcesses = 4096;

// Reasons of the events about Pods.
inline constexpr const char* kMemoryExceededReason = "GpuMemoryExceeded";
inline constexpr const char* kMemoryKilledReason = "GpuMemoryKilled";
inline constexpr const char* kMemoryEvictionReason = "GpuMemoryEviction";
inline constexpr const char* kMemoryRequestReason = "GpuMemoryRequestInvalid";
inline constexpr const char* kMemoryGradeReason = "GpuMemoryGradeLowered";

struct ProcessMemory {
  unsigned pid = 0;             // the host's
  std::optional<Bytes> memory;  // nullopt: not reported
};
struct GpuMemoryReading {
  std::optional<Bytes> used;                            // without what the driver reserves; nullopt: unknown
  std::optional<std::vector<ProcessMemory>> processes;  // nullopt: not listed, since the use is the known one
};

struct GpuMemoryQuestion {
  DeviceUuid gpu;
  std::optional<Bytes> known;  // with this use, the processes need not be listed
};
using GpuMemoryReadings = std::vector<Result<GpuMemoryReading>>;

struct MemoryAuditorPorts {
  Loop& loop;
  MemoryLedgerPorts ledger;  // without `on_invalid_request` and `changed`
  // Does not block; called back from the loop, not from inside the call, with an answer for each question in
  // their order. A GPU is in one call at a time. One that hangs may fail the call for all.
  std::function<void(std::vector<GpuMemoryQuestion>, std::function<void(Result<GpuMemoryReadings>)>)>
      read_memory;
  // The cgroups of a process (/proc/PID/cgroup); empty where it has ended.
  std::function<std::vector<metrics::PodCgroup>(unsigned pid)> cgroups;
  // Kills a process if it is in that cgroup of a Pod. Errors: kNotFound, kPermissionDenied.
  std::function<Status(unsigned pid, const metrics::PodCgroup& expected)> kill;
  std::function<std::unique_ptr<k8s::Eviction>(const PodRef&, k8s::Eviction::UpdateCallback)> evict;
  std::function<void(const EvictionEvent&)> notify;
  // Whether the container's part of a GPU is shared by MPS, where a killed client may take others with it:
  // its work is ended first, or its Pod is evicted instead.
  std::function<bool(const LedgerEntry&, const DeviceUuid&)> is_shared_by_mps;
  // What holds a container's limit on a GPU (partition/limit_means.h).
  std::function<fraction::LimitMeans(const LedgerEntry&, const DeviceUuid&)> limit_means;
  // mps::Daemon::end_clients() of the agent's daemon of the GPU; false, without `done`: there is none. May be
  // empty.
  std::function<bool(const DeviceUuid&, const std::vector<unsigned>& pids, std::function<void()> done)>
      end_clients = {};
  // Compares the use of GPUs with the known one every kAuditInterval, without a turn of the loop, and calls
  // `ended` from the loop with the intervals that have passed: after that many, or when the use of a GPU
  // differs or is unknown. An error says nothing about any GPU. Empty, and `ended` is not called: not
  // possible now. May be empty.
  using WatchEnded = std::function<void(Result<unsigned>)>;
  std::function<Subscription(std::vector<GpuMemoryQuestion> known, unsigned intervals, WatchEnded ended)>
      watch_memory = {};
};

// Loop's thread only.
class MemoryAuditor {
 public:
  MemoryAuditor(MemoryAuditorPorts ports, std::uint64_t seed);

  // `needs_ledger`: others use ledger(), also without an action.
  void apply_action(config::ExceededAction action, bool needs_ledger = false);
  void use_snapshot(inventory::SnapshotPtr snapshot);
  void on_allocated();

  // nullptr while neither an action nor anybody else needs it.
  MemoryLedger* ledger() { return ledger_ ? &*ledger_ : nullptr; }

  metrics::MemoryAuditStats stats() const;

 private:
  struct AuditedGpu {
    bool is_reading = false;
    bool has_failed = false;  // at the last reading: it is read alone until it answers
    Subscription confirmation;
    // When the processes were last listed, as all below; nullopt: unknown, or the ledger has changed since.
    std::optional<Bytes> used;
    std::vector<ProcessMemory> processes;
    unsigned readings = 0;                                        // since then
    std::map<unsigned, std::vector<metrics::PodCgroup>> cgroups;  // by pid
    std::vector<fraction::MemoryUse> uses;
    Bytes unlisted;
  };

  void follow_ledger();
  // An ephemeral container that lowers the grade of a limit is told by an event, once.
  void report_ephemeral_containers();
  void read_all();
  // Between two lists of processes, where every use is known and nobody is above a limit.
  void watch_all();
  void end_watch();
  // Nothing to ask while a reading is in progress.
  static std::optional<GpuMemoryQuestion> next_question(const DeviceUuid& gpu, const AuditedGpu& audited);
  void read_memory(std::vector<GpuMemoryQuestion> questions);
  void on_reading(const DeviceUuid& gpu, const Result<GpuMemoryReading>& reading);
  struct Owner {
    const LedgerEntry* entry = nullptr;  // null: none, or unknown
    metrics::PodCgroup cgroup{};         // by which it was found
    bool is_unknown = false;             // of a Pod or container that the ledger does not know
  };
  Owner find_owner(const DeviceUuid& gpu, const std::vector<metrics::PodCgroup>& cgroups) const;
  fraction::GpuMemoryUse assign_processes(const DeviceUuid& gpu, AuditedGpu& audited);
  void judge_use(const DeviceUuid& gpu, const fraction::MemoryUse& use);
  bool are_still_of(const DeviceUuid& gpu, const fraction::MemoryUse& use);
  void act_on(const DeviceUuid& gpu, const LedgerEntry& entry, const fraction::MemoryUse& use, bool is_first);
  void kill_processes(const DeviceUuid& gpu, const LedgerEntry& entry, const fraction::MemoryUse& use,
                      bool is_first);
  using Holder = std::pair<DeviceUuid, fraction::ContainerKey>;
  // Ends the work of its clients of MPS first. Whether that is possible.
  bool end_and_kill(const DeviceUuid& gpu, const LedgerEntry& entry, const fraction::MemoryUse& use,
                    bool is_first);
  void on_clients_ended(const Holder& holder);
  void end_clients_of(const Holder& holder);
  std::vector<unsigned> present_processes(const Holder& holder, const std::vector<unsigned>& pids) const;
  void evict_pod(const DeviceUuid& gpu, const LedgerEntry& entry, const std::string& text);
  void on_eviction_update(const PodRef& pod, const std::string& text, const k8s::EvictionUpdate& update);
  const LedgerEntry* find_entry(const DeviceUuid& gpu, const fraction::ContainerKey& container) const;
  std::string describe_use(const DeviceUuid& gpu, const LedgerEntry& entry,
                           const fraction::MemoryUse& use) const;

  MemoryAuditorPorts ports_;
  const std::uint64_t seed_;
  config::ExceededAction action_ = config::ExceededAction::kNone;
  inventory::SnapshotPtr snapshot_;
  bool needs_ledger_ = false;
  std::optional<MemoryLedger> ledger_;  // while an action is set, or others need it
  std::map<DeviceUuid, AuditedGpu> audited_;
  fraction::ExcessTracker tracker_;
  struct PendingEviction {
    std::unique_ptr<k8s::Eviction> eviction;
    std::string waits_for;  // as told
  };
  std::map<PodRef, PendingEviction> evictions_;  // until the Pod has gone
  std::map<fraction::ContainerKey, std::vector<fraction::GradeCap>> reported_caps_;
  struct Ending {
    LedgerEntry entry;
    fraction::MemoryUse use;
    bool is_first = false;
    Subscription limit{};
  };
  std::map<Holder, Ending> ending_;  // whose clients are ended before they are killed
  metrics::MemoryAuditCounts counts_;
  Subscription timer_;  // the next reading of all; with a watch, for when that does not end in time
  Subscription watch_;
  Time watched_since_{};
  Lifetime lifetime_;
};

}  // namespace gpulet::agent

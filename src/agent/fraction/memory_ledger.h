// Which containers hold which GPUs of this node, and how much of their memory each may use: the kubelet's
// PodResources joined with what the Pods request (fraction/fraction_request.h), and with what their claims
// have (dra/claim_memory.h); the least counts. Rebuilt from these after a restart; nothing is written.
//
// While the claims of a container are not known, its last limit counts.
//
// What a Pod requests is read once, when it is first seen: an annotation that its owner changes later raises
// no limit. A Pod with a limit is read again each minute: ephemeral containers may have been added.
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/loop.h"
#include "base/types.h"
#include "dra/claim_memory.h"
#include "fraction/container_rules.h"
#include "fraction/fraction_request.h"
#include "fraction/memory_audit.h"
#include "inventory/snapshot.h"
#include "k8s/object_reader.h"
#include "metrics/pods.h"

namespace gpulet::agent {

// The kubelet lists a new holder a moment after its Allocate has returned; a busy one, later. The first is
// before a container can start: its sandbox alone takes longer. So its hook finds the Pod read.
inline constexpr Duration kLedgerAllocationDelays[] = {
    std::chrono::milliseconds(10), std::chrono::milliseconds(500), std::chrono::seconds(5)};
// Pods leave unannounced: until the next List, one that has left still counts as a holder.
inline constexpr Duration kLedgerPollInterval = std::chrono::seconds(20);
inline constexpr Duration kLimitedPodInterval = std::chrono::minutes(1);
// The Pod shows the id of a container that starts a moment after its hook has asked.
inline constexpr Duration kLedgerStartDelay = std::chrono::seconds(2);
// A container's id comes a moment after its start; a Pod that holds no GPU but uses one never becomes known.
inline constexpr BackoffLimits kUnknownProcessBackoff{std::chrono::seconds(1), std::chrono::seconds(16)};
inline constexpr unsigned kUnknownProcessReads = 5;
inline constexpr std::size_t kMaxUnknownCgroups = 1024;     // that are remembered
inline constexpr std::size_t kMaxMissingPods = 1024;        // likewise
inline constexpr std::size_t kMaxUnlistedPods = 256;        // likewise
inline constexpr std::size_t kMaxStartedContainers = 4096;  // likewise
inline constexpr BackoffLimits kLedgerRetryBackoff{std::chrono::seconds(1), std::chrono::seconds(30)};

struct LedgerEntry {
  PodRef pod;  // uid is empty until the Pod is read: then it has no limit
  std::string container;
  std::string container_id;  // the engine's, without "containerd://"; empty: not known yet
  ResourceName resource;
  Bytes limit;         // on this GPU, of all its shares; 0: none
  std::string source;  // the field of the limit: "annotation gpu-fraction"
  // What the Pod's spec lets the container reach. Until the Pod is read: everything.
  fraction::ContainerAccess access{.is_privileged = true};
  std::vector<fraction::GradeCap> caps{};  // of this GPU: why its limit holds less than the node's
  // Of each of its processes, by the MPS control daemon of its claim; 0: none.
  std::uint64_t mps_process_mib = 0;
  bool is_limited() const { return limit != Bytes{} || mps_process_mib != 0; }
  fraction::ContainerKey key() const {
    // Unread containers are different holders too.
    return {pod.uid.empty() ? pod.name_space + "/" + pod.name : pod.uid, container};
  }
  friend bool operator==(const LedgerEntry&, const LedgerEntry&) = default;
};

// What is known of the limits of one container.
struct ContainerLimits {
  enum class State {
    kUnknown,  // the kubelet or the API server has not said yet that it holds a GPU
    kRefused,  // it requests memory for which there is no limit
    kKnown,
  };
  State state = State::kUnknown;
  PodRef pod{};                          // empty if unknown
  std::string reason{};                  // kRefused
  std::map<DeviceUuid, Bytes> limits{};  // kKnown, by GPU; none: it requests no memory
  std::set<DeviceUuid> unlimited{};      // kKnown: GPUs that a container of the Pod holds without a limit
  // kKnown: what the container requests of the compute of each of its shares (compute_limits.h); 0: nothing.
  unsigned compute_thousandths = 0;
  bool is_init = false;                                  // no list of the kubelet has what it holds
  std::map<ResourceName, std::vector<DeviceId>> held{};  // of an init container: no ids
  std::string held_problem{};  // why `held` may have another Pod's devices, or lack some; empty: it is exact
};

struct MemoryLedgerPorts {
  Loop& loop;
  // As Devices::list_for_start().
  std::function<void(std::function<void(Result<std::vector<ContainerDevices>>)>)> holders;
  k8s::ObjectReader& reader;
  // The request of a Pod is invalid; called once for each run of a Pod.
  std::function<void(const PodRef&, const std::string& why)> on_invalid_request;
  // The ledger is another one. Called from the loop, not from inside a call.
  std::function<void()> changed;
  // A round of reads has ended that began after the last call of refresh_pods(); the first error, where the
  // kubelet or the API server did not answer. Also with an error after a round that began before. May be
  // empty.
  std::function<void(const Status&)> refreshed = {};
  // As Devices::shows_allocations(); empty: never.
  std::function<bool()> shows_allocations = {};
  // dra::claimed_memory() of the claims that are prepared. Errors: those; kUnavailable while this agent does
  // not serve claims yet; kUnsupported where another driver does, whose claims set no limits. May be empty.
  std::function<Result<std::map<DeviceUuid, dra::ClaimedMemory>>(const std::string& name_space,
                                                                 std::span<const k8s::ContainerClaim>)>
      claimed_memory = {};
  // dra::check_named_claims() of the claims that are prepared: an error refuses the container. May be empty.
  std::function<Status(const k8s::PodMetadata&, const std::string& container,
                       const std::vector<fraction::FractionRequest>&)>
      check_named_claims = {};
};

// Loop's thread only.
class MemoryLedger {
 public:
  explicit MemoryLedger(MemoryLedgerPorts ports, std::uint64_t seed);

  // The GPUs of the node: only they have a place in the ledger, without those in MIG mode, whose instances
  // hold their memory themselves.
  void use_snapshot(inventory::SnapshotPtr snapshot);
  void on_allocated();
  // A process on `gpu` is of a Pod or container that the ledger does not know: reads the Pods that hold the
  // GPU again, kUnknownProcessReads times for each cgroup.
  void on_unknown_process(const DeviceUuid& gpu, const metrics::PodCgroup& cgroup);

  // Reads the holders again, and those of their Pods that are not known. Where a Pod that find_limits() did
  // not find is not among them, all Pods are read: PodResources has no UID. Then `refreshed` is called; after
  // a failure also when a later round has succeeded.
  // `starting`: as its runtime names a Pod that find_limits() did not find; it is read at the same time as
  // the holders, and counts if it has this UID.
  void refresh_pods(const PodRef& starting = {});

  // The limits of a container of this run of a Pod, which is about to start: its id is read soon. An init
  // container is in no list of the kubelet: where it requests memory, it is refused; it has those of its
  // claims.
  //
  // What the kubelet has listed counts if it was asked after the container's first call of this, or after
  // every allocation: a name alone may be that of an older Pod, which held other GPUs.
  ContainerLimits find_limits(const std::string& pod_uid, const std::string& container);

  // By GPU, each list by Pod and container. GPUs without a limit are there too.
  const std::map<DeviceUuid, std::vector<LedgerEntry>>& entries() const { return entries_; }
  bool has_limits() const;

 private:
  struct HeldContainer {
    std::map<DeviceUuid, ResourceName> resources;  // by GPU, one of those that it has it by
    std::map<DeviceUuid, unsigned> shares;         // by GPU
    std::set<DeviceUuid> unknown;                  // GPUs that the snapshot lacks, or their shares
    bool has_claim = false;                        // some of its GPUs are of a claim
    bool has_twin = false;                         // of another Pod with the same names
    // In their own order: the kubelet's differs from List to List.
    std::map<ResourceName, std::set<DeviceId>> ids{};
    std::set<DeviceUuid> claimed{};  // of its GPUs
    friend bool operator==(const HeldContainer&, const HeldContainer&) = default;
  };
  struct HeldPod {
    std::map<std::string, HeldContainer> containers;
    std::optional<k8s::PodMetadata> facts;
    std::map<std::string, fraction::FractionRequest> requests;  // by container
    bool is_due = true;                                         // to be read
    std::string problem = {};                                   // of the requests
    Time read_at{};
    bool starts = false;  // one of its containers
    bool has_claimed_limit = false;
    bool has_limit() const;
    const HeldContainer* find_container(const std::string& name) const;
  };

  using ClaimedMemory = std::map<DeviceUuid, dra::ClaimedMemory>;
  // What a container has by its claims.
  struct Claimed {
    ClaimedMemory memory{};
    // GPUs of requests that the container does not name: the kubelet lists all of a claim for each.
    std::set<DeviceUuid> of_other_requests{};
  };
  // Errors: also kUnavailable where the claim that gave the container a GPU is not known.
  Result<Claimed> find_claimed(const HeldPod& pod, const std::string& container) const;
  struct Limit {
    Bytes amount;  // 0: none
    std::string source;
  };
  // Of a container on a GPU without MIG.
  static Limit limit_on(const inventory::Gpu& gpu, const HeldPod& pod, const std::string& container,
                        unsigned shares, const ClaimedMemory& claimed);
  std::set<DeviceUuid> unlimited_gpus(const HeldPod& pod) const;
  Status check_named_claims(const HeldPod& pod, const std::string& container) const;
  using Entries = std::map<DeviceUuid, std::vector<LedgerEntry>>;
  // nullptr where this run of the Pod has none.
  static const LedgerEntry* find_entry(const Entries& entries, const DeviceUuid& gpu, const HeldPod& pod,
                                       const std::string& container);
  // `before`: what still counts of containers whose claims are not known now.
  void add_entries(const PodName& name, HeldPod& pod, const std::map<std::string, unsigned>& share_uses,
                   const Entries& before);
  // The containers that use each share of a claim.
  std::map<std::string, unsigned> count_share_uses() const;
  bool is_idle() const { return !is_listing_ && reading_.empty(); }
  // Whether the newest List shows what the container holds.
  bool is_list_current(const std::string& pod_uid, const std::string& container, bool has_claim);
  void refresh();
  void read_started_pods();
  bool has_pod(const std::string& uid) const;
  // Of pods_ and unlisted_; nullptr where there is none.
  HeldPod* find_run(const std::string& uid);
  void keep_unlisted(const PodName& name, const k8s::PodMetadata& facts);
  void on_holders(const std::vector<ContainerDevices>& holders);
  void use_early_pods();
  void read_pod(const PodName& name);
  void read_due_pods();
  void on_pod(const PodName& name, const Result<std::optional<k8s::PodMetadata>>& facts);
  void use_facts(HeldPod& pod, const k8s::PodMetadata& facts);
  void rebuild();
  void finish_reads();
  void schedule_poll();
  void on_failure(const Error& error);

  MemoryLedgerPorts ports_;
  Backoff backoff_;
  inventory::SnapshotPtr snapshot_;
  std::map<PodName, HeldPod> pods_;
  // Pods of refresh_pods() that are in no List, and have an init container with a claim.
  std::map<PodName, HeldPod> unlisted_;
  Entries entries_;
  struct Unknown {
    unsigned reads = 0;
    Time next{};
  };
  std::map<std::pair<std::string, std::string>, Unknown> unknown_;  // by Pod UID and container id
  bool is_listing_ = false, is_again_due_ = false;
  bool is_stale_ = false;  // what the entries are made of has changed
  std::set<std::string> missing_;  // UIDs that find_limits() has not found since all Pods were read
  bool are_all_due_ = false;       // Pods, to be read in the next round
  bool is_full_round_ = false;
  std::set<PodName> reading_;
  std::map<PodName, k8s::PodMetadata> early_;  // that were read before the List that shows them
  // Lists: begun; the newest that was answered; the last that began before an allocation, and before the
  // first find_limits() of a container (Pod UID and name).
  std::uint64_t begun_ = 0, answered_ = 0, before_allocation_ = 0;
  std::map<std::pair<std::string, std::string>, std::uint64_t> before_start_;
  bool has_failed_ = false;  // a read of this round
  std::string reported_problem_;
  std::string claim_problem_;  // why the claims of a container are not known; empty: all are
  Status round_result_;
  Subscription next_, after_start_;
  Subscription after_allocation_[std::size(kLedgerAllocationDelays)];
  Lifetime lifetime_;
};

}  // namespace gpulet::agent

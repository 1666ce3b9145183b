// Prepares and unprepares claims on this node: reads each claim from the API server, decides
// (dra/claim_preparation.h), records, and writes the claim's CDI document.
//
// Every claim of a request has its own answer. What may pass by itself (the driver is coming up, the API
// server is away, another claim is still being unprepared, an MPS control daemon starts) is waited for inside
// the call, because the kubelet tries a failed claim again only after 60 to 90 s; the reason is answered
// before the kubelet gives up.
//
// Source: the kubelet's DRA API v1 and v1beta1 (Kubernetes 1.36); docs/dra.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "cdi/spec.h"
#include "dra/claim_counts.h"
#include "dra/claim_preparation.h"
#include "dra/claim_record.h"
#include "dra/device_pool.h"
#include "dra/partition_keeper.h"
#include "fraction/limit_grade.h"
#include "mps/plan.h"

namespace gpulet::dra {

// A claim as the kubelet names it.
struct ClaimName {
  std::string name_space, name, uid;
};

// Reads claims and Pods from the API server, several at a time. Each callback comes once, from the loop,
// never from inside the call or after destruction.
class ClaimSource {
 public:
  virtual ~ClaimSource() = default;
  // The claim's JSON; nullopt where there is none of that name.
  virtual void read_claim(const ClaimName& claim,
                          std::function<void(Result<std::optional<std::string>>)> done) = 0;
  // The JSON of the Pod of that name, perhaps with another uid; nullopt where there is none.
  virtual void read_pod(const PodRef& pod, std::function<void(Result<std::optional<std::string>>)> done) = 0;
};

// Runs the MPS control daemons of claims. Loop's thread only; never calls the controller from inside a call.
class ClaimDaemons {
 public:
  virtual ~ClaimDaemons() = default;
  // Makes exactly these daemons run. Names are unique.
  virtual void set_daemons(std::vector<mps::DaemonSpec> daemons) = 0;
  // Whether a daemon of set_daemons() serves. Errors: kUnavailable while it does not, with the reason;
  // kUnsupported where no daemon can be started for a claim.
  virtual Status check_daemon(const std::string& name) const = 0;
  // The name of a daemon that runs with this device or still stops, of a claim or a resource; empty if there
  // is none.
  virtual std::string find_holder(const DeviceUuid& device) const = 0;
  // As the host sees it.
  virtual std::string mps_root() const = 0;
};

// What claims are prepared from; replaced as a whole.
struct NodeDevices {
  DevicePool pool;
  cdi::Spec base;                                   // the node's CDI document, with devices by UUID
  std::map<std::string, std::string> shown_uuids;   // as in PreparationInput
  std::map<DeviceUuid, std::string> withheld = {};  // likewise
  FeatureGates gates = {};
  std::map<DeviceUuid, fraction::LimitMeans> limit_means = {};  // by GPU (dra/limit_demand.h)
};

struct ClaimSettings {
  std::string pool_name;
  std::string record_directory;  // "/run/gpulet/claims"
  std::string cdi_directory;     // "/var/run/cdi"
  // "/var/lib/kubelet/plugins/gpu.nvidia.com/checkpoint.json" (dra/nvidia_checkpoint.h); read at the start.
  std::string nvidia_checkpoint = {};
  // The kubelet gives up after 45 s; the reason should reach its event.
  Duration answer_within = std::chrono::seconds(40);
  BackoffLimits retry{std::chrono::milliseconds(100), std::chrono::seconds(2)};
};

struct PreparedDevice {
  std::string request, pool, device;
  std::string cdi_id;
  std::string share_id = {};
  friend bool operator==(const PreparedDevice&, const PreparedDevice&) = default;
};
using PreparedClaim = std::vector<PreparedDevice>;

inline constexpr std::size_t kMaxPreparations = 1024;  // at the same time; one more is refused

// A claim that the kubelet asks for, and why it is not prepared.
struct UnpreparedClaim {
  ClaimName claim;
  Time since{};  // the first call without success
  std::string reason;
};
// The kubelet tries a claim again within 90 s, as long as its Pod is there.
inline constexpr Duration kUnpreparedMemory = std::chrono::minutes(3);
// Until then the API server is not late.
inline constexpr Duration kQuietRead = std::chrono::seconds(1);

// Loop's thread only. No callback comes after destruction.
class ClaimController {
 public:
  // Reads the records of an earlier process, and once those of NVIDIA's driver, and hands the daemons of
  // those claims to `daemons`. The three ports must outlive the controller. Errors: those of
  // RecordStore::load_records; single broken records are logged.
  static Result<std::unique_ptr<ClaimController>> start_controller(Loop& loop, ClaimSource& source,
                                                                   ClaimDaemons& daemons,
                                                                   ClaimPartitions& partitions,
                                                                   ClaimSettings settings);
  ~ClaimController();
  ClaimController(const ClaimController&) = delete;

  // What was asked of the ClaimPartitions before is not answered any more.
  void restart_partitions() { partitions_.restart_calls(); }

  // nullptr while the driver is away. Claims that wait for a device or a daemon are tried again at once.
  void set_devices(std::shared_ptr<const NodeDevices> devices);

  // `done` gets an entry for every uid of the request, once, from the loop or from inside this call. A claim
  // that is prepared already has the same answer. Errors of a claim: those of plan_preparation; kNotFound
  // for one that does not exist; those of reading it and of writing files; kFailedPrecondition when it is
  // unprepared meanwhile; those of dra/limit_demand.h, where the claim has no record yet.
  void prepare_claims(const std::vector<ClaimName>& claims,
                      std::function<void(std::map<std::string, Result<PreparedClaim>>)> done);

  // Undoes what was done for each claim, and returns at once, while its daemons still stop and its partitions
  // are removed; nothing is read from the API server, where the claim may be gone. An unknown claim is a
  // success. Errors: those of removing files.
  std::map<std::string, Status> unprepare_claims(const std::vector<ClaimName>& claims);

  // Reads each recorded claim, and ends those that are gone or have another uid.
  void end_orphans();

  // Those that wait inside a call, and those whose last call has failed within kUnpreparedMemory; by uid.
  std::vector<UnpreparedClaim> unprepared_claims() const;
  // Whether the claim has a record only because a call of now prepares it.
  bool is_being_prepared(const std::string& uid) const;

  // By GPU, what claims that have ended still have: a process holds it.
  std::map<DeviceUuid, std::set<Partition>> held_partitions() const { return partitions_.held_partitions(); }

  const std::map<std::string, ClaimRecord>& records() const { return records_; }
  ClaimCounts counts() const;

 private:
  struct Batch;
  struct Preparation;

  ClaimController(Loop& loop, ClaimSource& source, ClaimDaemons& daemons, ClaimPartitions& partitions,
                  ClaimSettings settings);
  PartitionKeeperPorts keeper_ports(ClaimPartitions& partitions);
  void begin_preparation(const ClaimName& claim, std::shared_ptr<Batch> batch);
  void try_preparation(std::uint64_t id);
  void on_claim_read(std::uint64_t id, Result<std::optional<std::string>> text);
  // Whether the Pods whose demands count are still to be read. Precondition: the claim has been read.
  bool needs_pods(const Preparation& preparation) const;
  // Reads them, the first time; then decides.
  void continue_preparation(std::uint64_t id);
  Result<PreparedClaim> prepare_claim(Preparation& preparation);
  Status apply_record(Preparation& preparation, const ClaimRecord& record);
  Status check_holders(const ClaimRecord& record) const;
  Status check_daemons(const ClaimRecord& record) const;
  void update_daemons();
  void decide(std::uint64_t id, Result<PreparedClaim> result);
  void retry_later(std::uint64_t id);
  void retry_waiting();
  void on_deadline(std::uint64_t id);
  void finish(std::uint64_t id, Result<PreparedClaim> result);
  void remember_failure(const Preparation& preparation, const Error& error, bool has_ended);
  void withdraw_answers(const ClaimName& claim);
  Status end_claim(const std::string& uid);
  Status forget_claim(const std::string& uid);
  void post_retry();
  std::string spec_path(const std::string& uid) const;

  Loop& loop_;
  ClaimSource& source_;
  ClaimDaemons& daemons_;
  const ClaimSettings settings_;
  const RecordStore store_;
  std::shared_ptr<const NodeDevices> devices_;
  std::map<std::string, ClaimRecord> records_;
  std::map<std::uint64_t, std::unique_ptr<Preparation>> preparations_;
  std::uint64_t next_id_ = 1;
  struct Unprepared {
    UnpreparedClaim shown;
    std::optional<Time> ended;  // the call
  };
  std::map<std::string, Unprepared> unprepared_;  // by uid
  ClaimCounts counts_;
  PartitionKeeper partitions_;
  Lifetime lifetime_;
};

}  // namespace gpulet::dra

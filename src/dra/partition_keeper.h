// Makes the partitions that the records of claims name, and removes those of claims that end. What happens is
// in the record before it happens, so that another process goes on from any step: see
// RecordedPartition::made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "dra/claim_record.h"
#include "dra/partition.h"

namespace gpulet::dra {

struct PartitionKeeperPorts {
  Loop& loop;
  ClaimPartitions& partitions;
  std::function<ClaimRecord*(const std::string& uid)> find_record;  // nullptr for one that is gone
  std::function<Status(const ClaimRecord&)> write_record;
  // Something may be possible now that waited for the claim's partitions.
  std::function<void()> changed;
  // All partitions of a record that is ending are removed: the record may go. An error: called again.
  std::function<Status(const std::string& uid)> ended;
};

// Loop's thread only. No callback comes after destruction.
class PartitionKeeper {
 public:
  explicit PartitionKeeper(PartitionKeeperPorts ports) : ports_(std::move(ports)) {}
  PartitionKeeper(const PartitionKeeper&) = delete;

  // Whether all partitions of the record are there; begins to make them. Errors: kUnavailable while they are
  // made, with the reason of the last failure; others once, which do not pass by themselves.
  Status check_partitions(const std::string& uid);
  // Goes on with a record: one that is ending may be gone when it returns.
  void advance(const std::string& uid);
  // As advance(), of a record that an earlier process was ending: probably its partitions could not be
  // removed.
  void resume_ending(const std::string& uid);
  // The partitions of ending records that could not be removed so far, by GPU.
  std::map<DeviceUuid, std::set<Partition>> held_partitions() const;
  // Whatever waits is tried now.
  void retry_waiting();
  // The calls that are in progress will not be answered.
  void restart_calls();

 private:
  struct Work {
    bool busy = false;
    std::uint64_t call = 0;            // the newest one; answers of others are dropped
    std::set<std::size_t> verified{};  // devices that this process has made or found
    std::optional<Error> error{};
    bool is_held = false;  // ending, and not removed at the first attempt
    Backoff backoff;
    Subscription retry{};
  };
  Work& work_of(const std::string& uid);
  void make_next(const std::string& uid, ClaimRecord& record);
  void make_device(const std::string& uid, std::size_t device, bool resumes);
  void remove_next(const std::string& uid, ClaimRecord& record);
  void on_found(const std::string& uid, std::size_t device, const Result<DeviceUuid>& found);
  void on_made(const std::string& uid, std::size_t device, const Result<DeviceUuid>& made);
  void on_removed(const std::string& uid, std::size_t device, const Status& removed);
  void on_error(const std::string& uid, const Error& error);
  // A callback for the call that begins, or nothing if its answer is not wanted any more.
  template <class Answer>
  std::function<void(Answer)> begin_call(const std::string& uid, std::size_t device,
                                         void (PartitionKeeper::*next)(const std::string&, std::size_t,
                                                                       const Answer&));
  void write(const ClaimRecord& record);

  PartitionKeeperPorts ports_;
  std::map<std::string, Work> works_;
  Lifetime lifetime_;
};

}  // namespace gpulet::dra

// What this node remembers of each claim that it has prepared: one small file per claim, written before
// anything is changed for it and removed after everything is undone. It answers what cannot be derived when
// the kubelet unprepares a claim, which may be deleted by then: which devices a uid holds. The files are best
// on tmpfs: what they describe does not survive a reboot either.
//
// Source: docs/dra.md, "Preparing claims".
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/record_files.h"
#include "base/result.h"
#include "base/types.h"
#include "dra/partition.h"

namespace gpulet::dra {

inline constexpr std::size_t kMaxRecordBytes = 64u << 10;
inline constexpr std::size_t kMaxRecords = 4096;

// The place of a MIG device that is made for the claim.
struct RecordedPartition {
  DeviceUuid gpu;
  Partition partition;
  // Whether it is the claim's to remove: written before it is made. One that was there stays.
  bool made = false;
  friend bool operator==(const RecordedPartition&, const RecordedPartition&) = default;
};

// A device that was allocated to a request of the claim, as it is answered to the kubelet.
struct RecordedDevice {
  std::string request;  // without an alternative's name
  std::string pool, device;
  DeviceUuid uuid;  // empty while a partition is not known to be there
  bool admin_access = false;
  std::string share_id = {};  // empty: the device is the claim's alone
  // Of a share, by capacity. One without an entry may take all of it: NVIDIA's driver recorded none.
  std::map<std::string, std::uint64_t> consumed = {};
  std::optional<RecordedPartition> partition = {};
  bool is_share() const { return !admin_access && !share_id.empty(); }
  friend bool operator==(const RecordedDevice&, const RecordedDevice&) = default;
};

// An MPS control daemon of the claim, and the devices that the claim's containers share through it. Its name
// is mps::claim_daemon_name() of its index.
struct RecordedDaemon {
  std::vector<DeviceUuid> devices;  // in the daemon's order
  unsigned thread_percentage = 100;
  std::map<DeviceUuid, std::uint64_t> limits_mib = {};  // of each client's memory; no entry: none
  friend bool operator==(const RecordedDaemon&, const RecordedDaemon&) = default;
};

struct ClaimRecord {
  std::string uid;
  std::string name_space, name;  // both empty where NVIDIA's driver prepared the claim and dropped them
  std::vector<RecordedDevice> devices;  // in the order of the claim's results
  std::vector<RecordedDaemon> daemons = {};
  bool ending = false;  // unprepared, and its partitions are still being removed

  bool has_partitions() const;
  friend bool operator==(const ClaimRecord&, const ClaimRecord&) = default;
};

// "team/a", or "uid 1234" where the name is not known.
std::string claim_text(const ClaimRecord& record);

// Equal records have equal bytes, with a newline at the end. Pure.
std::string record_json(const ClaimRecord& record);

// Reads back exactly that. Errors: kInvalidArgument for anything else: not JSON, too large, an unknown
// version or field, a missing field, or a uid that is not a file name. Pure.
Result<ClaimRecord> parse_record(std::string_view json);

// Whether the text can be the uid of an object, and so the name of a file: lower case letters, digits and
// '-', at most 63.
bool is_valid_uid(std::string_view uid);

// The records of one directory. Loop's thread only; each member does a few file operations.
class RecordStore {
 public:
  explicit RecordStore(std::string directory) : files_(std::move(directory)) {}

  struct Loaded {
    std::map<std::string, ClaimRecord> records;  // by uid
    std::vector<Error> errors;                   // of files that are not records, which stay where they are
  };
  // Removes what a killed writer left, and passes over other files' names. A missing directory is empty.
  // Errors: kIo and others of reading the directory; kInvalidArgument for more than kMaxRecords files.
  Result<Loaded> load_records() const;
  // Whether there is one, even one that cannot be read.
  bool has_records() const;
  // Replaces the claim's file atomically. Errors: kInvalidArgument for an invalid uid; those of the files.
  Status write_record(const ClaimRecord& record) const;
  // No error where there is none.
  Status remove_record(std::string_view uid) const;

 private:
  RecordFiles files_;
};

// The record, other than that of the claim `uid`, whose hold of the device keeps that claim off, which gets a
// share of it or all of it: claims with a share bear each other, and an admin's access holds nothing. nullptr
// where there is none. Pure.
const ClaimRecord* find_holder(const std::map<std::string, ClaimRecord>& records, const DeviceUuid& device,
                               std::string_view uid, bool gets_share = false);

// What the shares of a device take of a capacity.
struct ShareUse {
  std::uint64_t sum = 0;                 // the greatest number if that is exceeded
  std::vector<std::string> claims = {};  // "team/a", or "uid 1234"
};
// All shares but those of the claim `uid`. `total`: of the device, which a share without an entry takes.
// Pure.
ShareUse find_share_use(const std::map<std::string, ClaimRecord>& records, const DeviceUuid& device,
                        const std::string& capacity, std::uint64_t total, std::string_view uid);
// Adds what the record's own shares take.
void add_share_use(const ClaimRecord& record, const DeviceUuid& device, const std::string& capacity,
                   std::uint64_t total, ShareUse& use);

// The record of another claim that has a partition in the place of this one; nullptr where none has. Pure.
const ClaimRecord* find_partition_holder(const std::map<std::string, ClaimRecord>& records,
                                         const DeviceUuid& gpu, const Partition& partition,
                                         std::string_view uid);

}  // namespace gpulet::dra

// Which containers have memory limits of the driver: one small file for each, written before the first limit
// is set and removed once all are cleared. The driver does not list the cgroups with a limit, and one kind of
// its accounting keeps a limit after its cgroup: without the records nobody could clear it. Best on tmpfs:
// limits do not survive a reboot either.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/record_files.h"
#include "base/result.h"
#include "base/types.h"

namespace gpulet::agent {

inline constexpr std::size_t kMaxLimitRecordBytes = 64u << 10;
inline constexpr std::size_t kMaxLimitRecords = 4096;
inline constexpr std::size_t kMaxLimitedGpus = 256;  // of a record

struct LimitRecord {
  std::string container_id;  // is_container_id() (limit_request.h)
  PodRef pod;
  std::string container;
  std::string cgroup;                  // its directory, as the agent sees it
  std::map<DeviceUuid, Bytes> limits;  // by GPU
  std::string pod_cgroup{};            // likewise; empty: the Pod has no limit of its own
  std::set<DeviceUuid> pod_gpus{};     // of `limits`: those on which it may have one
  friend bool operator==(const LimitRecord&, const LimitRecord&) = default;
};

// Equal records have equal bytes, with a newline at the end. Pure.
std::string limit_record_json(const LimitRecord& record);
// Reads back exactly that. Errors: kInvalidArgument for anything else. Pure.
Result<LimitRecord> parse_limit_record(std::string_view json);

// The records of one directory. Loop's thread only; each member does a few file operations.
class LimitRecordStore {
 public:
  explicit LimitRecordStore(std::string directory) : files_(std::move(directory)) {}

  struct Loaded {
    std::vector<LimitRecord> records;  // by container id
    std::vector<Error> errors;         // of files that are not records, which stay where they are
  };
  // Removes what a killed writer left, and passes over other files. A missing directory is empty. Errors: kIo
  // and others of reading the directory; kInvalidArgument for more than kMaxLimitRecords files.
  Result<Loaded> load_records() const;
  // Replaces the container's file atomically. Errors: kInvalidArgument for an invalid id; those of the files.
  Status write_record(const LimitRecord& record) const;
  // No error where there is none.
  Status remove_record(std::string_view container_id) const;
  // Each record is in one of the two at any time, or in both. Errors: those of the other members; what came
  // before is moved.
  Status move_records(const LimitRecordStore& to) const;

 private:
  RecordFiles files_;
};

}  // namespace gpulet::agent

// Where the repair of GPUs (gpu_repairer.h) writes: its record in gpulet.stateDir, and the request for a
// reboot in the forms that node-repair tools read. Loop's thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "k8s/client_config.h"
#include "k8s/node_labels.h"
#include "k8s/node_status.h"
#include "repair/repair_policy.h"
#include "repair/repair_record.h"

namespace gpulet::agent {

// Writes the newest record on a thread of its own, one after the other, as a disk may hang.
class RepairRecordStore {
 public:
  // `path`: empty: nothing is kept.
  RepairRecordStore(Loop& loop, std::string path);
  ~RepairRecordStore();
  RepairRecordStore(const RepairRecordStore&) = delete;

  // `done` comes from the loop once this record or a newer one is on disk. Errors: those of write_record().
  void save_record(const repair::Record& record, std::function<void(Status)> done);

 private:
  using Done = std::function<void(Status)>;
  void write_next();

  Loop& loop_;
  const std::string path_;
  std::optional<repair::Record> next_;
  std::vector<Done> waiting_;  // for next_
  bool is_writing_ = false;
  std::shared_ptr<LoopRelay> relay_;
  Lifetime lifetime_;
};

// The first line of the sentinel file, by which it is known as the agent's own.
inline constexpr std::string_view kSentinelHead = "gpulet: a GPU needs a reboot of this node";

// The Node condition GpuRebootRequired (draino, medik8s and other repair controllers watch conditions), an
// annotation with the value "true" (such as the Flatcar Linux Update Operator's), and a file (kured's
// --reboot-sentinel). Each is taken back with the request; a file of others is not touched. Sources:
// Kubernetes API core/v1 NodeCondition; kured's --reboot-sentinel; FLUO's
// flatcar-linux-update.v1.flatcar-linux.net/reboot-needed.
class RebootRequester {
 public:
  // `access`: nullopt outside a cluster: only the file. `was_requested`: by an earlier agent.
  RebootRequester(Loop& loop, std::optional<k8s::ClientConfig> access, bool was_requested);

  // `text`: the faults, one line; nullopt: no request. Never blocks but for the file, which is on a tmpfs.
  void set_request(const repair::RebootRequestPolicy& policy, const std::optional<std::string>& text);

 private:
  void set_condition(bool is_wanted, const std::optional<std::string>& text);
  void set_annotation(const std::string& key);  // empty: none
  void set_sentinel(const std::string& path, const std::string& text);

  Loop& loop_;
  std::optional<k8s::ClientConfig> access_;
  bool is_leftover_;  // what an earlier agent left has not been removed yet
  bool has_condition_ = false;
  std::string annotation_, sentinel_;  // as set; empty: none
  std::string sentinel_error_;         // as logged
  std::unique_ptr<k8s::NodeConditions> conditions_;
  std::unique_ptr<k8s::NodeLabelPatcher> annotations_;
};

}  // namespace gpulet::agent

// Keeps the node's CDI specs in step with the driver, the GPUs and the config: a thread of its own writes
// them when one of these, or a file of the driver, changes. A device offered by CDI is healthy only once its
// name is on disk, so that no Pod is admitted with a name that its container engine cannot resolve.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/node/ports.h"
#include "base/file_watch.h"
#include "base/loop.h"
#include "cdi/spec.h"
#include "config/config.h"
#include "inventory/snapshot.h"

namespace gpulet::agent {

// The result of one write.
struct CdiWriteResult {
  std::set<std::string> names;           // qualified: "k8s.device-plugin.nvidia.com/gpu=GPU-…"
  std::vector<std::string> directories;  // of the driver, as this process sees them
  std::vector<std::string> warnings;     // what is missing, one line each
  std::optional<Error> error;            // why a spec could not be written; the previous one stays
};

// All inputs of the specs as text: equal texts, equal specs. Pure.
std::string spec_inputs_key(const inventory::Snapshot& snapshot, const config::Config& config);

// Whether Allocate returns CDI names.
bool uses_cdi(const config::Config& config);

class CdiController {
 public:
  // Writes all specs of the config. Blocks on the disk: called on a thread of its own, one call at a time.
  // Never fails as a whole.
  using Writer = std::function<CdiWriteResult(const inventory::Snapshot&, const config::Config&)>;
  // `changed` is called from the loop when names, compute_problem() or last_error() differ.
  CdiController(Loop& loop, Reporter& reporter, std::function<void()> changed, Writer writer);
  ~CdiController();
  CdiController(const CdiController&) = delete;

  // Writes the specs if they differ. Returns the names that are on disk; nullopt if CDI is not used.
  std::optional<std::set<std::string>> update_specs(const inventory::Snapshot& snapshot,
                                                    const config::Config& config);

  // Writes the specs again because device nodes have changed, then calls `changed` even if the names are the
  // same. Returns false, and does nothing, if CDI is not used or nothing has been written yet.
  bool rewrite_specs(const config::Config& config);

  // Why no container could use CUDA when the specs on disk were begun (device_nodes.h): a device node that
  // has come since is not in them. Empty: none, or CDI is not used.
  const std::string& compute_problem() const { return compute_problem_; }

  // Why the newest specs are not on disk, one line; empty if they are, or CDI is not used.
  const std::string& last_error() const { return reported_error_; }

 private:
  void start_writing();
  void on_written(CdiWriteResult result);
  void watch_directories(const std::vector<std::string>& directories);

  Loop& loop_;
  Reporter& reporter_;
  std::function<void()> changed_;
  Writer writer_;
  std::shared_ptr<LoopRelay> relay_;
  Lifetime lifetime_;
  std::shared_ptr<const inventory::Snapshot> snapshot_;
  std::shared_ptr<const config::Config> config_;
  std::string requested_key_;  // spec_inputs_key of the newest write
  bool writing_ = false, write_again_ = false;
  bool notify_after_write_ = false;  // whatever the names are
  std::set<std::string> names_;
  std::string reported_error_;
  std::string begun_problem_, compute_problem_;  // of the write in progress; of the specs on disk
  std::vector<std::string> directories_;
  std::vector<Subscription> watches_;
  Subscription write_timer_;
};

// The document of the node's GPUs with devices by UUID, as it would be written, for claims. Blocks on the
// disk, and installs the hook. Errors: as CdiWriteResult::error; kNotFound for a node without GPUs.
Result<cdi::Spec> make_gpu_spec(const inventory::Snapshot& snapshot, const config::Config& config);

// Reads the driver below the config's roots; writes into gpulet.cdi.specDir, and the hook into
// gpulet.cdi.hookDir.
CdiController::Writer make_cdi_writer();

}  // namespace gpulet::agent

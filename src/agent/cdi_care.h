// The CDI specs of the node, kept as the driver, the GPUs and the config are: written by a thread of its own
// when something of that differs, and when files of the driver change under it. What is offered by CDI is
// healthy only once its name is on disk, so that no Pod is admitted with a name that its engine cannot
// resolve.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/ports.h"
#include "base/inotify.h"
#include "base/loop.h"
#include "base/thread.h"
#include "config/config.h"
#include "inventory/snapshot.h"

namespace gpulet::agent {

// What a writing left on disk.
struct CdiWritten {
  std::set<std::string> names;        // qualified: "k8s.device-plugin.nvidia.com/gpu=GPU-…"
  std::vector<std::string> watch;     // folders of the driver, as this process sees them
  std::vector<std::string> warnings;  // of what is missing, a line each
  std::optional<Error> error;         // why a spec could not be written: what was there stays
};

// Whether Allocate names devices by CDI.
bool uses_cdi(const config::Config& config);

class CdiCare {
 public:
  // Writes all specs that the config asks for. Blocks on the disk: it is called on a thread of its own, one
  // call at a time, and never fails as a whole.
  using Writer = std::function<CdiWritten(const inventory::Snapshot&, const config::Config&)>;
  // `changed` is called from the loop when names differ.
  CdiCare(Loop& loop, Reporter& reporter, std::function<void()> changed, Writer writer);
  ~CdiCare();
  CdiCare(const CdiCare&) = delete;

  // Takes what the node is now. The names that are on disk for it; nullopt where CDI is not used.
  std::optional<std::set<std::string>> wants(const inventory::Snapshot& snapshot,
                                             const config::Config& config);

 private:
  void start();
  void written(CdiWritten result);
  void follow(const std::vector<std::string>& folders);

  Loop& loop_;
  Reporter& reporter_;
  std::function<void()> changed_;
  Writer writer_;
  std::shared_ptr<Relay> relay_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::shared_ptr<const inventory::Snapshot> snapshot_;
  std::shared_ptr<const config::Config> config_;
  std::string wanted_for_;  // what the newest start() was about
  bool writing_ = false, again_ = false;
  std::set<std::string> names_;
  std::string told_;
  std::unique_ptr<InotifyWatch> inotify_;
  std::vector<std::string> folders_;
  std::vector<Subscription> watches_;
  Subscription soon_;
};

// Of the driver below the config's roots, into gpulet.cdi.specDir, with the hook in gpulet.cdi.hookDir.
CdiCare::Writer make_cdi_writer();

}  // namespace gpulet::agent

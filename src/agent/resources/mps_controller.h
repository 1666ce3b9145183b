// The node's MPS control daemons: the plan decides which there are, and gets their health. The agent runs
// them, or asks those that another program runs (gpulet.mps.manage: false). Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/driver/nvml_driver.h"
#include "agent/node/ports.h"
#include "base/loop.h"
#include "config/config.h"
#include "mps/external_daemons.h"
#include "mps/manager.h"

namespace gpulet::agent {

// Where NVIDIA's chart mounts the MPS root in a container; an agent on the host uses the root itself.
inline constexpr const char* kMpsMount = "/mps";

class MpsController {
 public:
  // `driver` is called for each operation; null while there is none. `changed` is called when a daemon's
  // health differs, never from inside apply_daemons().
  MpsController(Loop& loop, Reporter& reporter, std::function<NvmlDriver*()> driver,
                std::function<void()> changed);

  // Starts and stops daemons as `specs` says, or asks those of another program if the config leaves them to
  // one. Returns the health of each by name.
  std::map<std::string, inventory::Health> apply_daemons(const std::vector<mps::DaemonSpec>& specs,
                                                         const config::Config& config);

  // Why no daemon serves although some are wanted, one line; empty while one serves: a single one may wait
  // for a faulty GPU.
  std::string problem() const;
  bool has_daemons() const { return manager_ && !manager_->specs().empty(); }
  // Before the driver is released: stops all unless one of `containers` holds a device of a daemon, then
  // calls `done`. Until resume_daemons(), apply_daemons() changes nothing.
  void pause_daemons(const std::vector<ContainerDevices>& containers, std::function<void()> done);
  void resume_daemons() { paused_ = false; }

  // Stops all and restores compute modes, then calls `done` from the loop; at once if there are none.
  void stop_daemons(std::function<void()> done);

 private:
  mps::DaemonOptions daemon_options() const;
  std::unique_ptr<mps::DaemonManager> make_manager();
  // Stops the daemons that the agent runs, without waiting.
  void give_up_daemons();
  // The shared memory of the daemons below `root`.
  void mount_shared_memory(const std::string& root);
  void unmount_shared_memory(const std::string& root);
  void on_daemon_health(const std::string& name, const inventory::Health& health);

  Loop& loop_;
  Reporter& reporter_;
  std::function<NvmlDriver*()> driver_;
  std::function<void()> changed_;
  bool paused_ = false;
  std::string root_, driver_root_, host_root_;
  std::unique_ptr<mps::DaemonManager> manager_;                // null if another program runs them
  std::unique_ptr<mps::ExternalDaemons> external_;             // null if the agent does, or there are none
  std::vector<std::unique_ptr<mps::DaemonManager>> stopping_;  // of previous roots
  std::map<std::string, inventory::Health> daemon_health_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent

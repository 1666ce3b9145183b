// The node's MPS control daemons: those of resources, which the plan decides and whose health it gets, and
// those of claims (dra/claim_controller.h). The agent runs them, or asks those of resources that another
// program runs (gpulet.mps.manage: false). Loop's thread only.
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

  // Starts and stops daemons of resources as `specs` says, or asks those of another program if the config
  // leaves them to one. Returns the health of each by name. One of a device that a claim's daemon has is not
  // started.
  std::map<std::string, inventory::Health> apply_daemons(const std::vector<mps::DaemonSpec>& specs,
                                                         const config::Config& config);
  // The ids of the SM partitions of daemons that serve; of others they stay empty.
  void fill_sm_partitions(std::vector<mps::DaemonSpec>& specs) const;

  // The daemons of claims from now on: started and stopped by the next apply_daemons() or
  // apply_claim_daemons(), so that the first of them knows all that an earlier agent has left.
  void set_claim_daemons(std::vector<mps::DaemonSpec> specs) { claim_specs_ = std::move(specs); }
  void apply_claim_daemons(const config::Config& config);
  // As dra::ClaimDaemons.
  Status check_claim_daemon(const std::string& name) const;
  std::string find_holder(const DeviceUuid& device) const;

  // Why no daemon serves although some are wanted, one line; empty while one serves: a single one may wait
  // for a faulty GPU.
  std::string problem() const;
  // Of resources, as last applied.
  const std::vector<mps::DaemonSpec>& resource_specs() const { return resource_specs_; }
  // The agent's daemon that serves the device; nullptr if none runs. Valid until the loop's next turn.
  mps::Daemon* find_daemon(const DeviceUuid& device) {
    return manager_ ? manager_->find_daemon(device) : nullptr;
  }
  // Why the control program of a driver has no protocol 3, as a daemon found out; empty: it has, or none has
  // asked it.
  std::string program_problem(const std::string& driver_version);

  bool has_daemons() const { return manager_ && !manager_->specs().empty(); }
  // "default/trainer uses nvidia.com/gpu.shared": a container that holds a device of a daemon; empty: none.
  std::string find_daemon_user(const std::vector<ContainerDevices>& containers) const;
  // Before the driver is released: stops all unless one of `containers` holds a device of a daemon, then
  // calls `done`. Until resume_daemons(), apply_daemons() changes nothing.
  void pause_daemons(const std::vector<ContainerDevices>& containers, std::function<void()> done);
  void resume_daemons() { paused_ = false; }

  // Stops all and restores compute modes, then calls `done` from the loop; at once if there are none.
  void stop_daemons(std::function<void()> done);
  // The same before the process ends: none is started again.
  void end_daemons(std::function<void()> done);

 private:
  using Healths = std::map<std::string, inventory::Health>;
  // What the config says about the daemons.
  struct Settings {
    std::string root, driver_root, host_root;
    bool is_ours = true;
    friend bool operator==(const Settings&, const Settings&) = default;
  };
  static Settings settings_of(const config::Config& config);
  void apply_settings(const config::Config& config);
  void run_daemons();
  Healths resource_healths() const;
  mps::DaemonOptions daemon_options();
  std::unique_ptr<mps::DaemonManager> make_manager();
  // Stops the daemons that the agent runs, without waiting.
  void give_up_daemons();
  // The shared memory of the daemons below `root`.
  static bool is_shared_memory_mounted(const std::string& root);
  void prepare_shared_memory(const std::vector<mps::DaemonSpec>& specs);
  void mount_shared_memory(const std::string& directory);
  void unmount_shared_memory(const std::string& directory);
  void unmount_all_shared_memory();
  void on_daemon_health(const std::string& name, const inventory::Health& health);

  Loop& loop_;
  Reporter& reporter_;
  std::function<NvmlDriver*()> driver_;
  std::function<void()> changed_;
  bool paused_ = false;
  bool ended_ = false;
  bool is_applied_ = false;
  Settings settings_;  // as last applied
  std::vector<mps::DaemonSpec> resource_specs_, claim_specs_;
  std::unique_ptr<mps::DaemonManager> manager_;                // null if another program runs them
  std::unique_ptr<mps::ExternalDaemons> external_;             // null if the agent does, or there are none
  std::vector<std::unique_ptr<mps::DaemonManager>> stopping_;  // of previous roots
  std::map<std::string, inventory::Health> daemon_health_;
  std::string program_problem_, asked_version_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent

// All MPS control daemons of a node.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "mps/daemon.h"

namespace gpulet::mps {

using DaemonHealths = std::map<std::string, inventory::Health>;  // by the daemon's name
// The first of several daemons if none serves; nullptr if one does, for one may wait for a faulty GPU, or if
// there are none. Pure.
const DaemonHealths::value_type* find_unserved_daemon(const DaemonHealths& healths);

// Manages all MPS control daemons of a node: starts new ones, stops those no longer needed, leaves
// unchanged ones alone, and updates those with only new limits. A GPU that moves to another daemon
// is released by the first before the second starts.
//
// Use it on the loop's thread only. The destructor leaves the daemons running, for the next agent
// to adopt.
class DaemonManager {
 public:
  // Reports the health of the daemon of that name, at once and on each change; not after it begins
  // to stop.
  using HealthCallback = std::function<void(const std::string& name, const inventory::Health&)>;
  DaemonManager(Loop& loop, DaemonOptions options, SetComputeMode set_compute_mode, HealthCallback health);
  ~DaemonManager();
  DaemonManager(const DaemonManager&) = delete;

  // Makes exactly these daemons run. Names are unique. The first call also stops daemons of an
  // earlier agent that are not among them.
  void apply_specs(std::vector<DaemonSpec> specs);
  // Stops all daemons, then calls `done` from the loop.
  void stop_all(std::function<void()> done);

  const std::vector<DaemonSpec>& specs() const { return desired_; }
  // nullopt for a daemon that is not in specs(). One that waits for its GPUs is unhealthy.
  std::optional<inventory::Health> daemon_health(const std::string& name) const;
  // Of all in specs(), by name.
  DaemonHealths daemon_healths() const;
  // The ids of the partitions of the running daemon that serves with them; else they stay empty.
  void fill_sm_partitions(DaemonSpec& spec) const;
  // The name of a daemon that runs or still stops with this device; empty if there is none.
  std::string find_holder(const DeviceUuid& device) const;

  // The running daemon of the GPU or MIG device; nullptr if none does. Valid until the next call or turn of
  // the loop.
  Daemon* find_daemon(const DeviceUuid& device);

 private:
  void reconcile_daemons();
  bool is_desired(const Daemon& daemon) const;
  void start_daemon(const DaemonSpec& spec);
  void stop_daemon(const std::string& name);
  void stop_former_daemons();
  void await_stop(std::unique_ptr<Daemon> daemon);
  void on_daemon_health(const std::string& name, const inventory::Health& health);
  bool waits_for_stop(const DaemonSpec& spec) const;
  void update_ready_file();

  Loop& loop_;
  DaemonOptions options_;
  SetComputeMode set_compute_mode_;
  HealthCallback health_callback_;
  std::vector<DaemonSpec> desired_;
  std::map<std::string, std::unique_ptr<Daemon>> daemons_;
  std::vector<std::unique_ptr<Daemon>> stopping_;
  std::function<void()> stopped_;
  std::optional<bool> ready_;
  bool looked_for_former_ = false;
  std::uint64_t started_ = 0;
  Lifetime lifetime_;
};

// Removes what control daemons left below an MPS root, for an uninstall: unmounts and removes the clients'
// shared memory, and removes the ready file and the directories of every resource. Keeps everything else
// below the root, and the root itself, which is a mount point in a container. Follows no link, because
// containers can write to some of these directories. Returns what was removed, in order; empty if there was
// nothing. Blocks for a few file operations. Precondition: no daemon and no agent uses the root. Errors:
// kPermissionDenied without CAP_SYS_ADMIN if shm is mounted; kIo. What came before the failure is removed.
Result<std::vector<std::string>> remove_leftovers(const std::string& root);

}  // namespace gpulet::mps

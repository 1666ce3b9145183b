// All MPS control daemons of a node: starts what is new, stops what has gone, leaves what is the same, and
// tells those whose limits alone changed. A GPU that moves from one daemon to another is let go by the one
// before the other takes it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mps/daemon.h"

namespace gpulet::mps {

// Loop's thread only. Destroying it leaves the daemons running, for the next agent to take over.
class Manager {
 public:
  // `health` says how the daemon of that name is, at once and on each change; none after it has been told to
  // stop.
  using TellHealth = std::function<void(const std::string& name, const inventory::Health&)>;
  Manager(Loop& loop, DaemonOptions options, SetComputeMode set_compute_mode, TellHealth health);
  ~Manager();
  Manager(const Manager&) = delete;

  // These are to run. Names are unique. The first time, those that an earlier agent left behind and that are
  // not among them are ended too.
  void apply(std::vector<DaemonSpec> specs);
  // Stops them all, then calls `done`, from the loop.
  void stop(std::function<void()> done);

  const std::vector<DaemonSpec>& specs() const { return wanted_; }
  // nullopt for one that is not to run. One that waits for its GPUs is unhealthy.
  std::optional<inventory::Health> health(const std::string& name) const;

 private:
  void settle();
  bool is_wanted(const Daemon& daemon) const;
  void start(const DaemonSpec& spec);
  void stop_one(const std::string& name);
  void stop_former();
  void await_stop(std::unique_ptr<Daemon> daemon);
  void on_health(const std::string& name, const inventory::Health& health);
  bool waits_for_a_stop(const DaemonSpec& spec) const;
  void update_ready_file();

  Loop& loop_;
  DaemonOptions options_;
  SetComputeMode set_compute_mode_;
  TellHealth tell_health_;
  std::vector<DaemonSpec> wanted_;
  std::map<std::string, std::unique_ptr<Daemon>> daemons_;
  std::vector<std::unique_ptr<Daemon>> stopping_;
  std::function<void()> stopped_;
  std::optional<bool> ready_;
  bool looked_for_former_ = false;
  std::uint64_t started_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gpulet::mps

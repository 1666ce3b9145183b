// The MPS control daemons of the node as a part of the agent: which run follows from the plan, how they are
// goes into it. Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/nvml_driver.h"
#include "agent/ports.h"
#include "config/config.h"
#include "mps/manager.h"

namespace gpulet::agent {

// Where a container has the MPS root mounted, as NVIDIA's chart does; a host's agent uses the root itself.
inline constexpr const char* kMpsMount = "/mps";

class MpsCare {
 public:
  // `driver` is asked anew for each call, null while there is none. `changed` is called, never from inside
  // wants(), when a daemon's health differs.
  MpsCare(Loop& loop, Reporter& reporter, std::function<NvmlDriver*()> driver, std::function<void()> changed);

  // Takes the daemons that are wanted now; says how each is. Empty where the config leaves them to another
  // program.
  std::map<std::string, inventory::Health> wants(const std::vector<mps::DaemonSpec>& specs,
                                                 const config::Config& config);

  // Ends them all and sets compute modes back, then calls `done` from the loop; at once where there are none.
  void stop(std::function<void()> done);

 private:
  // The shared memory of the daemons of that root.
  void prepare(const std::string& root);
  void clear(const std::string& root);
  void on_health(const std::string& name, const inventory::Health& health);

  Loop& loop_;
  Reporter& reporter_;
  std::function<NvmlDriver*()> driver_;
  std::function<void()> changed_;
  std::string root_, driver_root_;
  std::unique_ptr<mps::Manager> manager_;
  std::vector<std::unique_ptr<mps::Manager>> stopping_;  // of roots that are no longer the config's
  std::map<std::string, inventory::Health> healths_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gpulet::agent

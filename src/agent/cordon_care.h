// The operator's words about GPUs (health/cordons.h), followed: what `gpulet cordon` and `uncordon` write is
// told to the agent as soon as it is on disk, and after every start, until the devices stand as it says.
// Loop's thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/ports.h"
#include "base/file_watch.h"
#include "base/loop.h"
#include "health/cordons.h"
#include "health/view.h"

namespace gpulet::agent {

// The files of gpulet.stateDir that an operator's commands share with the agent.
inline std::string cordons_file(const std::string& state_dir) { return state_dir + "/cordons"; }
// Held (base/presence.h) by the agent that follows the cordons of this folder.
inline std::string presence_file(const std::string& state_dir) { return state_dir + "/agent.lock"; }

class CordonCare {
 public:
  // `take` brings a wish to the agent (Agent::take). A file that cannot be read or followed is told once, and
  // what was known of it stays. `loop` and `reporter` outlive it.
  CordonCare(Loop& loop, Reporter& reporter, std::string path,
             std::function<void(const health::Evidence&)> take);
  ~CordonCare();
  CordonCare(const CordonCare&) = delete;

  // How the devices stand now.
  void on_health(const health::ViewPtr& view);

 private:
  void read();
  void settle_soon();
  void settle();
  void tell_wrong(const std::string& wrong);

  Loop& loop_;
  Reporter& reporter_;
  std::string path_;
  std::function<void(const health::Evidence&)> take_;
  std::unique_ptr<FileWatch> watch_;
  std::optional<health::Cordons> cordons_;  // as last read; none before, and while it never could be
  health::ViewPtr view_;
  std::string wrong_;  // what was told of the file
  using Said = std::pair<health::Scope, health::Wish>;
  std::vector<Said> said_;  // by the last settle()
  Subscription soon_;
};

}  // namespace gpulet::agent

// Which of two agents of one state directory serves the node: during an update that starts the new Pod before
// the old one ends, and where somebody runs two by mistake. Three file locks decide; the kernel releases
// those of a killed process, so the next agent takes over at once:
//
//     agent.lock          held while an agent serves: whoever holds it may write
//     agent-turn.lock     the same, but released when the agent is told to end: the next one may register
//     agent-standby.lock  held by the next agent until it has registered, or serves: the old one goes on so
//     long
//
// An agent acquires them from the last to the first, so that one at a time waits to be the next.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/process.h"

namespace gpulet::agent {

// How long an agent that ends waits for the next one to register. The kubelet looks for sockets every second.
inline constexpr Duration kHandoverLimit = std::chrono::seconds(4);
// After this long, it is reported that an agent has not ended although it is its turn to.
inline constexpr Duration kOwnerWarning = std::chrono::seconds(30);
// Between attempts to lock a file that cannot be locked.
inline constexpr Duration kLockRetry = std::chrono::seconds(1);

std::string turn_path(const std::string& state_dir);
std::string standby_path(const std::string& state_dir);

// Loop's thread only.
class Succession {
 public:
  struct Callbacks {
    std::function<void()> stand_by;  // another agent serves; at most once, before the others
    // It is ending: its calls may come here from now on, and wait. At most once; finish_registration() when
    // the kubelet knows this agent. Not called if the other has gone already.
    std::function<void()> register_early;
    std::function<void()> serve;  // once
  };
  Succession(Loop& loop, std::string state_dir, Callbacks callbacks);
  ~Succession();
  Succession(const Succession&) = delete;

  // Calls serve() from here where no other agent is. Without a state directory, or where its files cannot be
  // locked, this agent serves.
  void begin();
  void finish_registration() { standby_.reset(); }
  bool is_serving() const { return is_serving_; }
  // The path of agent.lock if it is held.
  std::optional<std::string> owned_path() const;

  // The serving agent ends: `done` is called once the next agent has registered or after kHandoverLimit; from
  // here, with false, if there is none.
  void hand_over(std::function<void(bool has_next)> done);
  // The next agent may write from here on.
  void end();

 private:
  using LockSlot = std::optional<ProcessLock> Succession::*;
  // Locks the file, at once or when its holder has released it, and goes on with `next`. `wait`: called
  // before it waits.
  void acquire(const std::string& path, LockSlot slot, std::function<void()> wait,
               std::function<void()> next);
  void wait_on_thread(const std::string& path, std::function<void(Result<ProcessLock>)> done);
  void await_turn();
  void await_ownership();
  void stand_by();
  void serve();

  Loop& loop_;
  const std::string state_dir_;
  const Callbacks callbacks_;
  const std::shared_ptr<LoopRelay> relay_;
  std::optional<ProcessLock> standby_, turn_, owner_;
  bool is_standing_by_ = false, is_serving_ = false;
  Subscription timer_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent

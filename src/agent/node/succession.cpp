#include "agent/node/succession.h"

#include <utility>

#include "agent/health/operator_interface.h"
#include "base/log.h"

namespace gpulet::agent {

std::string turn_path(const std::string& state_dir) { return state_dir + "/agent-turn.lock"; }
std::string standby_path(const std::string& state_dir) { return state_dir + "/agent-standby.lock"; }

Succession::Succession(Loop& loop, std::string state_dir, Callbacks callbacks)
    : loop_(loop),
      state_dir_(std::move(state_dir)),
      callbacks_(std::move(callbacks)),
      relay_(std::make_shared<LoopRelay>(loop)) {}

Succession::~Succession() { relay_->close_relay(); }

void Succession::begin() {
  if (state_dir_.empty()) return serve();
  acquire(standby_path(state_dir_), &Succession::standby_, [this] { stand_by(); }, [this] { await_turn(); });
}

void Succession::await_turn() {
  acquire(turn_path(state_dir_), &Succession::turn_, [this] { stand_by(); }, [this] { await_ownership(); });
}

void Succession::await_ownership() {
  acquire(
      presence_path(state_dir_), &Succession::owner_,
      [this] {
        stand_by();
        timer_ = loop_.after(kOwnerWarning, [this] {
          log::warning("this agent waits for the previous one, which has not ended yet",
                       {{"lock", presence_path(state_dir_)}});
        });
        callbacks_.register_early();
      },
      [this] { serve(); });
}

void Succession::acquire(const std::string& path, LockSlot slot, std::function<void()> wait,
                         std::function<void()> next) {
  auto held = ProcessLock::acquire_lock(path);
  if (held) {
    (this->*slot).emplace(std::move(*held));
    return next();
  }
  // OperatorInterface reports it.
  if (held.error().code() != Code::kFailedPrecondition) return serve();
  wait();
  wait_on_thread(path, [this, path, slot, next = std::move(next)](Result<ProcessLock> waited) {
    if (waited) {
      (this->*slot).emplace(std::move(*waited));
      return next();
    }
    log::warning("cannot wait for the agent that serves this node", waited.error());
    timer_ = loop_.after(kLockRetry, [this, path, slot, next] { acquire(path, slot, [] {}, next); });
  });
}

// A thread that still waits when the agent ends, ends with the process.
void Succession::wait_on_thread(const std::string& path, std::function<void(Result<ProcessLock>)> done) {
  const auto started = start_detached_thread(
      "waiting for another agent", [path, done, relay = relay_, alive = lifetime_.watch()] {
        auto waited = std::make_shared<Result<ProcessLock>>(ProcessLock::wait_for_lock(path));
        relay->post_to_loop([waited, done, alive] {
          if (alive) done(std::move(*waited));
        });
      });
  if (started) return;
  loop_.post([done = std::move(done), error = started.error(), alive = lifetime_.watch()] {
    if (alive) done(fail(error));
  });
}

void Succession::stand_by() {
  if (std::exchange(is_standing_by_, true)) return;
  log::info("another agent serves this node: this one is on standby", {{"stateDir", state_dir_}});
  callbacks_.stand_by();
}

void Succession::serve() {
  timer_.reset();
  is_serving_ = true;
  if (is_standing_by_) log::info("the other agent has ended: serving this node");
  callbacks_.serve();
  standby_.reset();
}

std::optional<std::string> Succession::owned_path() const {
  return owner_ ? std::optional(presence_path(state_dir_)) : std::nullopt;
}

void Succession::hand_over(std::function<void(bool)> done) {
  const bool has_next = turn_ && ProcessLock::is_locked(standby_path(state_dir_)).value_or(false);
  turn_.reset();
  if (!has_next) return done(false);
  log::info("waiting for the next agent to register");
  auto finish = std::make_shared<std::function<void()>>([this, done = std::move(done)] {
    timer_.reset();
    done(true);
  });
  const auto once = [finish] {
    if (*finish) std::exchange(*finish, nullptr)();
  };
  timer_ = loop_.after(kHandoverLimit, once);
  wait_on_thread(standby_path(state_dir_), [once](const Result<ProcessLock>&) { once(); });
}

void Succession::end() {
  turn_.reset();
  owner_.reset();
}

}  // namespace gpulet::agent

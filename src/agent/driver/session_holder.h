// The agent's NVML session: opened and closed on request; closed around work that needs the driver alone; and
// with DriverHold::kOnDemand closed between uses. Whoever needs the session waits while it is closed for a
// moment, and learns of nothing. Loop's thread only.
//
//     closed ⇄ open                      open_session(), close_session()
//     open ─▶ alone ─▶ open              run_alone(): waits for the uses, then closes, does all work that
//     waits,
//                                        and opens again
//     open ─▶ parked ─▶ opening ─▶ open  on demand: kHoldLinger after the last use, and at the next one
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "config/gpulet_settings.h"
#include "nvml/events.h"
#include "nvml/session.h"
#include "nvml/worker.h"

namespace gpulet::agent {

// How long an initialisation waits for the event thread to release the previous one.
inline constexpr std::chrono::milliseconds kReleaseGrace{250};
// How long a closing waits for calls in progress: one is the wait for events, which nothing ends early.
inline constexpr std::chrono::milliseconds kCloseGrace = nvml::kEventWaitTimeout + std::chrono::seconds(1);
// With DriverHold::kOnDemand: the pause after the last use until the session is closed. A round of polls or
// samples is one opening.
inline constexpr Duration kHoldLinger = std::chrono::seconds(1);

class SessionHolder {
 public:
  using SessionPtr = std::shared_ptr<const nvml::Session>;
  struct Options {
    std::string driver_root;
    std::vector<std::string> library_directories{};  // as of nvml::Library::load_library
    Duration call_timeout{};                         // of an initialisation
    config::DriverHold hold = config::DriverHold::kAlways;
  };
  // `lost`: a session could not be opened again after it was closed for a moment. `loop` and `worker` outlive
  // it.
  SessionHolder(Loop& loop, nvml::Worker& worker, Options options, std::function<void()> lost);
  SessionHolder(const SessionHolder&) = delete;

  // Closes the open session and opens another. Errors: those of nvml::Session::open_session, and
  // kDeadlineExceeded.
  void open_session(std::function<void(Status)> done);
  // No session from here on until open_session(). Errors: kDeadlineExceeded if a call that has not returned,
  // or run_alone(), still holds it: close it again later.
  void close_session(std::function<void(Status)> done);

  // One use of the session: keep it until the calls for it have returned. It does not keep the session.
  using Use = std::shared_ptr<const void>;
  using User = std::function<void(const SessionPtr& session, const Use& use)>;
  // Calls `user` once: from here if the session is open or closed for good (null), else when it is open
  // again.
  void use_session(User user);
  // Why use_session() passed null.
  Error closed_error() const;
  bool is_open() const { return session_ != nullptr; }
  // For work that is no use of it, and holds it weakly. Null: not open.
  const SessionPtr& session() const { return session_; }
  bool is_on_demand() const { return options_.hold == config::DriverHold::kOnDemand; }

  // Runs `work` on the driver's thread with a session of its own while the agent has no other: after the uses
  // have ended; other users wait. `begin` is called right before the session is closed, `done` when it is
  // open again after all work of this kind that waited. A call that hangs keeps its session, and `work` runs
  // beside it. Errors of `work`'s result:
  // kDeadlineExceeded after `call.deadline`; those of open_session().
  template <class T>
  void run_alone(nvml::Call call, std::function<void()> begin,
                 std::function<Result<T>(const SessionPtr&)> work, std::function<void(Result<T>)> done) {
    auto result = std::make_shared<std::optional<Result<T>>>();
    start_alone({std::move(call), std::move(begin),
                 [result, work = std::move(work)](const Result<SessionPtr>& session) {
                   result->emplace(session ? work(*session) : Result<T>(fail(session.error())));
                 },
                 [result, done = std::move(done)](const Status& session, bool returned) {
                   // A call that hangs may still write its result.
                   returned && *result ? done(std::move(**result)) : done(fail(session.error()));
                 }});
  }
  // The same with no session at all, for another program that the driver serves alone: while a call that
  // hangs keeps a session, `work` is not run, and the error is kUnavailable.
  template <class T>
  void run_closed(nvml::Call call, std::function<void()> begin, std::function<Result<T>()> work,
                  std::function<void(Result<T>)> done) {
    auto result = std::make_shared<std::optional<Result<T>>>();
    start_alone({std::move(call), std::move(begin),
                 [result, work = std::move(work)](const Result<SessionPtr>& none) {
                   result->emplace(none ? work() : Result<T>(fail(none.error())));
                 },
                 [result, done = std::move(done)](const Status& session, bool returned) {
                   returned && *result ? done(std::move(**result)) : done(fail(session.error()));
                 },
                 false});
  }

 private:
  enum class State { kClosed, kOpen, kOpening, kParking, kParked, kAlone };
  // `session`: whether there is one again. `returned`: the work has ended.
  using AloneDone = std::function<void(const Status& session, bool returned)>;
  struct AloneWork {
    nvml::Call call;
    std::function<void()> begin;
    std::function<void(const Result<SessionPtr>&)> work;
    AloneDone done;
    bool with_session = true;
  };

  bool is_passing() const {
    return state_ == State::kOpening || state_ == State::kParking || state_ == State::kAlone;
  }
  Use begin_use();
  void on_use_ended();
  void advance();
  void run_waiting();
  void start_alone(AloneWork alone);
  void begin_alone();
  void run_next_alone();
  void on_alone_done(const Result<SessionPtr>& session);
  void reopen();
  void park();

  Loop& loop_;
  nvml::Worker& worker_;
  Options options_;
  std::function<void()> lost_;
  State state_ = State::kClosed;
  bool was_released_ = false;  // closed by close_session()
  SessionPtr session_;
  std::weak_ptr<const nvml::Session> closing_;  // of a close_session() that has not succeeded yet
  std::size_t uses_ = 0;
  std::deque<std::function<void()>> waiting_;  // for the end of a state that passes
  std::deque<AloneWork> alone_;                // for the end of all uses
  std::vector<AloneDone> finished_;            // for an open session; the last may hang
  Subscription linger_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent

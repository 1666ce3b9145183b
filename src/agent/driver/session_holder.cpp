#include "agent/driver/session_holder.h"

#include <iterator>

namespace gpulet::agent {
namespace {

auto open_driver(const SessionHolder::Options& options) {
  return nvml::Session::open_session(options.driver_root, options.library_directories);
}

}  // namespace

SessionHolder::SessionHolder(Loop& loop, nvml::Worker& worker, Options options, std::function<void()> lost)
    : loop_(loop), worker_(worker), options_(std::move(options)), lost_(std::move(lost)) {}

void SessionHolder::open_session(std::function<void(Status)> done) {
  if (is_passing()) {
    waiting_.push_back([this, done = std::move(done)]() mutable { open_session(std::move(done)); });
    return;
  }
  state_ = State::kOpening;
  linger_.reset();
  // A hanging call holds the Session indefinitely: waiting for it is useless.
  const auto patience = worker_.abandoned() == 0 ? kReleaseGrace : std::chrono::milliseconds(0);
  worker_.run_call<SessionPtr>(
      {"initialising the driver", "driver", options_.call_timeout + kReleaseGrace},
      [old = std::exchange(session_, nullptr), options = options_, patience]() mutable {
        nvml::Session::shut_down(std::exchange(old, nullptr), patience);
        return open_driver(options);
      },
      [this, done = std::move(done)](Result<SessionPtr> session) {
        was_released_ = false;
        state_ = session ? State::kOpen : State::kClosed;
        if (session) session_ = std::move(*session);
        const auto alive = lifetime_.watch();
        done(session ? Status() : fail(session.error()));
        if (alive) run_waiting();
      });
}

void SessionHolder::close_session(std::function<void(Status)> done) {
  if (state_ == State::kAlone || !alone_.empty()) {
    loop_.post([alive = lifetime_.watch(), done = std::move(done)] {
      if (alive)
        done(fail(Code::kDeadlineExceeded,
                  "the MIG layout of a GPU is being changed, or a GPU is being reset"));
    });
    return;
  }
  if (is_passing()) {
    waiting_.push_front([this, done = std::move(done)]() mutable { close_session(std::move(done)); });
    return;
  }
  state_ = State::kClosed;
  was_released_ = true;
  linger_.reset();
  if (session_) closing_ = session_;
  worker_.run_call<bool>(
      {"closing the driver", "driver", kCloseGrace + kReleaseGrace},
      [last = std::exchange(session_, nullptr), closing = closing_]() mutable -> Result<bool> {
        auto session = std::exchange(last, nullptr);
        if (!session) session = closing.lock();
        if (nvml::Session::shut_down(std::move(session), kCloseGrace)) return true;
        return fail(Code::kDeadlineExceeded, "a call that has not returned still holds the driver");
      },
      [done = std::move(done)](const Result<bool>& closed) {
        done(closed ? Status() : fail(closed.error()));
      });
}

Error SessionHolder::closed_error() const {
  return {Code::kUnavailable, was_released_ ? "the driver is released" : "the driver is not initialised"};
}

void SessionHolder::use_session(User user) {
  // Those that wait to work alone come first, or polls could delay them indefinitely.
  const bool passes = state_ == State::kOpen && alone_.empty();
  if (passes || state_ == State::kClosed) {
    const Use use = begin_use();
    return user(session_, use);
  }
  waiting_.push_back([this, user = std::move(user)]() mutable { use_session(std::move(user)); });
  if (state_ == State::kParked && !linger_) reopen();
}

SessionHolder::Use SessionHolder::begin_use() {
  ++uses_;
  linger_.reset();
  return {this, [alive = lifetime_.watch()](SessionHolder* self) {
            if (alive) self->on_use_ended();
          }};
}

void SessionHolder::on_use_ended() {
  --uses_;
  advance();
}

// The next step after a change of the state or the end of a use. May be called from inside a destructor.
void SessionHolder::advance() {
  if (is_passing()) return;
  if (uses_ != 0 || linger_) return;
  if (!alone_.empty()) {
    linger_ = loop_.after(Duration::zero(), [this] { state_ == State::kParked ? reopen() : begin_alone(); });
  } else if (is_on_demand() && state_ == State::kOpen) {
    linger_ = loop_.after(kHoldLinger, [this] { park(); });
  }
}

// Each may change the state again, and wait again.
void SessionHolder::run_waiting() {
  const auto alive = lifetime_.watch();
  for (auto& next : std::exchange(waiting_, {})) {
    if (!alive) return;
    next();
  }
  if (alive) advance();
}

void SessionHolder::start_alone(AloneWork alone) {
  alone_.push_back(std::move(alone));
  linger_.reset();
  advance();
}

void SessionHolder::begin_alone() {
  linger_.reset();
  if (state_ != State::kClosed) return run_next_alone();
  const AloneWork alone = std::move(alone_.front());
  alone_.pop_front();
  alone.done(fail(closed_error()), true);
  advance();
}

// Closing waits for the thread of the events, opening makes the driver list its GPUs: both are done once for
// all that wait.
void SessionHolder::run_next_alone() {
  AloneWork alone = std::move(alone_.front());
  alone_.pop_front();
  alone.begin();
  state_ = State::kAlone;
  finished_.push_back(std::move(alone.done));
  const bool is_last = alone_.empty();
  auto call = std::move(alone.call);
  auto work = std::move(alone.work);
  call.deadline += kCloseGrace + 2 * options_.call_timeout;
  worker_.run_call<SessionPtr>(
      std::move(call),
      [old = std::exchange(session_, nullptr), options = options_, work = std::move(work), is_last,
       with_session = alone.with_session]() mutable -> Result<SessionPtr> {
        const bool is_closed = nvml::Session::shut_down(std::exchange(old, nullptr), kCloseGrace);
        if (!with_session) {
          work(is_closed ? Result<SessionPtr>(nullptr)
                         : fail(Code::kUnavailable, "a call that has not returned still holds the driver"));
        } else {
          auto alone_session = open_driver(options);
          work(alone_session);
          if (alone_session) nvml::Session::shut_down(std::exchange(*alone_session, nullptr), kReleaseGrace);
        }
        return is_last ? open_driver(options) : Result<SessionPtr>(nullptr);
      },
      [this, is_last](const Result<SessionPtr>& session) {
        session && !is_last ? run_next_alone() : on_alone_done(session);
      });
}

void SessionHolder::on_alone_done(const Result<SessionPtr>& session) {
  state_ = session ? State::kOpen : State::kClosed;
  if (session) session_ = *session;
  const bool returned = session || session.error().code() != Code::kDeadlineExceeded;
  const Status opened = session ? Status() : fail(session.error());
  const auto alive = lifetime_.watch();
  auto finished = std::exchange(finished_, {});
  for (auto done = finished.begin(); alive && done != finished.end(); ++done)
    (*done)(opened, returned || std::next(done) != finished.end());
  if (alive) run_waiting();
  if (alive && !session) lost_();
}

void SessionHolder::reopen() {
  linger_.reset();
  state_ = State::kOpening;
  worker_.run_call<SessionPtr>(
      {"initialising the driver", "driver", options_.call_timeout},
      [options = options_] { return open_driver(options); },
      [this](Result<SessionPtr> session) {
        state_ = session ? State::kOpen : State::kClosed;
        if (session) session_ = std::move(*session);
        const auto alive = lifetime_.watch();
        run_waiting();
        if (alive && !session_ && state_ == State::kClosed && !was_released_) lost_();
      });
}

void SessionHolder::park() {
  linger_.reset();
  state_ = State::kParking;
  worker_.run_call<bool>(
      {"closing the driver", "driver", options_.call_timeout},
      [last = std::exchange(session_, nullptr)]() mutable -> Result<bool> {
        return nvml::Session::shut_down(std::exchange(last, nullptr), kReleaseGrace);
      },
      [this](const Result<bool>&) {
        state_ = State::kParked;
        // Only those that arrived meanwhile: none, or one that opens it again.
        run_waiting();
      });
}

}  // namespace gpulet::agent

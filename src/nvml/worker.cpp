#include "nvml/worker.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <ranges>
#include <variant>

#include "base/log.h"

namespace gpulet::nvml {
namespace {

thread_local bool is_loop = false;

}  // namespace

void forbid_blocking_here() { is_loop = true; }
bool may_block_here() { return !is_loop; }

namespace {

using Work = std::function<void()>;
using Done = std::function<void(std::optional<Error>)>;

// What a thread does every `interval`. Its members are the thread's, but for those under the slot's mutex.
struct Repetition {
  std::function<bool()> work;
  Duration interval{};
  std::function<void()> ended;  // posts the end to the loop
  Time next{};                  // under the mutex, as the two below
  bool is_running = false;
  bool is_over = false;  // ended on the loop: nobody waits for it
  std::uint64_t runs = 0;
  Duration time{};
  // The loop's: it ran when it was ended; its Subscription has ended.
  bool is_late = false;
  bool is_cancelled = false;
};
using RepetitionPtr = std::shared_ptr<Repetition>;

// What the loop and one thread share: the calls that the thread has not begun, in their order. Handing over
// several at once saves two switches of threads for each but the first.
struct Slot {
  struct Assigned {
    std::uint64_t id = 0;
    Work work;
    std::function<void()> returned;  // posts the return of `work` to the loop
  };
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Assigned> unbegun;
  RepetitionPtr repetition;
  bool ended = false;

  void assign_work(Assigned next) {
    {
      const std::lock_guard lock(mutex);
      unbegun.push_back(std::move(next));
    }
    wake.notify_one();
  }
  std::deque<Assigned> take_back() {
    const std::lock_guard lock(mutex);
    return std::exchange(unbegun, {});
  }
  void end() {
    {
      const std::lock_guard lock(mutex);
      ended = true;
    }
    wake.notify_one();
  }
  void repeat(RepetitionPtr next) {
    {
      const std::lock_guard lock(mutex);
      next->next = steady_now() + next->interval;
      repetition = std::move(next);
    }
    wake.notify_one();
  }
  // Whether it is running: then it ends later, or never.
  bool end_repetition(const RepetitionPtr& ending) {
    const std::lock_guard lock(mutex);
    ending->is_over = true;
    if (repetition == ending) repetition = nullptr;
    return ending->is_running;
  }

  static Time steady_now() { return std::chrono::steady_clock::now(); }

  // What the thread does next; nothing: it ends. A due repetition comes before the calls that wait, or they
  // could delay it for ever.
  using Next = std::variant<std::monostate, Assigned, RepetitionPtr>;
  Next wait_for_work() {
    std::unique_lock lock(mutex);
    while (true) {
      if (!ended && repetition && repetition->next <= steady_now()) {
        repetition->is_running = true;
        return repetition;
      }
      if (!unbegun.empty()) {
        Next next(std::move(unbegun.front()));
        unbegun.pop_front();
        return next;
      }
      if (ended) return {};
      if (repetition) {
        const Time next = repetition->next;  // it may end meanwhile
        wake.wait_until(lock, next);
      } else {
        wake.wait(lock);
      }
    }
  }
  void run_repetition(const RepetitionPtr& one) {
    const Time begin = steady_now();
    const bool is_done = one->work();
    const Time now = steady_now();
    std::unique_lock lock(mutex);
    ++one->runs;
    one->time += now - begin;
    one->is_running = false;
    one->next = now + one->interval;
    if (!is_done && !one->is_over) return;
    if (repetition == one) repetition = nullptr;
    lock.unlock();
    one->ended();
  }
};

void run_worker_thread(const std::shared_ptr<Slot>& slot) {
  while (true) {
    auto next = slot->wait_for_work();
    if (auto* call = std::get_if<Slot::Assigned>(&next)) {
      call->work();
      call->work = nullptr;  // on this thread, because what it holds may call the driver when destroyed
      call->returned();
    } else if (const auto* repetition = std::get_if<RepetitionPtr>(&next)) {
      slot->run_repetition(*repetition);
    } else {
      return;
    }
  }
}

Error still_hangs_error(const Call& call) {
  return {Code::kDeadlineExceeded, call.name + " has not returned from the driver yet"};
}

Error driver_is_slow() { return {Code::kUnavailable, "the driver is slow"}; }

std::string milliseconds(Duration time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(time).count()) + " ms";
}

}  // namespace

struct Worker::State : std::enable_shared_from_this<Worker::State> {
  struct Job {
    Call call;
    Work work;
    Done done;
  };
  struct Running {
    Call call;
    Done done;
    std::shared_ptr<Slot> slot;
    Subscription slow_timer, deadline_timer;  // of the call that its thread is running
    std::optional<Time> began;
    bool abandoned = false;
    bool readmitted = false;
  };

  explicit State(Loop& the_loop) : loop(the_loop), relay(std::make_shared<LoopRelay>(the_loop)) {}

  Loop& loop;
  std::shared_ptr<LoopRelay> relay;
  std::deque<Job> queue;
  // By number: each thread returns its calls in this order. At most kMaxAssigned on `current`, the others set
  // aside.
  std::map<std::uint64_t, Running> running;
  std::shared_ptr<Slot> current;  // the thread that gets the next call
  struct Repeated {
    std::string name;
    RepetitionPtr repetition;
    Ended ended;
  };
  std::optional<Repeated> repeated;  // on `current`
  std::size_t late_repetitions = 0;  // that still run, on a thread that was left to them
  std::uint64_t last_id = 0;
  std::size_t abandoned = 0;
  std::uint64_t calls = 0;
  Duration time{};
  bool closed = false;

  void submit(Job job);
  void start_queued_calls();
  Status start_thread();
  void dispatch(Job job);
  Subscription repeat_call(std::string name, Duration interval, std::function<bool()> work, Ended ended);
  void end_repetition(const RepetitionPtr& repetition);
  void reject_repetition(const RepetitionPtr& repetition, Ended ended, const Error& error);
  void leave_repetition(const std::shared_ptr<Slot>& slot);
  void on_repetition_ended(const RepetitionPtr& repetition);
  void watch_first_call(const std::shared_ptr<Slot>& slot);
  void leave_current_thread();
  void set_aside(std::uint64_t id);
  void abandon(std::uint64_t id);
  void on_returned(std::uint64_t id);
  void reject_call(Job job, Error error);
  void reject_queued(const std::string& subject);
  void shut_down();

  const Running* find_abandoned(const std::string& subject) const {
    if (subject.empty()) return nullptr;
    for (const auto& [id, one] : running) {
      if (one.abandoned && !one.readmitted && one.call.subject == subject) return &one;
    }
    return nullptr;
  }
  // On another thread than the one that gets the next call.
  bool is_set_aside(const std::string& subject) const {
    if (subject.empty()) return false;
    return std::ranges::any_of(running, [&](const auto& entry) {
      const Running& one = entry.second;
      return one.slot != current && !one.abandoned && one.call.subject == subject;
    });
  }
  std::size_t count_assigned(const std::shared_ptr<Slot>& slot) const {
    return static_cast<std::size_t>(
        std::ranges::count_if(running, [&](const auto& entry) { return entry.second.slot == slot; }));
  }
};

void Worker::State::reject_call(Job job, Error error) {
  loop.post([weak = weak_from_this(), done = std::move(job.done), error = std::move(error)] {
    if (const auto self = weak.lock(); self && !self->closed) done(error);
  });
}

void Worker::State::submit(Job job) {
  if (const auto* hanging = find_abandoned(job.call.subject)) {
    reject_call(std::move(job), still_hangs_error(hanging->call));
    return;
  }
  if (queue.size() >= kMaxQueuedCalls) {
    reject_call(std::move(job), Error(Code::kUnavailable, "too many calls are queued for the driver"));
    return;
  }
  queue.push_back(std::move(job));
  start_queued_calls();
}

void Worker::State::start_queued_calls() {
  while (!closed && !queue.empty() && (!current || count_assigned(current) < kMaxAssigned)) {
    if (abandoned >= kMaxAbandoned) {
      Job job = std::move(queue.front());
      queue.pop_front();
      reject_call(std::move(job),
                  Error(Code::kUnavailable, std::to_string(abandoned) + " calls hang in the driver"));
      continue;
    }
    // Threads that are set aside but not abandoned count too: a slow driver must not get a thread
    // for each call.
    if (!current && running.size() >= kMaxAbandoned) return;
    const auto next =
        std::ranges::find_if(queue, [&](const Job& job) { return !is_set_aside(job.call.subject); });
    if (next == queue.end()) return;
    Job job = std::move(*next);
    queue.erase(next);
    dispatch(std::move(job));
  }
}

Status Worker::State::start_thread() {
  if (current) return {};
  auto slot = std::make_shared<Slot>();
  GPULET_TRY(start_detached_thread(kDriverThreadName, [slot] { run_worker_thread(slot); }));
  current = std::move(slot);
  return {};
}

void Worker::State::dispatch(Job job) {
  if (const auto started = start_thread(); !started) return reject_call(std::move(job), started.error());
  const std::uint64_t id = ++last_id;
  Running& now = running[id];
  now.slot = current;
  now.done = std::move(job.done);
  now.call = std::move(job.call);
  watch_first_call(current);
  current->assign_work({id, std::move(job.work), [relay = relay, weak = weak_from_this(), id] {
                          relay->post_to_loop([weak, id] {
                            if (const auto self = weak.lock(); self && !self->closed) self->on_returned(id);
                          });
                        }});
}

// The time of a call begins when the one before it has returned.
void Worker::State::watch_first_call(const std::shared_ptr<Slot>& slot) {
  const auto first =
      std::ranges::find_if(running, [&](const auto& entry) { return entry.second.slot == slot; });
  if (first == running.end() || first->second.began) return;
  const auto id = first->first;
  auto& one = first->second;
  const auto weak = weak_from_this();
  one.began = loop.now();
  one.slow_timer = loop.after(kSlowCallLimit, [weak, id] {
    if (const auto self = weak.lock()) self->set_aside(id);
  });
  one.deadline_timer = loop.after(one.call.deadline, [weak, id] {
    if (const auto self = weak.lock()) self->abandon(id);
  });
}

// What it has not begun goes back to the head of the queue: all that it has, if the kernel has not run it
// yet.
void Worker::State::leave_current_thread() {
  const auto slot = std::exchange(current, nullptr);
  leave_repetition(slot);
  auto unbegun = slot->take_back();
  for (auto& assigned : unbegun | std::views::reverse) {
    auto node = running.extract(assigned.id);
    queue.push_front(
        {std::move(node.mapped().call), std::move(assigned.work), std::move(node.mapped().done)});
  }
  if (count_assigned(slot) == 0) slot->end();
}

Subscription Worker::State::repeat_call(std::string name, Duration interval, std::function<bool()> work,
                                        Ended ended) {
  const auto weak = weak_from_this();
  const auto repetition = std::make_shared<Repetition>();
  Subscription cancel([weak, repetition] {
    repetition->is_cancelled = true;
    if (const auto self = weak.lock(); self && !self->closed) self->end_repetition(repetition);
  });
  if (repeated) end_repetition(repeated->repetition);
  // A slow driver must not get a thread for each.
  const bool is_slow = late_repetitions != 0 || (!current && !running.empty());
  const auto started = is_slow ? fail(driver_is_slow()) : start_thread();
  if (!started) {
    reject_repetition(repetition, ended, started.error());
    return cancel;
  }
  repetition->work = std::move(work);
  repetition->interval = interval;
  repetition->ended = [relay = relay, weak, ending = std::weak_ptr(repetition)] {
    relay->post_to_loop([weak, ending = ending.lock()] {
      if (const auto self = weak.lock(); self && !self->closed) self->on_repetition_ended(ending);
    });
  };
  repeated.emplace(std::move(name), repetition, std::move(ended));
  current->repeat(repetition);
  return cancel;
}

void Worker::State::reject_repetition(const RepetitionPtr& repetition, Ended ended, const Error& error) {
  loop.post([weak = weak_from_this(), repetition, ended = std::move(ended), error] {
    const auto self = weak.lock();
    if (self && !self->closed && !repetition->is_cancelled) ended(fail(error));
  });
}

void Worker::State::end_repetition(const RepetitionPtr& repetition) {
  if (!repeated || repeated->repetition != repetition) return;
  repeated.reset();
  repetition->is_late = current->end_repetition(repetition);
  late_repetitions += repetition->is_late ? 1 : 0;
}

void Worker::State::leave_repetition(const std::shared_ptr<Slot>& slot) {
  if (!repeated) return;
  auto left = *std::exchange(repeated, std::nullopt);
  Error error = driver_is_slow();
  left.repetition->is_late = slot->end_repetition(left.repetition);
  if (left.repetition->is_late) {
    ++late_repetitions;
    log::warning("a driver call does not return", {{"call", left.name}});
    error = Error(Code::kDeadlineExceeded, left.name + " has not returned from the driver");
  }
  reject_repetition(left.repetition, std::move(left.ended), error);
}

void Worker::State::on_repetition_ended(const RepetitionPtr& repetition) {
  calls += repetition->runs;
  time += repetition->time;
  if (repetition->is_late) --late_repetitions;
  if (!repeated || repeated->repetition != repetition) return;
  const auto ended = std::move(repeated->ended);
  repeated.reset();
  ended({});
}

void Worker::State::set_aside(std::uint64_t id) {
  const auto it = running.find(id);
  if (it == running.end() || it->second.slot != current) return;
  leave_current_thread();
  start_queued_calls();
}

void Worker::State::abandon(std::uint64_t id) {
  const auto self = shared_from_this();
  if (running.at(id).slot == current) leave_current_thread();
  const auto it = running.find(id);
  if (it == running.end()) return start_queued_calls();  // not begun, so it does not hang
  Running& one = it->second;
  one.abandoned = true;
  ++abandoned;
  Done done = std::move(one.done);
  const Call call = one.call;
  one.slow_timer.reset();
  log::warning("a driver call does not return", {{"call", call.name}, {"hanging", abandoned}});
  reject_queued(call.subject);
  done(Error(Code::kDeadlineExceeded,
             call.name + " has not returned from the driver in " + milliseconds(call.deadline)));
  start_queued_calls();
}

void Worker::State::reject_queued(const std::string& subject) {
  const auto* hanging = find_abandoned(subject);
  if (hanging == nullptr) return;
  for (auto it = queue.begin(); it != queue.end();) {
    if (it->call.subject != subject) {
      ++it;
      continue;
    }
    Job job = std::move(*it);
    it = queue.erase(it);
    reject_call(std::move(job), still_hangs_error(hanging->call));
  }
}

void Worker::State::on_returned(std::uint64_t id) {
  const auto self = shared_from_this();
  auto node = running.extract(id);
  Running one = std::move(node.mapped());
  ++calls;
  if (one.began) time += loop.now() - *one.began;
  if (!current) current = one.slot;  // set aside before, and no other thread has replaced it
  if (one.slot != current) one.slot->end();
  watch_first_call(one.slot);
  if (one.abandoned) {
    --abandoned;
    log::info("a hanging driver call has returned", {{"call", one.call.name}, {"hanging", abandoned}});
  } else {
    one.done(std::nullopt);
  }
  start_queued_calls();
}

void Worker::State::shut_down() {
  closed = true;
  relay->close_relay();
  queue.clear();
  for (auto& [id, one] : running) {
    if (one.slot != current) one.slot->end();
  }
  if (current) {
    current->take_back();
    current->end();
  }
  running.clear();
}

Worker::Worker(Loop& loop) : state_(std::make_shared<State>(loop)) { forbid_blocking_here(); }
Worker::~Worker() { state_->shut_down(); }

void Worker::submit(Call call, std::function<void()> work, std::function<void(std::optional<Error>)> done) {
  state_->submit({std::move(call), std::move(work), std::move(done)});
}

Subscription Worker::repeat_call(std::string name, Duration interval, std::function<bool()> work,
                                 Ended ended) {
  return state_->repeat_call(std::move(name), interval, std::move(work), std::move(ended));
}

void Worker::readmit_subjects() {
  for (auto& [id, one] : state_->running) one.readmitted = one.abandoned;
}

std::size_t Worker::abandoned() const { return state_->abandoned; }
std::uint64_t Worker::completed_calls() const { return state_->calls; }
Duration Worker::driver_time() const { return state_->time; }

}  // namespace gpulet::nvml

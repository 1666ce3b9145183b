#include "nvml/worker.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>

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

// What the loop and one thread share: a slot for the next call.
struct Slot {
  std::mutex mutex;
  std::condition_variable wake;
  Work work;
  std::function<void()> returned;  // posts the return of `work` to the loop
  bool ended = false;

  void assign_work(Work next, std::function<void()> after) {
    {
      const std::lock_guard lock(mutex);
      work = std::move(next);
      returned = std::move(after);
    }
    wake.notify_one();
  }
  void end() {
    {
      const std::lock_guard lock(mutex);
      ended = true;
    }
    wake.notify_one();
  }
};

void run_worker_thread(const std::shared_ptr<Slot>& slot) {
  while (true) {
    Work work;
    std::function<void()> returned;
    {
      std::unique_lock lock(slot->mutex);
      slot->wake.wait(lock, [&] { return slot->work || slot->ended; });
      if (!slot->work) return;
      work = std::exchange(slot->work, nullptr);
      returned = std::exchange(slot->returned, nullptr);
    }
    work();
    work = nullptr;  // on this thread, because what it holds may call the driver when destroyed
    returned();
  }
}

Error still_hangs_error(const Call& call) {
  return {Code::kDeadlineExceeded, call.name + " has not returned from the driver yet"};
}

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
    Subscription slow_timer, deadline_timer;
    Time began{};
    bool abandoned = false;
    bool readmitted = false;
  };

  explicit State(Loop& the_loop) : loop(the_loop), relay(std::make_shared<LoopRelay>(the_loop)) {}

  Loop& loop;
  std::shared_ptr<LoopRelay> relay;
  std::deque<Job> queue;
  std::map<std::uint64_t, Running> running;  // one on `current`, the others set aside
  std::shared_ptr<Slot> current;             // the thread that gets the next call
  bool busy = false;                         // `current` is running a call
  std::uint64_t last_id = 0;
  std::size_t abandoned = 0;
  std::uint64_t calls = 0;
  Duration time{};
  bool closed = false;

  void submit(Job job);
  void start_queued_calls();
  void dispatch(Job job);
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
  bool is_running(const std::string& subject) const {
    if (subject.empty()) return false;
    return std::ranges::any_of(running, [&](const auto& entry) {
      return !entry.second.abandoned && entry.second.call.subject == subject;
    });
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
  while (!closed && !queue.empty() && !busy) {
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
        std::ranges::find_if(queue, [&](const Job& job) { return !is_running(job.call.subject); });
    if (next == queue.end()) return;
    Job job = std::move(*next);
    queue.erase(next);
    dispatch(std::move(job));
  }
}

void Worker::State::dispatch(Job job) {
  if (!current) {
    auto slot = std::make_shared<Slot>();
    if (const auto started = start_detached_thread(kDriverThreadName, [slot] { run_worker_thread(slot); });
        !started) {
      reject_call(std::move(job), started.error());
      return;
    }
    current = std::move(slot);
  }
  const std::uint64_t id = ++last_id;
  busy = true;
  const auto weak = weak_from_this();
  Running& now = running[id];
  now.slot = current;
  now.began = loop.now();
  now.done = std::move(job.done);
  now.slow_timer = loop.after(kSlowCallLimit, [weak, id] {
    if (const auto self = weak.lock()) self->set_aside(id);
  });
  now.deadline_timer = loop.after(job.call.deadline, [weak, id] {
    if (const auto self = weak.lock()) self->abandon(id);
  });
  now.call = std::move(job.call);
  current->assign_work(std::move(job.work), [relay = relay, weak, id] {
    relay->post_to_loop([weak, id] {
      if (const auto self = weak.lock(); self && !self->closed) self->on_returned(id);
    });
  });
}

void Worker::State::set_aside(std::uint64_t id) {
  const auto it = running.find(id);
  if (it == running.end() || it->second.slot != current) return;
  current.reset();
  busy = false;
  start_queued_calls();
}

void Worker::State::abandon(std::uint64_t id) {
  const auto self = shared_from_this();
  Running& one = running.at(id);
  one.abandoned = true;
  ++abandoned;
  Done done = std::move(one.done);
  const Call call = one.call;
  one.slow_timer.reset();
  if (one.slot == current) {
    current.reset();
    busy = false;
  }
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
  time += loop.now() - one.began;
  if (one.slot == current) {
    busy = false;
  } else if (!current) {
    current = one.slot;  // set aside before, and no other thread has replaced it
    busy = false;
  } else {
    one.slot->end();
  }
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
  if (current) current->end();
  running.clear();
}

Worker::Worker(Loop& loop) : state_(std::make_shared<State>(loop)) { forbid_blocking_here(); }
Worker::~Worker() { state_->shut_down(); }

void Worker::submit(Call call, std::function<void()> work, std::function<void(std::optional<Error>)> done) {
  state_->submit({std::move(call), std::move(work), std::move(done)});
}

void Worker::readmit_subjects() {
  for (auto& [id, one] : state_->running) one.readmitted = one.abandoned;
}

std::size_t Worker::abandoned() const { return state_->abandoned; }
std::uint64_t Worker::completed_calls() const { return state_->calls; }
Duration Worker::driver_time() const { return state_->time; }

}  // namespace gpulet::nvml

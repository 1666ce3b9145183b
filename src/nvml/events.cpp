#include "nvml/events.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <vector>

#include "nvml/worker.h"

namespace gpulet::nvml {
namespace {

std::atomic<std::size_t> waiting_threads{0};

}  // namespace

Result<std::shared_ptr<const EventSet>> EventSet::create_event_set(std::shared_ptr<const Session> session) {
  GPULET_TRY_ASSIGN(void* const raw, session->create_event_set());
  return std::shared_ptr<const EventSet>(new EventSet(std::move(session), raw), delete_off_loop<EventSet>);
}

EventSet::~EventSet() { session_->free_event_set(raw_); }

Result<std::uint64_t> EventSet::register_device(Device gpu, std::uint64_t types) const {
  const auto supported = session_->supported_events(gpu);
  if (!supported && supported.error().code() == Code::kUnsupported) return 0;
  if (!supported) return fail(supported.error());
  const std::uint64_t selected = types & *supported;
  if (selected == 0) return 0;
  const auto registered = session_->register_events(gpu, selected, raw_);
  if (!registered && registered.error().code() == Code::kUnsupported) return 0;
  if (!registered) return fail(registered.error());
  return selected;
}

struct EventWaiter::State : std::enable_shared_from_this<EventWaiter::State> {
  State(Loop& the_loop, Handlers the_handlers)
      : relay(the_loop), loop(the_loop), handlers(std::move(the_handlers)) {}

  LoopRelay relay;
  // Used on the loop's thread.
  Loop& loop;
  Handlers handlers;
  bool closed = false;
  Subscription pause;
  // Used by the waiting thread.
  std::size_t in_a_row = 0;
  std::atomic<bool> stopping{false};

  std::mutex mutex;
  std::condition_variable handled;
  std::vector<Event> pending;
  bool delivering = false;  // a delivery is posted; it will see what is pending

  // Runs `handler` on the loop unless the waiter is destroyed by then.
  void post_handler(std::function<void(Handlers&)> handler) {
    relay.post_to_loop([weak = weak_from_this(), handler = std::move(handler)] {
      if (const auto self = weak.lock(); self && !self->closed) handler(self->handlers);
    });
  }

  void post_event(const Event& event) {
    {
      std::unique_lock lock(mutex);
      in_a_row = delivering ? in_a_row + 1 : 0;
      if (in_a_row >= kStormEvents) {
        in_a_row = 0;
        handled.wait_for(lock, kEventBatchInterval, [&] { return stopping.load(); });
      }
      if (std::ranges::count(pending, event) != 0) return;
      handled.wait(lock, [&] { return pending.size() < kMaxPendingEvents || stopping; });
      pending.push_back(event);
      if (std::exchange(delivering, true)) return;
    }
    relay.post_to_loop([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->deliver_events();
    });
  }

  // Runs on the loop, and again after each interval while there are events.
  void deliver_events() {
    std::vector<Event> events;
    {
      const std::lock_guard lock(mutex);
      events.swap(pending);
      delivering = !events.empty();
    }
    handled.notify_one();
    for (const auto& event : events) {
      if (closed) return;
      handlers.event(event);
    }
    if (closed || events.empty()) return;
    pause = loop.after(kEventBatchInterval, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->deliver_events();
    });
  }

  void wait_for_events(std::shared_ptr<const EventSet> set) {
    bool reported = false;
    while (!stopping) {
      const auto event =
          set->session().wait_event(set->raw(), static_cast<unsigned>(kEventWaitTimeout.count()));
      if (stopping) break;
      if (!event) {
        set.reset();  // before the handler runs, which may open the driver again
        post_handler([error = event.error()](Handlers& to) { to.ended(error); });
        break;
      }
      if (!reported) {
        reported = true;
        post_handler([](Handlers& to) { to.started(); });
      }
      if (*event) post_event(**event);
    }
  }
};

Result<std::unique_ptr<EventWaiter>> EventWaiter::start_waiting(Loop& loop,
                                                                std::shared_ptr<const EventSet> set,
                                                                Handlers handlers) {
  if (waiting_threads > kMaxStoppingWaiters) {
    return fail(Code::kUnavailable, "too many earlier waits for driver events have not returned");
  }
  auto state = std::make_shared<State>(loop, std::move(handlers));
  ++waiting_threads;
  const auto started = start_detached_thread(kDriverThreadName, [state, set = std::move(set)]() mutable {
    state->wait_for_events(std::move(set));
    --waiting_threads;
  });
  if (!started) {
    --waiting_threads;
    return fail(started.error());
  }
  return std::unique_ptr<EventWaiter>(new EventWaiter(std::move(state)));
}

EventWaiter::~EventWaiter() {
  state_->closed = true;
  state_->pause.reset();
  state_->relay.close_relay();
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->handled.notify_one();
}

}  // namespace gpulet::nvml

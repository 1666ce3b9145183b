#include "nvml/events.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <vector>

#include "nvml/thread.h"

namespace gpulet::nvml {
namespace {

std::atomic<std::size_t> waiting_threads{0};

}  // namespace

Result<std::shared_ptr<const EventSet>> EventSet::create(std::shared_ptr<const Session> session) {
  GPULET_TRY_ASSIGN(void* const raw, session->create_event_set());
  return std::shared_ptr<const EventSet>(new EventSet(std::move(session), raw), dispose<EventSet>);
}

EventSet::~EventSet() { session_->free_event_set(raw_); }

Result<std::uint64_t> EventSet::add(Device gpu, std::uint64_t types) const {
  const auto supported = session_->supported_events(gpu);
  if (!supported && supported.error().code() == Code::kUnsupported) return 0;
  if (!supported) return fail(supported.error());
  const std::uint64_t wanted = types & *supported;
  if (wanted == 0) return 0;
  const auto registered = session_->register_events(gpu, wanted, raw_);
  if (!registered && registered.error().code() == Code::kUnsupported) return 0;
  if (!registered) return fail(registered.error());
  return wanted;
}

struct EventWaiter::State : std::enable_shared_from_this<EventWaiter::State> {
  State(Loop& the_loop, Handlers the_handlers)
      : relay(the_loop), loop(the_loop), handlers(std::move(the_handlers)) {}

  Relay relay;
  // Loop's thread.
  Loop& loop;
  Handlers handlers;
  bool closed = false;
  Subscription pause;
  // The waiting thread.
  std::size_t in_a_row = 0;
  std::atomic<bool> leaving{false};

  std::mutex mutex;
  std::condition_variable handled;
  std::vector<Event> pending;
  bool telling = false;  // what is pending will be looked at without another post

  // Runs `handler` on the loop unless the waiter is gone by then.
  void post(std::function<void(Handlers&)> handler) {
    relay.post([weak = weak_from_this(), handler = std::move(handler)] {
      if (const auto self = weak.lock(); self && !self->closed) handler(self->handlers);
    });
  }

  void post_event(const Event& event) {
    {
      std::unique_lock lock(mutex);
      in_a_row = telling ? in_a_row + 1 : 0;
      if (in_a_row >= kStormEvents) {
        in_a_row = 0;
        handled.wait_for(lock, kEventPause, [&] { return leaving.load(); });
      }
      if (std::ranges::count(pending, event) != 0) return;
      handled.wait(lock, [&] { return pending.size() < kMaxPendingEvents || leaving; });
      pending.push_back(event);
      if (std::exchange(telling, true)) return;
    }
    relay.post([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->tell();
    });
  }

  // On the loop, as long as there is something to tell.
  void tell() {
    std::vector<Event> events;
    {
      const std::lock_guard lock(mutex);
      events.swap(pending);
      telling = !events.empty();
    }
    handled.notify_one();
    for (const auto& event : events) {
      if (closed) return;
      handlers.event(event);
    }
    if (closed || events.empty()) return;
    pause = loop.after(kEventPause, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->tell();
    });
  }

  void wait_for_events(std::shared_ptr<const EventSet> set) {
    bool told = false;
    while (!leaving) {
      const auto event = set->session().wait_event(set->raw(), static_cast<unsigned>(kEventWait.count()));
      if (leaving) break;
      if (!event) {
        set.reset();  // before anybody hears of it, who may then open the driver anew
        post([error = event.error()](Handlers& to) { to.ended(error); });
        break;
      }
      if (!told) {
        told = true;
        post([](Handlers& to) { to.works(); });
      }
      if (*event) post_event(**event);
    }
  }
};

Result<std::unique_ptr<EventWaiter>> EventWaiter::start(Loop& loop, std::shared_ptr<const EventSet> set,
                                                        Handlers handlers) {
  if (waiting_threads > kMaxLeavingWaiters) {
    return fail(Code::kUnavailable, "earlier waits for driver events have not ended");
  }
  auto state = std::make_shared<State>(loop, std::move(handlers));
  ++waiting_threads;
  const auto started = start_detached(kForTheDriver, [state, set = std::move(set)]() mutable {
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
  state_->relay.close();
  {
    const std::lock_guard lock(state_->mutex);
    state_->leaving = true;
  }
  state_->handled.notify_one();
}

}  // namespace gpulet::nvml

#include "device_plugin/list_delay.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "device_plugin/rpc_core.h"

namespace gpulet::device_plugin {
namespace {

class DelayedPodResources final : public PodResources {
 public:
  DelayedPodResources(Loop& loop, PodResources& inner, ListDelay delay,
                      std::function<AllocationCalls()> calls)
      : loop_(loop), inner_(inner), delay_(delay), calls_(std::move(calls)) {}

  void list_containers(std::function<void(Result<std::vector<ContainerDevices>>)> done) override {
    list_until(loop_.now() + kMaxListDelay, std::move(done));
  }
  void list_allocatable(std::function<void(Result<DevicesByResource>)> done) override {
    inner_.list_allocatable(guarded(std::move(done)));
  }

 private:
  // No answer comes after this one's destruction, though `inner` lives on.
  template <class Value>
  std::function<void(Result<Value>)> guarded(std::function<void(Result<Value>)> done) const {
    return [done = std::move(done), alive = lifetime_.watch()](Result<Value> answer) {
      if (alive) done(std::move(answer));
    };
  }

  void list_until(Time latest, std::function<void(Result<std::vector<ContainerDevices>>)> done) {
    const auto now = loop_.now();
    const auto wait = std::min(remaining_wait(now), latest - now);
    if (wait <= Duration::zero()) return inner_.list_containers(guarded(std::move(done)));
    const auto id = next_++;
    waiting_[id] = loop_.after(wait, [this, id, latest, done = std::move(done)]() mutable {
      auto call = std::move(done);  // erasing the timer destroys this
      auto* const self = this;
      const auto until = latest;
      self->waiting_.erase(id);
      self->list_until(until, std::move(call));
    });
  }

  // Zero: nothing is in the way. The end of a call is not announced: it is looked for again.
  Duration remaining_wait(Time now) const {
    const auto calls = calls_();
    if (calls.open != 0) return kListAfterAllocation;
    if (delay_ == ListDelay::kWhileCallsOpen || !calls.answered) return Duration::zero();
    return *calls.answered + kListAfterAllocation - now;
  }

  Loop& loop_;
  PodResources& inner_;
  const ListDelay delay_;
  const std::function<AllocationCalls()> calls_;
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, Subscription> waiting_;
  Lifetime lifetime_;
};

}  // namespace

std::unique_ptr<PodResources> delay_lists(Loop& loop, PodResources& inner, ListDelay delay,
                                          std::function<AllocationCalls()> calls) {
  return std::make_unique<DelayedPodResources>(loop, inner, delay, std::move(calls));
}

std::unique_ptr<PodResources> delay_lists(Loop& loop, PodResources& inner, ListDelay delay,
                                          std::shared_ptr<GrpcThread> rpc) {
  return delay_lists(loop, inner, delay, std::function([rpc = std::move(rpc)] {
                       return rpc->device_service().allocation_calls();
                     }));
}

}  // namespace gpulet::device_plugin

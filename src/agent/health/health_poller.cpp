#include "agent/health/health_poller.h"

#include <algorithm>

namespace gpulet::agent {

HealthPoller::HealthPoller(Loop& loop, Driver& driver,
                           std::function<void(const Driver::Evidence&)> on_evidence)
    : loop_(loop), driver_(driver), on_evidence_(std::move(on_evidence)) {}

HealthPoller::~HealthPoller() = default;

void HealthPoller::set_gpus(const inventory::Snapshot& snapshot) {
  std::map<DeviceUuid, PolledGpu> now;
  for (const auto& gpu : snapshot.gpus) {
    if (gpu.uuid.empty()) continue;  // cannot be addressed
    const auto known = gpus_.find(gpu.uuid);
    auto& asked = now[gpu.uuid];
    if (known != gpus_.end()) {
      asked = std::move(known->second);
    } else {
      asked.poll_soon = true;
    }
    if (gpu.unreadable && !asked.scopes.empty()) continue;  // keep what is known
    asked.scopes = {{gpu.uuid}};
    for (const auto& mig : gpu.mig_devices) {
      asked.scopes.push_back({gpu.uuid, mig.gpu_instance, mig.compute_instance});
    }
  }
  gpus_ = std::move(now);
  if (std::exchange(paused_, false)) {
    next_liveness_check_ = loop_.now() + policy_.liveness_interval;
    next_poll_ = loop_.now() + policy_.poll_interval;
    for (auto& [uuid, asked] : gpus_) asked.poll_soon = true;
  }
  arm_timer();
}

void HealthPoller::pause_polling() {
  paused_ = true;
  arm_timer();
}

void HealthPoller::poll_soon(const DeviceUuid& gpu) {
  const auto found = gpus_.find(gpu);
  if (found == gpus_.end()) return;
  found->second.poll_soon = true;
  arm_timer();
}

void HealthPoller::schedule_polls(const health::Policy& policy, bool liveness_only,
                                  const std::vector<DeviceUuid>& withdrawn_gpus, std::optional<Time> due) {
  // A shorter interval applies immediately.
  next_liveness_check_ = std::min(next_liveness_check_, loop_.now() + policy.liveness_interval);
  next_poll_ = std::min(next_poll_, loop_.now() + policy.poll_interval);
  policy_ = policy;
  liveness_only_ = liveness_only;
  due_ = due;
  for (auto& [uuid, asked] : gpus_) asked.withdrawn = std::ranges::binary_search(withdrawn_gpus, uuid);
  arm_timer();
}

// Sets the timer to the earliest poll.
void HealthPoller::arm_timer() {
  std::optional<Time> next;
  const auto at = [&](Time time) { next = std::min(next.value_or(time), time); };
  if (!paused_ && !gpus_.empty()) {
    at(next_liveness_check_);
    at(next_poll_);
    for (const auto& [uuid, asked] : gpus_) {
      if (asked.pending_calls != 0) continue;  // its result arms the timer again
      if (asked.poll_soon) at(loop_.now());
      if (asked.withdrawn) at(next_unhealthy_poll(asked));
    }
  }
  if (next == armed_) return;
  armed_ = next;
  timer_.reset();
  if (next) timer_ = loop_.after(*next - loop_.now(), [this] { poll_due_gpus(); });
}

// The next recovery time, if it is before the next regular poll.
Time HealthPoller::next_unhealthy_poll(const PolledGpu& asked) const {
  const Time turn = asked.last_polled + policy_.unhealthy_poll_interval;
  return due_ && *due_ > asked.last_polled ? std::min(turn, *due_) : turn;
}

void HealthPoller::poll_due_gpus() {
  timer_.reset();
  armed_.reset();
  const Time now = loop_.now();
  const bool all = now >= next_poll_, alive = now >= next_liveness_check_;
  if (all) next_poll_ = now + policy_.poll_interval;
  if (all || alive) next_liveness_check_ = now + policy_.liveness_interval;
  for (auto& [uuid, asked] : gpus_) {
    if (asked.pending_calls != 0) continue;
    const bool turn = asked.withdrawn && now >= next_unhealthy_poll(asked);
    const bool everything = all || turn || asked.poll_soon;
    if (everything && !liveness_only_) {
      poll_gpu(asked);
    } else if (everything || (alive && !asked.withdrawn)) {
      check_liveness(uuid, asked);
    }
  }
  arm_timer();
}

void HealthPoller::check_liveness(const DeviceUuid& gpu, PolledGpu& asked) {
  if (liveness_only_) asked.last_polled = loop_.now();
  asked.poll_soon = asked.poll_soon && !liveness_only_;
  asked.pending_calls = 1;
  driver_.probe_gpu(gpu, result_handler(gpu));
}

void HealthPoller::poll_gpu(PolledGpu& asked) {
  asked.poll_soon = false;
  asked.last_polled = loop_.now();
  // MIG devices are polled only for their processes, which matter for withdrawn GPUs.
  const std::size_t count = asked.withdrawn ? asked.scopes.size() : 1;
  asked.pending_calls = count;
  const auto scopes = asked.scopes;
  for (std::size_t i = 0; i < count; ++i) driver_.poll_device(scopes[i], result_handler(scopes[i].gpu));
}

std::function<void(Driver::Evidence)> HealthPoller::result_handler(const DeviceUuid& gpu) {
  return [this, gpu, alive = lifetime_.watch()](const Driver::Evidence& evidence) {
    if (alive) on_result(gpu, evidence);
  };
}

void HealthPoller::on_result(const DeviceUuid& gpu, const Driver::Evidence& evidence) {
  const auto found = gpus_.find(gpu);
  if (found == gpus_.end()) return;  // removed meanwhile
  auto& asked = found->second;
  if (asked.pending_calls == 0) return;  // a result for an earlier GPU with this UUID
  asked.gathered.insert(asked.gathered.end(), evidence.begin(), evidence.end());
  if (--asked.pending_calls != 0) return;
  const auto gathered = std::exchange(asked.gathered, {});
  const auto alive = lifetime_.watch();
  on_evidence_(gathered);
  if (alive) arm_timer();
}

}  // namespace gpulet::agent

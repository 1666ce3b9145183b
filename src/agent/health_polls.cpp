#include "agent/health_polls.h"

#include <algorithm>

namespace gpulet::agent {

HealthPolls::HealthPolls(Loop& loop, Driver& driver, std::function<void(const Driver::Evidence&)> answered)
    : loop_(loop), driver_(driver), answered_(std::move(answered)) {}

HealthPolls::~HealthPolls() = default;

void HealthPolls::follow(const inventory::Snapshot& snapshot) {
  std::map<DeviceUuid, Asked> now;
  for (const auto& gpu : snapshot.gpus) {
    if (gpu.uuid.empty()) continue;  // one that never answered has no name to ask by
    const auto known = gpus_.find(gpu.uuid);
    auto& asked = now[gpu.uuid];
    if (known != gpus_.end()) {
      asked = std::move(known->second);
    } else {
      asked.soon = true;
    }
    if (gpu.unreadable && !asked.scopes.empty()) continue;  // what was known of it stays
    asked.scopes = {{gpu.uuid}};
    for (const auto& mig : gpu.mig_devices) {
      asked.scopes.push_back({gpu.uuid, mig.gpu_instance, mig.compute_instance});
    }
  }
  gpus_ = std::move(now);
  if (std::exchange(paused_, false)) {
    next_alive_ = loop_.now() + policy_.alive_interval;
    next_poll_ = loop_.now() + policy_.poll_interval;
    for (auto& [uuid, asked] : gpus_) asked.soon = true;
  }
  arm();
}

void HealthPolls::pause() {
  paused_ = true;
  arm();
}

void HealthPolls::poll_soon(const DeviceUuid& gpu) {
  const auto found = gpus_.find(gpu);
  if (found == gpus_.end()) return;
  found->second.soon = true;
  arm();
}

void HealthPolls::plan(const health::Policy& policy, bool ask_only, const std::vector<DeviceUuid>& suspects,
                       std::optional<Time> due) {
  // A shorter interval counts at once.
  next_alive_ = std::min(next_alive_, loop_.now() + policy.alive_interval);
  next_poll_ = std::min(next_poll_, loop_.now() + policy.poll_interval);
  policy_ = policy;
  ask_only_ = ask_only;
  due_ = due;
  for (auto& [uuid, asked] : gpus_) asked.suspect = std::ranges::binary_search(suspects, uuid);
  arm();
}

// The earliest moment at which anybody is to be asked.
void HealthPolls::arm() {
  std::optional<Time> next;
  const auto at = [&](Time time) { next = std::min(next.value_or(time), time); };
  if (!paused_ && !gpus_.empty()) {
    at(next_alive_);
    at(next_poll_);
    for (const auto& [uuid, asked] : gpus_) {
      if (asked.out != 0) continue;  // its answer looks again
      if (asked.soon) at(loop_.now());
      if (asked.suspect) at(suspect_time(asked));
    }
  }
  if (next == armed_) return;
  armed_ = next;
  timer_.reset();
  if (next) timer_ = loop_.after(*next - loop_.now(), [this] { tick(); });
}

// The moment at which a fault could end, if that is before the next turn.
Time HealthPolls::suspect_time(const Asked& asked) const {
  const Time turn = asked.polled + policy_.suspect_interval;
  return due_ && *due_ > asked.polled ? std::min(turn, *due_) : turn;
}

void HealthPolls::tick() {
  timer_.reset();
  armed_.reset();
  const Time now = loop_.now();
  const bool all = now >= next_poll_, alive = now >= next_alive_;
  if (all) next_poll_ = now + policy_.poll_interval;
  if (all || alive) next_alive_ = now + policy_.alive_interval;
  for (auto& [uuid, asked] : gpus_) {
    if (asked.out != 0) continue;
    const bool turn = asked.suspect && now >= suspect_time(asked);
    const bool everything = all || turn || asked.soon;
    if (everything && !ask_only_) {
      poll(asked);
    } else if (everything || (alive && !asked.suspect)) {
      ask(uuid, asked);
    }
  }
  arm();
}

void HealthPolls::ask(const DeviceUuid& gpu, Asked& asked) {
  if (ask_only_) asked.polled = loop_.now();
  asked.soon = asked.soon && !ask_only_;
  asked.out = 1;
  driver_.ask(gpu, answer_of(gpu));
}

void HealthPolls::poll(Asked& asked) {
  asked.soon = false;
  asked.polled = loop_.now();
  // MIG devices are asked only who runs on them, which matters where something is broken.
  const std::size_t count = asked.suspect ? asked.scopes.size() : 1;
  asked.out = count;
  const auto scopes = asked.scopes;
  for (std::size_t i = 0; i < count; ++i) driver_.poll(scopes[i], answer_of(scopes[i].gpu));
}

std::function<void(Driver::Evidence)> HealthPolls::answer_of(const DeviceUuid& gpu) {
  return [this, gpu, alive = std::weak_ptr(alive_)](const Driver::Evidence& evidence) {
    if (!alive.expired()) take(gpu, evidence);
  };
}

void HealthPolls::take(const DeviceUuid& gpu, const Driver::Evidence& evidence) {
  const auto found = gpus_.find(gpu);
  if (found == gpus_.end()) return;  // gone meanwhile
  auto& asked = found->second;
  if (asked.out == 0) return;  // of one of the same name that was here before
  asked.gathered.insert(asked.gathered.end(), evidence.begin(), evidence.end());
  if (--asked.out != 0) return;
  const auto gathered = std::exchange(asked.gathered, {});
  const auto alive = std::weak_ptr(alive_);
  answered_(gathered);
  if (!alive.expired()) arm();
}

}  // namespace gpulet::agent

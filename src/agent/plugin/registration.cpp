#include "agent/plugin/registration.h"

namespace gpulet::agent {

Registration::Registration(Loop& loop, PluginHost& host, ResourceName resource, std::uint64_t seed,
                           Callbacks callbacks)
    : loop_(loop),
      host_(host),
      resource_(std::move(resource)),
      backoff_(kRegisterBackoff, seed),
      callbacks_(std::move(callbacks)) {}

void Registration::register_now() {
  registered_ = false;
  backoff_.reset();
  attempt();
}

void Registration::attempt() {
  timer_.reset();
  in_flight_ = true;
  // The result of an earlier attempt belongs to a previous kubelet or socket: it may arrive late or never.
  host_.register_resource(resource_,
                          [this, alive = lifetime_.watch(), attempt = ++attempts_](const Status& status) {
                            if (alive && attempt == attempts_) on_finished(status);
                          });
}

void Registration::on_finished(const Status& status) {
  in_flight_ = false;
  if (!status) {
    registered_ = false;
    if (!last_error_) callbacks_.failed(status.error());
    last_error_ = status.error();
    schedule_retry();
    return;
  }
  registered_ = true;
  last_error_.reset();
  callbacks_.registered();
  timer_ = loop_.after(kWatchTimeout, [this] {
    if (watched_) return;
    last_error_ =
        Error(Code::kDeadlineExceeded, "the kubelet accepted the registration and did not open ListAndWatch",
              resource_.str());
    callbacks_.failed(*last_error_);
    registered_ = false;
    attempt();
  });
}

void Registration::schedule_retry() {
  timer_ = loop_.after(backoff_.next_delay(), [this] { attempt(); });
}

void Registration::on_watched(bool watched) {
  if (watched == watched_) return;
  watched_ = watched;
  if (watched) {
    backoff_.reset();
    if (registered_) timer_.reset();
    return;
  }
  // The kubelet stops, or lost the stream. If it stops, its new socket starts a registration.
  if (registered_ && !in_flight_) {
    registered_ = false;
    schedule_retry();
  }
}

}  // namespace gpulet::agent

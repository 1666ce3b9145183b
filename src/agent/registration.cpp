#include "agent/registration.h"

namespace gpulet::agent {

Registration::Registration(Loop& loop, PluginHost& host, ResourceName resource, std::uint64_t seed, Told told)
    : loop_(loop),
      host_(host),
      resource_(std::move(resource)),
      backoff_(kRegisterBackoff, seed),
      told_(std::move(told)) {}

void Registration::start() {
  registered_ = false;
  backoff_.reset();
  attempt();
}

void Registration::attempt() {
  timer_.reset();
  in_flight_ = true;
  // An answer to an earlier try belongs to a kubelet or a socket that is gone: it may come late, or never.
  host_.register_resource(resource_,
                          [this, alive = std::weak_ptr(alive_), attempt = ++attempts_](const Status& status) {
                            if (!alive.expired() && attempt == attempts_) finished(status);
                          });
}

void Registration::finished(const Status& status) {
  in_flight_ = false;
  if (!status) {
    registered_ = false;
    if (!last_error_) told_.failed(status.error());
    last_error_ = status.error();
    retry_later();
    return;
  }
  registered_ = true;
  last_error_.reset();
  told_.registered();
  timer_ = loop_.after(kWatchTimeout, [this] {
    if (watched_) return;
    last_error_ =
        Error(Code::kDeadlineExceeded, "the kubelet accepted the registration and did not open ListAndWatch",
              resource_.str());
    told_.failed(*last_error_);
    registered_ = false;
    attempt();
  });
}

void Registration::retry_later() {
  timer_ = loop_.after(backoff_.next(), [this] { attempt(); });
}

void Registration::on_watched(bool watched) {
  if (watched == watched_) return;
  watched_ = watched;
  if (watched) {
    backoff_.reset();
    if (registered_) timer_.reset();
    return;
  }
  // The kubelet is going down, or lost the stream: if it is the first, its new socket will start us again.
  if (registered_ && !in_flight_) {
    registered_ = false;
    retry_later();
  }
}

}  // namespace gpulet::agent

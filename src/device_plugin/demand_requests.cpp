#include "device_plugin/demand_requests.h"

#include <utility>

#include "base/log.h"

namespace gpulet::device_plugin {

void DemandRequests::set_source(DemandSource source) {
  source_ = std::move(source);
  calls_.clear();
  if (!source_) return service_.set_demand_callback(nullptr);
  service_.set_demand_callback([this, mailbox = mailbox_](std::uint64_t call) {
    Mailbox::post_task(mailbox, [this, call] { ask_source(call); });
  });
}

void DemandRequests::ask_source(std::uint64_t call) {
  if (!source_) return;  // which has resumed the call
  calls_[call] = loop_.after(kDemandTimeout, [this, call] {
    resume_call(call, fail(Code::kDeadlineExceeded, "the API server did not answer in time"));
  });
  source_([this, alive = lifetime_.watch(), call](auto demands) {
    if (alive) resume_call(call, std::move(demands));
  });
}

void DemandRequests::resume_call(std::uint64_t call, Result<std::vector<PodDemand>> demands) {
  const auto timer = calls_.extract(call);
  if (!timer) return;
  const auto error = demands ? std::string() : demands.error().full_message();
  if (!error.empty() && error != logged_error_)
    log::warning("cannot compare devices with what Pods choose", demands.error());
  logged_error_ = error;
  service_.resume_with_demands(call, demands ? std::move(*demands) : std::vector<PodDemand>());
}

}  // namespace gpulet::device_plugin

#include "agent/driver/driver_events.h"

#include <algorithm>

#include "agent/driver/gpu_lookup.h"
#include "base/log.h"
#include "nvml/session.h"

namespace gpulet::agent {
namespace {

using health::Notice;

struct NoticeType {
  std::uint64_t type;
  Notice notice;
  bool changes;  // the GPU has changed: read it again
};
// Events other than XIDs. Corrected errors are not among them: the counters cover those.
constexpr NoticeType kNotices[] = {
    {nvml::kEventDoubleBitEcc, Notice::kDoubleBitEcc, false},
    {nvml::kEventSingleBitStorm, Notice::kSingleBitStorm, false},
    {nvml::kEventRetirement, Notice::kRetirement, false},
    {nvml::kEventRetirementFailure, Notice::kRetirementFailure, false},
    {nvml::kEventContainedPoison, Notice::kContainedPoison, false},
    {nvml::kEventFatalPoison, Notice::kFatalPoison, false},
    {nvml::kEventMigConfig, Notice::kMigChanged, true},
    {nvml::kEventGpuUnavailable, Notice::kUnavailable, true},
    {nvml::kEventRecoveryAction, Notice::kRecoveryChanged, false},
};

constexpr std::uint64_t subscribed_event_types() {
  std::uint64_t types = nvml::kEventXid;
  for (const auto& notice : kNotices) types |= notice.type;
  return types;
}
constexpr std::uint64_t kEventSeed = 20;

Error session_closed() { return {Code::kUnavailable, "the driver is being initialised"}; }

}  // namespace

DriverEvents::DriverEvents(Loop& loop, nvml::Worker& worker)
    : loop_(loop), worker_(worker), backoff_(kEventBackoff, kEventSeed) {}

DriverEvents::~DriverEvents() { stop_events(); }

void DriverEvents::stop_events() {
  ++round_;
  waiter_.reset();
  retry_.reset();
  release_set();
  session_.reset();
  targets_.clear();
  registering_ = 0;
  making_set_ = false;
  settled_callbacks_.clear();
}

void DriverEvents::notify_settled() {
  for (const auto& settled : std::exchange(settled_callbacks_, {})) settled();
}

void DriverEvents::release_set() {
  sources_.clear();
  registered_.clear();
  any_events_ = false;
  set_.reset();
}

void DriverEvents::watch_gpus(const std::shared_ptr<const nvml::Session>& session,
                              const std::vector<inventory::Gpu>& gpus, Duration deadline,
                              std::function<void()> settled) {
  session_ = session;
  settled_callbacks_.push_back(std::move(settled));
  deadline_ = deadline;
  targets_.clear();
  for (const auto& gpu : gpus) {
    if (gpu.unreadable) {
      registered_.erase(gpu.uuid);
    } else {
      targets_.push_back({gpu.index, gpu.uuid});
    }
  }
  if (retry_) return notify_settled();
  if (making_set_ || registering_ != 0) return;  // they continue with targets_ when they finish
  set_ ? register_missing() : make_set();
}

void DriverEvents::make_set() {
  making_set_ = true;
  worker_.run_call<SetPtr>(
      {"making an event set", "events", deadline_},
      [session = session_]() -> Result<SetPtr> {
        auto held = session.lock();
        if (!held) return fail(session_closed());
        return nvml::EventSet::create_event_set(std::move(held));
      },
      [this, round = round_](Result<SetPtr> set) {
        if (round == round_) on_set(std::move(set));
      });
}

void DriverEvents::on_set(Result<SetPtr> set) {
  making_set_ = false;
  if (!set) {
    if (set.error().code() == Code::kUnsupported) {
      log::info("this driver has no events: GPUs are polled instead",
                {{"error", set.error().full_message()}});
      for (const auto& gpu : targets_) emit_source_status(gpu.uuid, set.error().full_message());
      notify_settled();
      return;
    }
    on_wait_failed(set.error());
    return;
  }
  set_ = std::move(*set);
  register_missing();
}

void DriverEvents::register_missing() {
  // Counted before the first call is queued: each result may be the last.
  std::vector<Target> missing;
  for (const auto& gpu : targets_) {
    if (!registered_.contains(gpu.uuid)) missing.push_back(gpu);
  }
  registering_ = missing.size();
  for (const auto& gpu : missing) register_one(gpu);
  if (missing.empty()) on_all_registered();
}

void DriverEvents::register_one(const Target& gpu) {
  worker_.run_call<EventRegistration>(
      {"registering events of GPU " + std::to_string(gpu.index), "gpu/" + std::to_string(gpu.index),
       deadline_},
      [session = session_, set = std::weak_ptr(set_), gpu]() -> Result<EventRegistration> {
        const auto held = session.lock();
        const auto target = set.lock();
        if (!held || !target) return fail(session_closed());
        GPULET_TRY_ASSIGN(const auto device, find_gpu_at(*held, gpu.index, gpu.uuid));
        GPULET_TRY_ASSIGN(const auto types, target->register_device(device, subscribed_event_types()));
        return EventRegistration{device, types};
      },
      [this, gpu, round = round_](const Result<EventRegistration>& registered) {
        if (round == round_) on_registered(gpu, registered);
      });
}

void DriverEvents::on_registered(const Target& gpu, const Result<EventRegistration>& answer) {
  registered_.insert(gpu.uuid);
  if (answer) {
    sources_[answer->device.raw] = gpu.uuid;
    const bool any = answer->types != 0;
    any_events_ = any_events_ || any;
    emit_source_status(gpu.uuid, any ? std::nullopt : std::optional<std::string>("this GPU has no events"));
  } else {
    emit_source_status(gpu.uuid, answer.error().full_message());
    log::warning("no events from this GPU: it is polled instead", answer.error(), {{"gpu", gpu.uuid.str()}});
  }
  if (--registering_ == 0) register_missing();  // there may be more by now
}

void DriverEvents::on_all_registered() {
  if (waiter_ || !any_events_) return notify_settled();
  auto waiter =
      nvml::EventWaiter::start_waiting(loop_, set_,
                                       {
                                           .event = [this](const nvml::Event& event) { on_event(event); },
                                           .started = [this] { on_wait_recovered(); },
                                           .ended = [this](const Error& error) { on_ended(error); },
                                       });
  if (!waiter) {
    on_wait_failed(waiter.error());
    return;
  }
  waiter_ = std::move(*waiter);
  notify_settled();
}

void DriverEvents::on_event(const nvml::Event& event) {
  const auto source = sources_.find(event.device.raw);
  if (source == sources_.end()) {
    if (handlers_.changed) handlers_.changed();
    return;
  }
  // A handler may end the wait, which invalidates `source`.
  const DeviceUuid gpu = source->second;
  if (event.type == nvml::kEventXid) {
    const health::XidReport report{.source = health::Source::kDriverEvents, .code = event.data};
    if (handlers_.evidence)
      handlers_.evidence({{gpu, event.gpu_instance, event.compute_instance}, loop_.now(), report});
    return;
  }
  const auto* notice = std::ranges::find(kNotices, event.type, &NoticeType::type);
  if (notice == std::end(kNotices)) return;
  emit_evidence(gpu, health::DriverNotice{notice->notice});
  if (notice->changes && handlers_.changed) handlers_.changed();
}

void DriverEvents::emit_evidence(const DeviceUuid& gpu, health::EvidenceBody body) const {
  if (handlers_.evidence) handlers_.evidence({{gpu}, loop_.now(), std::move(body)});
}

void DriverEvents::emit_source_status(const DeviceUuid& gpu, std::optional<std::string> absent) const {
  emit_evidence(gpu, health::SourceNotice{health::Source::kDriverEvents, std::move(absent)});
}

void DriverEvents::on_wait_recovered() {
  backoff_.reset();
  unload_reported_ = false;
  if (!std::exchange(failing_, false)) return;
  log::info("driver events are received again");
  if (handlers_.changed) handlers_.changed();  // events in between were missed
}

void DriverEvents::on_ended(const Error& error) {
  // The waiter's thread has released the driver; the rest must go too before it can be opened again.
  waiter_.reset();
  // A wait that fails again before it has ever returned is not evidence of another unload.
  if (error.code() == Code::kUnavailable && !std::exchange(unload_reported_, true)) {
    log::warning("the driver was unloaded", error);
    const auto settling = std::exchange(settled_callbacks_, {});
    stop_events();
    for (const auto& settled : settling) settled();
    if (handlers_.changed) handlers_.changed();
    return;
  }
  on_wait_failed(error);
}

void DriverEvents::on_wait_failed(const Error& error) {
  if (!failing_) {
    for (const auto& gpu : targets_) emit_source_status(gpu.uuid, error.full_message());
  }
  release_set();
  retry_ = loop_.after(backoff_.next_delay(), [this] {
    retry_.reset();
    make_set();
  });
  notify_settled();
  if (std::exchange(failing_, true)) return;
  log::warning("waiting for driver events fails; retrying", error);
  if (handlers_.wait_failed) handlers_.wait_failed(error);
}

}  // namespace gpulet::agent

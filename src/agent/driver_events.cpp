#include "agent/driver_events.h"

#include <algorithm>

#include "base/log.h"
#include "nvml/session.h"

namespace gpulet::agent {
namespace {

using health::Notice;

struct NoticeType {
  std::uint64_t type;
  Notice notice;
  bool changes;  // the GPU is not what it was: it is to be read anew
};
// Beside XIDs. Corrected errors are not among them: the counters tell of those.
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

constexpr std::uint64_t wanted_events() {
  std::uint64_t types = nvml::kEventXid;
  for (const auto& notice : kNotices) types |= notice.type;
  return types;
}
constexpr std::uint64_t kEventSeed = 20;

Error closed() { return {Code::kUnavailable, "the driver is being initialised anew"}; }

}  // namespace

DriverEvents::DriverEvents(Loop& loop, nvml::Worker& worker)
    : loop_(loop), worker_(worker), backoff_(kEventBackoff, kEventSeed) {}

DriverEvents::~DriverEvents() { stop(); }

void DriverEvents::stop() {
  ++round_;
  waiter_.reset();
  retry_.reset();
  release_set();
  session_.reset();
  wanted_.clear();
  registering_ = 0;
  making_set_ = false;
  settling_.clear();
}

void DriverEvents::settle() {
  for (const auto& settled : std::exchange(settling_, {})) settled();
}

void DriverEvents::release_set() {
  sources_.clear();
  registered_.clear();
  any_events_ = false;
  set_.reset();
}

void DriverEvents::watch(const std::shared_ptr<const nvml::Session>& session,
                         const std::vector<inventory::Gpu>& gpus, Duration deadline,
                         std::function<void()> settled) {
  session_ = session;
  settling_.push_back(std::move(settled));
  deadline_ = deadline;
  wanted_.clear();
  for (const auto& gpu : gpus) {
    if (gpu.unreadable) {
      registered_.erase(gpu.uuid);
    } else {
      wanted_.push_back({gpu.index, gpu.uuid});
    }
  }
  if (retry_) return settle();
  if (making_set_ || registering_ != 0) return;  // their end looks at what is wanted
  set_ ? register_missing() : make_set();
}

void DriverEvents::make_set() {
  making_set_ = true;
  worker_.run<SetPtr>(
      {"making an event set", "events", deadline_},
      [session = session_]() -> Result<SetPtr> {
        auto held = session.lock();
        if (!held) return fail(closed());
        return nvml::EventSet::create(std::move(held));
      },
      [this, round = round_](Result<SetPtr> set) {
        if (round == round_) on_set(std::move(set));
      });
}

void DriverEvents::on_set(Result<SetPtr> set) {
  making_set_ = false;
  if (!set) {
    if (set.error().code() == Code::kUnsupported) {
      log::info("this driver has no events: GPUs are only asked from time to time",
                {{"error", set.error().text()}});
      for (const auto& gpu : wanted_) tell_source(gpu.uuid, set.error().text());
      settle();
      return;
    }
    failed(set.error());
    return;
  }
  set_ = std::move(*set);
  register_missing();
}

void DriverEvents::register_missing() {
  // Counted before the first is handed over: each answer may be the last.
  std::vector<Wanted> missing;
  for (const auto& gpu : wanted_) {
    if (!registered_.contains(gpu.uuid)) missing.push_back(gpu);
  }
  registering_ = missing.size();
  for (const auto& gpu : missing) register_one(gpu);
  if (missing.empty()) on_all_registered();
}

void DriverEvents::register_one(const Wanted& gpu) {
  worker_.run<Registration>(
      {"registering events of GPU " + std::to_string(gpu.index), "gpu/" + std::to_string(gpu.index),
       deadline_},
      [session = session_, set = std::weak_ptr(set_), gpu]() -> Result<Registration> {
        const auto held = session.lock();
        const auto target = set.lock();
        if (!held || !target) return fail(closed());
        GPULET_TRY_ASSIGN(const auto device, held->device(gpu.index));
        GPULET_TRY_ASSIGN(const auto uuid, held->uuid(device));
        if (uuid != gpu.uuid)
          return fail(Code::kNotFound, "another GPU has come in its place", gpu.uuid.str());
        GPULET_TRY_ASSIGN(const auto types, target->add(device, wanted_events()));
        return Registration{device, types};
      },
      [this, gpu, round = round_](const Result<Registration>& registered) {
        if (round == round_) on_registered(gpu, registered);
      });
}

void DriverEvents::on_registered(const Wanted& gpu, const Result<Registration>& answer) {
  registered_.insert(gpu.uuid);
  if (answer) {
    sources_[answer->device.raw] = gpu.uuid;
    const bool any = answer->types != 0;
    any_events_ = any_events_ || any;
    tell_source(gpu.uuid, any ? std::nullopt : std::optional<std::string>("this GPU has no events"));
  } else {
    tell_source(gpu.uuid, answer.error().text());
    log::warning("no events from this GPU: it is only asked from time to time", answer.error(),
                 {{"gpu", gpu.uuid.str()}});
  }
  if (--registering_ == 0) register_missing();  // more may be wanted by now
}

void DriverEvents::on_all_registered() {
  if (waiter_ || !any_events_) return settle();
  auto waiter = nvml::EventWaiter::start(loop_, set_,
                                         {
                                             .event = [this](const nvml::Event& event) { on_event(event); },
                                             .works = [this] { on_works(); },
                                             .ended = [this](const Error& error) { on_ended(error); },
                                         });
  if (!waiter) {
    failed(waiter.error());
    return;
  }
  waiter_ = std::move(*waiter);
  settle();
}

void DriverEvents::on_event(const nvml::Event& event) {
  const auto source = sources_.find(event.device.raw);
  if (source == sources_.end()) {
    if (handlers_.changed) handlers_.changed();
    return;
  }
  // A handler may end the wait, and with it what `source` is in.
  const DeviceUuid gpu = source->second;
  if (event.type == nvml::kEventXid) {
    const health::XidReport report{.source = health::Source::kDriverEvents, .code = event.data};
    if (handlers_.evidence)
      handlers_.evidence({{gpu, event.gpu_instance, event.compute_instance}, loop_.now(), report});
    return;
  }
  const auto* notice = std::ranges::find(kNotices, event.type, &NoticeType::type);
  if (notice == std::end(kNotices)) return;
  tell(gpu, health::DriverNotice{notice->notice});
  if (notice->changes && handlers_.changed) handlers_.changed();
}

void DriverEvents::tell(const DeviceUuid& gpu, health::Body body) const {
  if (handlers_.evidence) handlers_.evidence({{gpu}, loop_.now(), std::move(body)});
}

void DriverEvents::tell_source(const DeviceUuid& gpu, std::optional<std::string> absent) const {
  tell(gpu, health::SourceNotice{health::Source::kDriverEvents, std::move(absent)});
}

void DriverEvents::on_works() {
  backoff_.reset();
  if (!std::exchange(failing_, false)) return;
  log::info("driver events come again");
  if (handlers_.changed) handlers_.changed();  // what came meanwhile was missed
}

void DriverEvents::on_ended(const Error& error) {
  // The waiter's thread has let go already; what is left here must go too before the driver can be opened
  // anew.
  waiter_.reset();
  if (error.code() == Code::kUnavailable) {
    log::warning("the driver has gone", error);
    const auto settling = std::exchange(settling_, {});
    stop();
    for (const auto& settled : settling) settled();
    if (handlers_.changed) handlers_.changed();
    return;
  }
  failed(error);
}

void DriverEvents::failed(const Error& error) {
  if (!failing_) {
    for (const auto& gpu : wanted_) tell_source(gpu.uuid, error.text());
  }
  release_set();
  retry_ = loop_.after(backoff_.next(), [this] {
    retry_.reset();
    make_set();
  });
  settle();
  if (std::exchange(failing_, true)) return;
  log::warning("the wait for driver events fails and is tried again", error);
  if (handlers_.wait_failed) handlers_.wait_failed(error);
}

}  // namespace gpulet::agent

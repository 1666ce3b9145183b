#include "agent/mig/mig_change.h"

#include <algorithm>

#include "base/log.h"
#include "base/text.h"
#include "health/report/health_report.h"
#include "mig/apply.h"

namespace gpulet::agent {
namespace {

using Severity = Reporter::Severity;
using Kind = k8s::EvictionUpdate::Kind;

constexpr std::string_view kPod = "Pod ", kOn = ", on ";

// "Pod default/train" and "1g.10gb at 5" of "Pod default/train, on 1g.10gb at 5".
std::pair<std::string, std::string> parse_blocker(const std::string& blocker) {
  const auto at = blocker.rfind(kOn);
  if (at == std::string::npos) return {blocker, ""};
  return {blocker.substr(0, at), blocker.substr(at + kOn.size())};
}

}  // namespace

std::vector<std::string> blocking_pods(const mig::Plan& plan, const mig::PodsByDevice& pods) {
  std::set<std::string> known, names;
  for (const auto& [device, pod] : pods) known.insert(pod);
  for (const auto& blocker : plan.blocked_by) {
    const std::string who = parse_blocker(blocker).first;
    if (who.starts_with(kPod) && known.contains(who.substr(kPod.size())))
      names.insert(who.substr(kPod.size()));
  }
  return {names.begin(), names.end()};
}

bool can_drain(const mig::Plan& plan) {
  std::map<std::string, bool> held_by_pod;
  for (const auto& blocker : plan.blocked_by) {
    const auto [who, where] = parse_blocker(blocker);
    auto& pod = held_by_pod[where];
    pod = pod || who.starts_with(kPod);
  }
  return std::ranges::all_of(held_by_pod, [](const auto& entry) { return entry.second; });
}

MigDrain::MigDrain(const MigPorts& ports, std::string gpu, std::string reason, ReportEvent report)
    : ports_(ports),
      gpu_(std::move(gpu)),
      reason_(std::move(reason)),
      report_(std::move(report)),
      deadline_(ports.loop.now() + kMigDrainLimit) {}

std::optional<std::string> MigDrain::advance_drain(const std::vector<std::string>& pods) {
  const Time now = ports_.loop.now();
  std::vector<std::string> fresh;
  for (const auto& pod : pods) {
    if (!requested_.contains(pod)) fresh.push_back(pod);
  }
  if (!fresh.empty() && !failure_) evict_pods(std::move(fresh));
  if (failure_) return failure_;
  if (!pods.empty()) {
    empty_since_.reset();
  } else if (!empty_since_) {
    empty_since_ = now;
  }
  if (empty_since_ && now - *empty_since_ >= kMigProcessGrace) {
    return "its Pods are gone; processes outside Pods are not touched";
  }
  if (now < deadline_) return std::nullopt;
  std::string late =
      "drained for " +
      std::to_string(std::chrono::duration_cast<std::chrono::minutes>(kMigDrainLimit).count()) +
      " minutes, and not gone: " + (pods.empty() ? "processes" : text::join(pods, ", "));
  for (const auto& pod : pods) {
    if (const auto waiting = waiting_.find(pod); waiting != waiting_.end())
      late += "; " + pod + ": " + waiting->second;
  }
  return late;
}

void MigDrain::evict_pods(std::vector<std::string> pods) {
  requested_.insert(pods.begin(), pods.end());
  const std::string names = text::join(pods, ", ");
  auto eviction =
      ports_.evict ? ports_.evict(std::move(pods), [this](const auto& update) { on_eviction_event(update); })
                   : nullptr;
  if (!eviction) {
    failure_ = "no API server is configured to evict " + names;
    return;
  }
  evictions_.push_back(std::move(eviction));
  report_(Severity::kNormal, "MigDraining", gpu_ + ": evicting " + names + " (" + reason_ + ")");
}

void MigDrain::on_eviction_event(const k8s::EvictionUpdate& update) {
  waiting_.erase(update.pod);
  if (update.kind == Kind::kRefused) failure_ = "Pod " + update.pod + " cannot be evicted: " + update.reason;
  if (update.kind != Kind::kWaiting) return;
  waiting_[update.pod] = update.reason;
  report_(Severity::kWarning, "MigDrainWaits",
          gpu_ + ": Pod " + update.pod + " is not evicted yet: " + update.reason + "; tried again");
}

namespace {

using Severity = Reporter::Severity;
using mig::HookPoint;

// Which hooks a plan needs. A blocked plan has no steps: compare the present with the target.
bool changes_mode(const mig::Plan& plan, const mig::State& state, const mig::Layout& layout) {
  return plan.is_blocked() ? state.pending.value_or(state.enabled) != layout.enabled
                           : plan.set_mode.has_value();
}
bool changes_instances(const mig::Plan& plan, const mig::State& state, const mig::Layout& layout) {
  if (plan.is_blocked()) return !layout.devices.empty() || !state.instances.empty();
  return !plan.destroy_compute.empty() || !plan.destroy.empty() || !plan.create_compute.empty() ||
         !plan.create.empty();
}

}  // namespace

MigChange::MigChange(const MigRound& round, MigJob job, inventory::SnapshotPtr snapshot,
                     std::function<void(Outcome)> done)
    : round_(round),
      ports_(round.ports),
      job_(std::move(job)),
      snapshot_(std::move(snapshot)),
      done_(std::move(done)) {}

void MigChange::on_new_snapshot(const inventory::SnapshotPtr& snapshot) {
  snapshot_ = snapshot;
  if (expected_state_ && is_verified()) finish_change(outcome_);
}

void MigChange::read_pods() {
  timer_.reset();
  ports_.pods([this, alive = lifetime_.watch()](Result<mig::PodsByDevice> pods) {
    if (alive) on_pods(std::move(pods));
  });
}

// A device that was allocated a moment ago has no holder in the kubelet's List yet. Nobody asked for the
// layout of a GPU on demand by name, so it waits.
bool MigChange::lacks_allocations() const {
  return job_.target.on_demand && ports_.shows_allocations && !ports_.shows_allocations();
}

void MigChange::on_pods(Result<mig::PodsByDevice> pods) {
  const auto& gpu = job_.target.gpu;
  if (!pods) {
    round_.report(Severity::kWarning, "MigBlocked",
                  "GPU " + gpu.str() +
                      ": cannot determine which Pods hold its devices: " + pods.error().full_message());
    return finish_change(Outcome::kWaiting);
  }
  if (lacks_allocations()) return finish_change(Outcome::kWaiting);
  ports_.hardware.read_mig_state(
      gpu, [this, pods = std::move(*pods), alive = lifetime_.watch()](Result<mig::State> state) {
        if (alive) on_state(pods, std::move(state));
      });
}

void MigChange::on_state(const mig::PodsByDevice& pods, Result<mig::State> state) {
  if (round_.is_cancelled() || lacks_allocations()) return finish_change(Outcome::kWaiting);
  if (state) mig::add_pod_holders(*state, pods);
  const auto plan = state ? mig::make_plan(*state, job_.layout) : Result<mig::Plan>(fail(state.error()));
  if (!plan) {
    round_.report(Severity::kWarning, "MigFailed", job_.target.source + ": " + plan.error().full_message());
    return finish_change(Outcome::kFailed);
  }
  if (plan->is_noop()) return finish_change(Outcome::kDone);
  if (plan->is_blocked()) return on_blocked(*plan, pods, *state);
  drain_.reset();
  proceed(*plan, *state);
}

bool MigChange::hooks_have_run() const { return ports_.hooks != nullptr && ports_.hooks->are_configured(); }

bool MigChange::should_drain(const mig::Plan& plan) const {
  if (job_.target.on_demand) return false;
  if (!ports_.is_drain_enabled || !ports_.is_drain_enabled() || !can_drain(plan)) return false;
  const auto before = round_.history.drains.find(job_.target.gpu);
  return before == round_.history.drains.end() || ports_.loop.now() >= before->second.not_before;
}

void MigChange::on_blocked(const mig::Plan& plan, const mig::PodsByDevice& pods, const mig::State& state) {
  const auto in_the_way = blocking_pods(plan, pods);
  auto& in_vain = round_.history.ineffective_hooks;
  const bool hooks_may_do = in_the_way.empty() && hooks_have_run() && !in_vain.contains(job_.target.gpu);
  const bool to_drain = !in_the_way.empty() && stage_ != Stage::kHooked && (drain_ || should_drain(plan));
  if (stage_ == Stage::kAllocatable && to_drain && !job_.may_drain)
    return finish_change(Outcome::kDrainLater);
  if (stage_ == Stage::kAllocatable && (hooks_may_do || to_drain)) return begin_touching(hooks_have_run());
  if (stage_ == Stage::kWithdrawn && hooks_may_do) {
    return run_hooks(changes_mode(plan, state, job_.layout), changes_instances(plan, state, job_.layout));
  }
  if (drain_ || to_drain) return drain_gpu(plan, in_the_way);
  if (stage_ == Stage::kHooked && in_the_way.empty()) in_vain.insert(job_.target.gpu);
  round_.report(Severity::kWarning, "MigBlocked",
                text::join(mig::describe_plan(plan), "; ") + " (" + job_.target.source + ")");
  finish_change(Outcome::kWaiting);
}

void MigChange::drain_gpu(const mig::Plan& plan, const std::vector<std::string>& pods) {
  if (!drain_) drain_.emplace(ports_, "GPU " + std::to_string(plan.gpu), job_.target.source, round_.report);
  const auto useless = drain_->advance_drain(pods);
  if (!useless) {
    timer_ = ports_.loop.after(kMigDrainPoll, [this] { read_pods(); });
    return;
  }
  auto& drains = round_.history.drains;
  auto& before =
      drains.try_emplace(job_.target.gpu, Backoff(kMigDrainBackoff, round_.seed), Time()).first->second;
  before.not_before = ports_.loop.now() + before.backoff.next_delay();
  round_.report(
      Severity::kWarning, "MigBlocked",
      text::join(mig::describe_plan(plan), "; ") + "; " + *useless + " (" + job_.target.source + ")");
  finish_change(Outcome::kWaiting);
}

void MigChange::proceed(const mig::Plan& plan, const mig::State& state) {
  const bool with_hooks = hooks_have_run();
  if (stage_ == Stage::kAllocatable) return begin_touching(with_hooks);
  if (stage_ == Stage::kWithdrawn && with_hooks) {
    return run_hooks(changes_mode(plan, state, job_.layout), changes_instances(plan, state, job_.layout));
  }
  apply_plan(plan);
}

void MigChange::begin_touching(bool with_hooks) {
  if (!with_hooks) return withdraw_gpu();
  round_.begin([this, alive = lifetime_.watch()](const Status& status) {
    if (!alive) return;
    status ? withdraw_gpu() : finish_change(Outcome::kFailed);
  });
}

void MigChange::withdraw_gpu() {
  stage_ = Stage::kWithdrawn;
  const std::string why = "is being reconfigured to " + mig::layout_text(job_.layout);
  ports_.withdraw({{job_.target.gpu, why}});
  timer_ = ports_.loop.after(kMigSettleTime, [this] { read_pods(); });
}

// The next plan sees the remaining holders.
void MigChange::run_hooks(bool mode, bool instances) {
  stage_ = Stage::kHooked;
  if (!mode && !instances) return read_pods();
  const auto point = mode ? HookPoint::kPreApplyMode : HookPoint::kPreApplyConfig;
  ports_.hooks->run_hooks(point, {{job_.target.gpu}, job_.target.layout},
                          [this, more = mode && instances, alive = lifetime_.watch()](const Status& status) {
                            if (alive) on_hook(status, more);
                          });
}

void MigChange::on_hook(const Status& status, bool more) {
  if (status) return run_hooks(false, more);
  round_.report(Severity::kWarning, "MigHookFailed",
                status.error().full_message() + "; GPU " + job_.target.gpu.str() + " was not changed (" +
                    job_.target.source + ")");
  finish_change(Outcome::kFailed);
}

void MigChange::apply_plan(const mig::Plan& plan) {
  log::info("changing MIG",
            {{"plan", text::join(mig::describe_plan(plan), "; ")}, {"source", job_.target.source}});
  ports_.hardware.apply_mig_plan(job_.target.gpu, plan,
                                 [this, plan, alive = lifetime_.watch()](const Result<MigApplied>& applied) {
                                   if (alive) on_applied(plan, applied);
                                 });
}

void MigChange::on_applied(const mig::Plan& plan, const Result<MigApplied>& applied) {
  const std::string steps = text::join(mig::describe_plan(plan), "; ");
  if (!applied) {
    outcome_ = Outcome::kFailed;
    const std::string message =
        steps + ": " + applied.error().full_message() + " (" + job_.target.source + ")";
    round_.report(Severity::kWarning, "MigFailed", message);
    if (plan.set_mode && applied.error().code() == Code::kFailedPrecondition)
      refuse_mode({.in_use = true}, "MigFailed", message);
  } else if (applied->needs_reset) {
    const std::string gpu = std::to_string(plan.gpu);
    std::string message = "GPU " + gpu + ": its MIG mode is pending: ";
    message += applied->in_use ? mig::pending_mode_reason(true, applied->holders) +
                                     "; it takes effect when nothing holds the GPU any more"
                               : "it takes effect after a reset of the GPU: `" + health::reset_command(gpu) +
                                     "`, or a reboot";
    message += " (" + job_.target.source + ")";
    round_.report(Severity::kWarning, "MigNeedsReset", message);
    refuse_mode(*applied, "MigNeedsReset", message);
  } else {
    round_.history.refused_modes.erase(job_.target.gpu);
    ports_.reporter.report_event(Severity::kNormal, "MigApplied", steps + " (" + job_.target.source + ")");
  }
  await_verification();
}

void MigChange::refuse_mode(const MigApplied& applied, std::string_view event_reason,
                            const std::string& message) {
  outcome_ = Outcome::kModeRefused;
  auto& refused = round_.history.refused_modes
                      .try_emplace(job_.target.gpu,
                                   MigHistory::RefusedMode{.backoff = Backoff(kMigModeBackoff, round_.seed)})
                      .first->second;
  const Duration delay = std::max(refused.backoff.next_delay(),
                                  applied.holders.empty() ? Duration::zero() : kMigSeenHolderRetry);
  refused.not_before = applied.in_use ? ports_.loop.now() + delay : Time::max();
  refused.is_due = false;
  refused.pending = applied.needs_reset;
  refused.holders = applied.holders;
  refused.event_reason = event_reason;
  refused.message = message;
}

// Withdrawn until a snapshot shows the new layout, so that the kubelet is offered what exists.
void MigChange::await_verification() {
  ports_.hardware.read_mig_state(
      job_.target.gpu, [this, alive = lifetime_.watch()](Result<mig::State> state) {
        if (!alive) return;
        if (!state) return finish_change(outcome_);
        expected_state_ = std::move(*state);
        if (is_verified()) return finish_change(outcome_);
        timer_ = ports_.loop.after(kMigVerifyTimeout, [this] { finish_change(outcome_); });
        ports_.request_snapshot();
      });
}

bool MigChange::is_verified() const {
  const auto* gpu = snapshot_->find(expected_state_->uuid);
  if (gpu == nullptr) return true;
  std::set<std::string> made, read;
  for (const auto& instance : expected_state_->instances) {
    for (const auto& compute : instance.compute) made.insert(compute.uuid.str());
  }
  for (const auto& device : gpu->mig_devices) read.insert(device.uuid.str());
  return gpu->mig_enabled == expected_state_->enabled && made == read;
}

void MigChange::finish_change(Outcome outcome) {
  expected_state_.reset();
  drain_.reset();
  if (stage_ != Stage::kAllocatable) ports_.withdraw({});
  // Not from inside the call: the caller may be on_new_snapshot() or an eviction.
  timer_ = ports_.loop.after(Duration::zero(), [this, outcome] {
    const auto done = std::move(done_);
    done(outcome);
  });
}

}  // namespace gpulet::agent

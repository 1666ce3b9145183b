#include "agent/mig_change.h"

#include <algorithm>

#include "base/log.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

using Severity = Reporter::Severity;
using mig::HookPoint;

// Which hooks a plan calls for. One that is blocked has no steps: then by what is there and what is wanted.
bool changes_mode(const mig::Plan& plan, const mig::State& state, const mig::Layout& layout) {
  return plan.blocked() ? state.pending.value_or(state.enabled) != layout.enabled : plan.set_mode.has_value();
}
bool changes_instances(const mig::Plan& plan, const mig::State& state, const mig::Layout& layout) {
  if (plan.blocked()) return !layout.devices.empty() || !state.instances.empty();
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

void MigChange::on_snapshot(const inventory::SnapshotPtr& snapshot) {
  snapshot_ = snapshot;
  if (wanted_shown_ && shown()) end(outcome_);
}

void MigChange::look() {
  timer_.reset();
  ports_.pods([this, alive = std::weak_ptr(alive_)](Result<mig::Pods> pods) {
    if (!alive.expired()) on_pods(std::move(pods));
  });
}

void MigChange::on_pods(Result<mig::Pods> pods) {
  const auto& gpu = job_.wish.gpu;
  if (!pods) {
    round_.report(Severity::kWarning, "MigBlocked",
                  "GPU " + gpu.str() + ": who holds its devices is not known: " + pods.error().text());
    return end(Outcome::kWaiting);
  }
  ports_.hardware.read(
      gpu, [this, pods = std::move(*pods), alive = std::weak_ptr(alive_)](Result<mig::State> state) {
        if (!alive.expired()) on_state(pods, std::move(state));
      });
}

void MigChange::on_state(const mig::Pods& pods, Result<mig::State> state) {
  if (round_.given_up()) return end(Outcome::kWaiting);
  if (state) mig::add_pods(*state, pods);
  const auto plan = state ? mig::plan(*state, job_.layout) : Result<mig::Plan>(fail(state.error()));
  if (!plan) {
    round_.report(Severity::kWarning, "MigFailed", job_.wish.source + ": " + plan.error().text());
    return end(Outcome::kFailed);
  }
  if (plan->nothing_to_do()) return end(Outcome::kDone);
  if (plan->blocked()) return on_blocked(*plan, pods, *state);
  drain_.reset();
  go_on(*plan, *state);
}

bool MigChange::hooked() const { return ports_.hooks != nullptr && ports_.hooks->any(); }

bool MigChange::drains(const mig::Plan& plan) const {
  if (!ports_.drains || !ports_.drains() || !drain_would_do(plan)) return false;
  const auto before = round_.memory.drains.find(job_.wish.gpu);
  return before == round_.memory.drains.end() || ports_.loop.now() >= before->second.not_before;
}

void MigChange::on_blocked(const mig::Plan& plan, const mig::Pods& pods, const mig::State& state) {
  const auto in_the_way = pods_in_the_way(plan, pods);
  auto& in_vain = round_.memory.hooks_in_vain;
  const bool hooks_may_do = in_the_way.empty() && hooked() && !in_vain.contains(job_.wish.gpu);
  const bool to_drain = !in_the_way.empty() && stage_ != Stage::kHooked && (drain_ || drains(plan));
  if (stage_ == Stage::kOffered && to_drain && !job_.may_drain) return end(Outcome::kDrainLater);
  if (stage_ == Stage::kOffered && (hooks_may_do || to_drain)) return touch(hooked());
  if (stage_ == Stage::kWithdrawn && hooks_may_do) {
    return run_hooks(changes_mode(plan, state, job_.layout), changes_instances(plan, state, job_.layout));
  }
  if (drain_ || to_drain) return drain(plan, in_the_way);
  if (stage_ == Stage::kHooked && in_the_way.empty()) in_vain.insert(job_.wish.gpu);
  round_.report(Severity::kWarning, "MigBlocked",
                text::join(mig::describe(plan), "; ") + " (" + job_.wish.source + ")");
  end(Outcome::kWaiting);
}

void MigChange::drain(const mig::Plan& plan, const std::vector<std::string>& pods) {
  if (!drain_) drain_.emplace(ports_, "GPU " + std::to_string(plan.gpu), job_.wish.source, round_.report);
  const auto useless = drain_->step(pods);
  if (!useless) {
    timer_ = ports_.loop.after(kMigDrainPoll, [this] { look(); });
    return;
  }
  auto& drains = round_.memory.drains;
  auto& before =
      drains.try_emplace(job_.wish.gpu, Backoff(kMigDrainBackoff, round_.seed), Time()).first->second;
  before.not_before = ports_.loop.now() + before.backoff.next();
  round_.report(Severity::kWarning, "MigBlocked",
                text::join(mig::describe(plan), "; ") + "; " + *useless + " (" + job_.wish.source + ")");
  end(Outcome::kWaiting);
}

void MigChange::go_on(const mig::Plan& plan, const mig::State& state) {
  // What waits for a reset had its hooks when the mode was set.
  const bool with_hooks = hooked() && !plan.needs_reset;
  if (stage_ == Stage::kOffered) return touch(with_hooks);
  if (stage_ == Stage::kWithdrawn && with_hooks) {
    return run_hooks(changes_mode(plan, state, job_.layout), changes_instances(plan, state, job_.layout));
  }
  apply(plan);
}

void MigChange::touch(bool with_hooks) {
  if (!with_hooks) return withdraw();
  round_.begin([this, alive = std::weak_ptr(alive_)](const Status& status) {
    if (alive.expired()) return;
    status ? withdraw() : end(Outcome::kFailed);
  });
}

void MigChange::withdraw() {
  stage_ = Stage::kWithdrawn;
  const std::string why = "is being made " + mig::describe(job_.layout);
  ports_.withdraw({{job_.wish.gpu, why}});
  timer_ = ports_.loop.after(kMigSettle, [this] { look(); });
}

// The look that follows sees who is left.
void MigChange::run_hooks(bool mode, bool instances) {
  stage_ = Stage::kHooked;
  if (!mode && !instances) return look();
  const auto point = mode ? HookPoint::kPreApplyMode : HookPoint::kPreApplyConfig;
  ports_.hooks->run(point, {{job_.wish.gpu}, job_.wish.layout},
                    [this, more = mode && instances, alive = std::weak_ptr(alive_)](const Status& status) {
                      if (!alive.expired()) on_hook(status, more);
                    });
}

void MigChange::on_hook(const Status& status, bool more) {
  if (status) return run_hooks(false, more);
  round_.report(
      Severity::kWarning, "MigHookFailed",
      status.error().text() + "; GPU " + job_.wish.gpu.str() + " was not changed (" + job_.wish.source + ")");
  end(Outcome::kFailed);
}

void MigChange::apply(const mig::Plan& plan) {
  log::info("changing MIG", {{"plan", text::join(mig::describe(plan), "; ")}, {"source", job_.wish.source}});
  ports_.hardware.apply(job_.wish.gpu, plan,
                        [this, plan, alive = std::weak_ptr(alive_)](const Result<MigApplied>& applied) {
                          if (!alive.expired()) on_applied(plan, applied);
                        });
}

void MigChange::on_applied(const mig::Plan& plan, const Result<MigApplied>& applied) {
  const std::string steps = text::join(mig::describe(plan), "; ");
  if (!applied) {
    outcome_ = Outcome::kFailed;
    round_.report(Severity::kWarning, "MigFailed",
                  steps + ": " + applied.error().text() + " (" + job_.wish.source + ")");
  } else if (applied->needs_reset) {
    outcome_ = Outcome::kWaiting;
    const std::string gpu = std::to_string(plan.gpu);
    round_.report(Severity::kWarning, "MigNeedsReset",
                  "GPU " + gpu +
                      ": its MIG mode is set and waits for a reset of the GPU: `nvidia-smi --gpu-reset -i " +
                      gpu + "`, or a reboot");
  } else {
    ports_.reporter.event(Severity::kNormal, "MigApplied", steps + " (" + job_.wish.source + ")");
  }
  await_shown();
}

// It stays withdrawn until the agent's own reading has what was made: what the kubelet is offered next is the
// truth.
void MigChange::await_shown() {
  ports_.hardware.read(job_.wish.gpu, [this, alive = std::weak_ptr(alive_)](Result<mig::State> state) {
    if (alive.expired()) return;
    if (!state) return end(outcome_);
    wanted_shown_ = std::move(*state);
    if (shown()) return end(outcome_);
    timer_ = ports_.loop.after(kMigShown, [this] { end(outcome_); });
    ports_.read_again();
  });
}

bool MigChange::shown() const {
  const auto* gpu = snapshot_->find(wanted_shown_->uuid);
  if (gpu == nullptr) return true;
  std::set<std::string> made, read;
  for (const auto& instance : wanted_shown_->instances) {
    for (const auto& compute : instance.compute) made.insert(compute.uuid.str());
  }
  for (const auto& device : gpu->mig_devices) read.insert(device.uuid.str());
  return gpu->mig_enabled == wanted_shown_->enabled && made == read;
}

void MigChange::end(Outcome outcome) {
  wanted_shown_.reset();
  drain_.reset();
  if (stage_ != Stage::kOffered) ports_.withdraw({});
  // Not from inside: on_snapshot() or an eviction's news may be who called.
  timer_ = ports_.loop.after(Duration::zero(), [this, outcome] {
    const auto done = std::move(done_);
    done(outcome);
  });
}

}  // namespace gpulet::agent

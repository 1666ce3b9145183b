#include "agent/mig_manager.h"

#include <algorithm>

#include "base/log.h"
#include "mig/holders.h"

namespace gpulet::agent {
namespace {

using Severity = Reporter::Severity;

// What a round is about: the wishes, and what is on the GPUs that they name.
std::string subject_of(const std::vector<MigWish>& wishes, const inventory::Snapshot& snapshot) {
  std::string subject;
  for (const auto& wish : wishes) {
    subject += wish.gpu.str() + "=" + (wish.exact ? mig::describe(*wish.exact) : wish.layout) + " " +
               wish.source + "|";
    const auto* gpu = snapshot.find(wish.gpu);
    if (gpu == nullptr) continue;
    subject += gpu->mig_enabled ? "on" : "off";
    if (gpu->mig_pending) subject += *gpu->mig_pending ? ">on" : ">off";
    for (const auto& device : gpu->mig_devices) {
      subject += " " + device.profile + "@" + std::to_string(device.placement_start);
    }
    subject += "\n";
  }
  return subject;
}

std::string joined(const std::vector<std::string>& lines, const char* between) {
  std::string text;
  for (const auto& line : lines) text += (text.empty() ? "" : between) + line;
  return text;
}

}  // namespace

MigManager::MigManager(MigPorts ports, std::uint64_t seed)
    : ports_(std::move(ports)), backoff_(kMigBackoff, seed) {}

void MigManager::update(std::vector<MigWish> wishes, const inventory::SnapshotPtr& snapshot) {
  snapshot_ = snapshot;
  const bool other_wishes = wishes != wishes_;
  wishes_ = std::move(wishes);
  if (!snapshot_) return;
  if (busy_) {
    if (other_wishes) again_ = true;
    if (wanted_shown_ && shown()) end_job();
    return;
  }
  if (subject_of(wishes_, *snapshot_) == done_for_) return;
  if (other_wishes) backoff_.reset();
  if (other_wishes || !timer_) start_round();
}

void MigManager::start_round() {
  timer_.reset();
  busy_ = true;
  again_ = refused_ = failed_ = waiting_ = false;
  from_label_ = std::ranges::any_of(wishes_, &MigWish::from_label);
  read_.clear();
  jobs_.clear();
  telling_.clear();
  read_next(0);
}

void MigManager::read_next(std::size_t next) {
  while (next < wishes_.size() &&
         (snapshot_->find(wishes_[next].gpu) == nullptr || snapshot_->find(wishes_[next].gpu)->unreadable)) {
    ++next;
  }
  if (next == wishes_.size()) return judge_round();
  const auto wish = wishes_[next];
  ports_.hardware.read(wish.gpu, [this, wish, next, alive = std::weak_ptr(alive_)](Result<mig::State> state) {
    if (alive.expired()) return;
    // The wishes may be others by now: the round goes on with those it has read, and another follows.
    if (again_) return end_round();
    if (state) {
      read_.emplace_back(wish, std::move(*state));
    } else {
      waiting_ = true;
      report(Severity::kWarning, "MigFailed", "GPU " + wish.gpu.str() + ": " + state.error().text());
    }
    read_next(next + 1);
  });
}

// All is judged before anything is touched: one GPU for which a layout is impossible refuses it for the
// others that the same source names.
void MigManager::judge_round() {
  const auto same = [](const auto& a, const auto& b) {
    return a.first.source == b.first.source && a.first.layout == b.first.layout;
  };
  for (auto from = read_.begin(); from != read_.end();) {
    auto to = from;
    while (to != read_.end() && same(*from, *to)) ++to;
    judge({from, to});
    from = to;
  }
  read_.clear();
  if (!jobs_.empty() && from_label_) ports_.tell_state(kMigPending);
  next_job();
}

void MigManager::judge(std::span<const std::pair<MigWish, mig::State>> alike) {
  std::vector<mig::State> states;
  for (const auto& [wish, state] : alike) states.push_back(state);
  const auto& first = alike.front().first;
  auto layouts = first.exact ? Result<std::vector<std::optional<mig::Layout>>>(
                                   std::vector<std::optional<mig::Layout>>(states.size(), first.exact))
                             : ports_.layouts(first.layout, states);
  std::vector<Job> jobs;
  std::vector<Error> errors;
  if (!layouts) errors.push_back(layouts.error());
  for (std::size_t i = 0; layouts && i < states.size(); ++i) {
    const auto& layout = (*layouts)[i];
    if (!layout) continue;
    const auto plan = mig::plan(states[i], *layout);
    if (!plan) {
      errors.push_back(plan.error());
    } else if (!plan->nothing_to_do()) {
      jobs.push_back({alike[i].first, *layout});
    }
  }
  for (const auto& error : errors) {
    refused_ = true;
    report(Severity::kWarning, "MigRefused", first.source + ": " + error.text() + "; nothing was changed");
  }
  if (errors.empty()) std::ranges::move(jobs, std::back_inserter(jobs_));
}

void MigManager::next_job() {
  if (jobs_.empty() || again_) return end_round();
  look(false);
}

// Twice for each GPU: as it is offered, so that one that is blocked is not withdrawn for nothing, and
// withdrawn, so that nobody can take what was free.
void MigManager::look(bool withdrawn) {
  ports_.pods([this, withdrawn, alive = std::weak_ptr(alive_)](Result<Holders> holders) {
    if (!alive.expired()) on_holders(withdrawn, std::move(holders));
  });
}

void MigManager::on_holders(bool withdrawn, Result<Holders> holders) {
  const auto& gpu = jobs_.front().wish.gpu;
  if (!holders) {
    waiting_ = true;
    report(Severity::kWarning, "MigBlocked",
           "GPU " + gpu.str() + ": who holds its devices is not known: " + holders.error().text());
    return end_job();
  }
  ports_.hardware.read(gpu, [this, withdrawn, holders = std::move(*holders),
                             alive = std::weak_ptr(alive_)](Result<mig::State> state) {
    if (!alive.expired()) on_state(withdrawn, holders, std::move(state));
  });
}

void MigManager::on_state(bool withdrawn, const Holders& holders, Result<mig::State> state) {
  const auto& job = jobs_.front();
  if (state) mig::add_pods(*state, holders);
  const auto plan = state ? mig::plan(*state, job.layout) : Result<mig::Plan>(fail(state.error()));
  if (!plan) {
    failed_ = true;
    report(Severity::kWarning, "MigFailed", job.wish.source + ": " + plan.error().text());
    return end_job();
  }
  if (plan->nothing_to_do()) return end_job();
  if (plan->blocked()) {
    waiting_ = true;
    report(Severity::kWarning, "MigBlocked",
           joined(mig::describe(*plan), "; ") + " (" + job.wish.source + ")");
    return end_job();
  }
  if (withdrawn) return apply(*plan);
  const std::string why = "is being made " + mig::describe(job.layout);
  ports_.withdraw({{job.wish.gpu, why}});
  timer_ = ports_.loop.after(kMigSettle, [this] { look(true); });
}

void MigManager::apply(const mig::Plan& plan) {
  log::info("changing MIG",
            {{"plan", joined(mig::describe(plan), "; ")}, {"source", jobs_.front().wish.source}});
  ports_.hardware.apply(jobs_.front().wish.gpu, plan,
                        [this, plan, alive = std::weak_ptr(alive_)](Result<MigApplied> applied) {
                          if (!alive.expired()) on_applied(plan, applied);
                        });
}

void MigManager::on_applied(const mig::Plan& plan, const Result<MigApplied>& applied) {
  const auto& job = jobs_.front();
  const std::string steps = joined(mig::describe(plan), "; ");
  if (!applied) {
    failed_ = true;
    report(Severity::kWarning, "MigFailed",
           steps + ": " + applied.error().text() + " (" + job.wish.source + ")");
  } else if (applied->needs_reset) {
    waiting_ = true;
    report(Severity::kWarning, "MigNeedsReset",
           "GPU " + std::to_string(plan.gpu) +
               ": its MIG mode is set and waits for a reset of the GPU: `nvidia-smi --gpu-reset -i " +
               std::to_string(plan.gpu) + "`, or a reboot");
  } else {
    ports_.reporter.event(Severity::kNormal, "MigApplied", steps + " (" + job.wish.source + ")");
  }
  await_shown();
}

// It stays withdrawn until the agent's own reading has what was made: what the kubelet is offered next is the
// truth.
void MigManager::await_shown() {
  ports_.hardware.read(jobs_.front().wish.gpu,
                       [this, alive = std::weak_ptr(alive_)](Result<mig::State> state) {
                         if (alive.expired()) return;
                         if (!state) return end_job();
                         wanted_shown_ = std::move(*state);
                         if (shown()) return end_job();
                         timer_ = ports_.loop.after(kMigShown, [this] { end_job(); });
                         ports_.read_again();
                       });
}

bool MigManager::shown() const {
  const auto* gpu = snapshot_->find(wanted_shown_->uuid);
  if (gpu == nullptr) return true;
  std::set<std::string> made, read;
  for (const auto& instance : wanted_shown_->instances) {
    for (const auto& compute : instance.compute) made.insert(compute.uuid.str());
  }
  for (const auto& device : gpu->mig_devices) read.insert(device.uuid.str());
  return gpu->mig_enabled == wanted_shown_->enabled && made == read;
}

void MigManager::end_job() {
  timer_.reset();
  wanted_shown_.reset();
  ports_.withdraw({});
  jobs_.erase(jobs_.begin());
  // Not from inside: update() may be who called.
  timer_ = ports_.loop.after(Duration::zero(), [this] { next_job(); });
}

void MigManager::end_round() {
  timer_.reset();
  jobs_.clear();
  busy_ = false;
  told_ = std::move(telling_);
  if (again_) return start_round();
  done_for_ = subject_of(wishes_, *snapshot_);
  if (from_label_) {
    ports_.tell_state(refused_ || failed_ ? kMigFailed : waiting_ ? kMigPending : kMigSuccess);
  }
  if (failed_ || waiting_) {
    timer_ = ports_.loop.after(backoff_.next(), [this] { start_round(); });
  } else {
    backoff_.reset();
  }
}

void MigManager::report(Severity severity, std::string_view reason, const std::string& message) {
  if (!told_.contains(message) && !telling_.contains(message))
    ports_.reporter.event(severity, reason, message);
  telling_.insert(message);
}

}  // namespace gpulet::agent

#include "agent/mig_manager.h"

#include <algorithm>

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

}  // namespace

MigManager::MigManager(MigPorts ports, std::uint64_t seed)
    : ports_(std::move(ports)),
      round_{.ports = ports_,
             .memory = memory_,
             .seed = seed,
             .report = [this](Severity severity, std::string_view reason,
                              const std::string& message) { report(severity, reason, message); },
             .begin = [this](std::function<void(Status)> done) { begin(std::move(done)); },
             .given_up = [this] { return again_; }},
      backoff_(kMigBackoff, seed) {}

void MigManager::update(std::vector<MigWish> wishes, const inventory::SnapshotPtr& snapshot) {
  snapshot_ = snapshot;
  const bool other_wishes = wishes != wishes_;
  wishes_ = std::move(wishes);
  if (other_wishes) memory_ = {};
  if (!snapshot_) return;
  if (busy_) {
    if (other_wishes) again_ = true;
    if (change_) change_->on_snapshot(snapshot_);
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
  begun_.reset();
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
    if (again_) return leave_round();
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
  if (!jobs_.empty()) {
    about_ = {{}, jobs_.front().wish.layout};
    for (const auto& job : jobs_) about_.gpus.push_back(job.wish.gpu);
    if (from_label_) ports_.tell_state(kMigPending);
  }
  next_job();
}

void MigManager::judge(std::span<const std::pair<MigWish, mig::State>> alike) {
  std::vector<mig::State> states;
  for (const auto& [wish, state] : alike) states.push_back(state);
  const auto& first = alike.front().first;
  auto layouts = first.exact ? Result<std::vector<std::optional<mig::Layout>>>(
                                   std::vector<std::optional<mig::Layout>>(states.size(), first.exact))
                             : ports_.layouts(first.layout, states);
  std::vector<MigJob> jobs;
  std::vector<Error> errors;
  if (!layouts) errors.push_back(layouts.error());
  for (std::size_t i = 0; layouts && i < states.size(); ++i) {
    const auto& layout = (*layouts)[i];
    if (!layout) continue;
    const auto plan = mig::plan(states[i], *layout);
    if (!plan) {
      errors.push_back(plan.error());
    } else if (!plan->nothing_to_do()) {
      jobs.push_back({alike[i].first, *layout, false});
    }
  }
  for (const auto& error : errors) {
    refused_ = true;
    report(Severity::kWarning, "MigRefused", first.source + ": " + error.text() + "; nothing was changed");
  }
  if (errors.empty()) std::ranges::move(jobs, std::back_inserter(jobs_));
}

void MigManager::next_job() {
  if (jobs_.empty() || again_) return leave_round();
  change_ = std::make_unique<MigChange>(round_, jobs_.front(), snapshot_,
                                        [this](MigChange::Outcome outcome) { on_change(outcome); });
  change_->start();
}

void MigManager::on_change(MigChange::Outcome outcome) {
  change_.reset();
  MigJob job = std::move(jobs_.front());
  jobs_.pop_front();
  switch (outcome) {
    case MigChange::Outcome::kDone:
      break;
    case MigChange::Outcome::kWaiting:
      waiting_ = true;
      break;
    case MigChange::Outcome::kFailed:
      failed_ = true;
      break;
    case MigChange::Outcome::kDrainLater:
      job.may_drain = true;
      jobs_.push_back(std::move(job));
      break;
  }
  if (begun_ && !*begun_) jobs_.clear();
  next_job();
}

void MigManager::begin(std::function<void(Status)> done) {
  if (begun_) return ports_.loop.post([done = std::move(done), status = *begun_] { done(status); });
  exit_owed_ = true;
  ports_.hooks->run(mig::HookPoint::kApplyStart, about_,
                    [this, done = std::move(done), alive = std::weak_ptr(alive_)](const Status& status) {
                      if (alive.expired()) return;
                      begun_ = status;
                      if (!status)
                        report(Severity::kWarning, "MigHookFailed",
                               status.error().text() + "; nothing was changed");
                      done(status);
                    });
}

void MigManager::leave_round() {
  jobs_.clear();
  if (!exit_owed_ || !ports_.hooks->any()) return end_round();
  ports_.hooks->run(mig::HookPoint::kApplyExit, about_,
                    [this, alive = std::weak_ptr(alive_)](const Status& status) {
                      if (alive.expired()) return;
                      exit_owed_ = !status;
                      if (!status) {
                        failed_ = true;
                        report(Severity::kWarning, "MigHookFailed", status.error().text() + "; tried again");
                      }
                      end_round();
                    });
}

void MigManager::end_round() {
  timer_.reset();
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

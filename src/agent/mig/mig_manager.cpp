#include "agent/mig/mig_manager.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/file.h"

#include "mig/layout_file.h"
#include "partition/rules.h"

namespace gpulet::agent {

ConfiguredMigHooks::ConfiguredMigHooks(Loop& loop, std::function<config::MigSettings()> settings,
                                       Duration limit)
    : loop_(loop), settings_(std::move(settings)), runner_(loop, limit) {}

bool ConfiguredMigHooks::are_configured() const { return !settings_().hooks_file.empty(); }

void ConfiguredMigHooks::run_hooks(mig::HookPoint point, const HookSubject& about,
                                   std::function<void(Status)> done) {
  const auto settings = settings_();
  const bool first = point == mig::HookPoint::kApplyStart;
  if (first) file_.reset();
  // apply-exit may be retried long after its round: the file may have been fixed by then.
  if (first || (file_ && point == mig::HookPoint::kApplyExit)) {
    auto file = mig::load_hooks_file(settings.hooks_file);
    if (file) {
      file_ = std::move(*file);
    } else if (first) {
      return loop_.post([done = std::move(done), error = file.error()] { done(fail(error)); });
    }
  }
  if (!file_) return loop_.post([done = std::move(done)] { done({}); });
  std::string gpus;
  for (const auto& gpu : about.gpus) gpus += (gpus.empty() ? "" : ",") + gpu.str();
  runner_.run_hooks(*file_, point,
                    {{"MIG_PARTED_CONFIG_FILE", settings.config_file},
                     {"MIG_PARTED_HOOKS_FILE", settings.hooks_file},
                     {"MIG_PARTED_SELECTED_CONFIG", about.layout},
                     {"MIG_PARTED_MODE_CHANGE_ONLY", "false"},
                     {"MIG_PARTED_SKIP_RESET", "true"},
                     {"GPULET_HOOK", std::string(mig::hook_point_name(point))},
                     {"GPULET_GPU", gpus}},
                    std::move(done));
}

namespace {

using Severity = Reporter::Severity;

// The fingerprint of a round: the targets and the state of their GPUs.
std::string subject_of(const std::vector<MigTarget>& targets, const inventory::Snapshot& snapshot) {
  std::string subject;
  for (const auto& target : targets) {
    subject += target.gpu.str() + "=" + (target.exact ? mig::layout_text(*target.exact) : target.layout) +
               " " + target.source + "|";
    const auto* gpu = snapshot.find(target.gpu);
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
             .history = history_,
             .seed = seed,
             .report = [this](Severity severity, std::string_view reason,
                              const std::string& message) { report_event(severity, reason, message); },
             .begin = [this](std::function<void(Status)> done) { run_start_hooks(std::move(done)); },
             .is_cancelled = [this] { return run_again_; }},
      backoff_(kMigBackoff, seed) {}

void MigManager::set_targets(std::vector<MigTarget> targets, const inventory::SnapshotPtr& snapshot) {
  snapshot_ = snapshot;
  const bool changed = targets != targets_;
  targets_ = std::move(targets);
  if (changed) {
    history_ = {};
    holders_.clear();
  }
  if (!snapshot_) return;
  if (busy_) {
    if (changed) run_again_ = true;
    if (change_) change_->on_new_snapshot(snapshot_);
    return;
  }
  if (subject_of(targets_, *snapshot_) == done_for_) return;
  if (changed) backoff_.reset();
  if (changed || !timer_ || !history_.refused_modes.empty()) start_round();
}

void MigManager::set_driver_open(bool open) {
  if (std::exchange(driver_open_, open) == open || !open) return;
  for (auto& [gpu, refused] : history_.refused_modes) refused.not_before = ports_.loop.now();
  if (busy_ || !snapshot_) return;
  if (is_round_due_ || !history_.refused_modes.empty()) start_round();
}

void MigManager::start_round() {
  timer_.reset();
  mode_timer_.reset();
  is_round_due_ = !driver_open_;
  if (is_round_due_) return;
  // Due until it is tried: a Pod may hold the GPU by now.
  for (auto& [gpu, refused] : history_.refused_modes) {
    if (ports_.loop.now() < refused.not_before) continue;
    refused.is_due = true;
    refused.not_before = Time::max();
  }
  busy_ = true;
  run_again_ = refused_ = failed_ = waiting_ = mode_pending_ = mode_failed_ = false;
  from_label_ = std::ranges::any_of(targets_, &MigTarget::from_label);
  read_.clear();
  jobs_.clear();
  failed_gpus_.clear();
  reporting_.clear();
  begun_.reset();
  read_next(0);
}

void MigManager::read_next(std::size_t next) {
  while (next < targets_.size() && (snapshot_->find(targets_[next].gpu) == nullptr ||
                                    snapshot_->find(targets_[next].gpu)->unreadable)) {
    ++next;
  }
  if (next == targets_.size()) return evaluate_round();
  const auto target = targets_[next];
  ports_.hardware.read_mig_state(
      target.gpu, [this, target, next, alive = lifetime_.watch()](Result<mig::State> state) {
        if (!alive) return;
        // If the targets have changed, this round stops and another follows.
        if (run_again_) return abort_round();
        if (state) {
          read_.emplace_back(target, std::move(*state));
        } else {
          waiting_ = true;
          report_event(Severity::kWarning, "MigFailed",
                       "GPU " + target.gpu.str() + ": " + state.error().full_message());
        }
        read_next(next + 1);
      });
}

// Everything is planned before anything is touched: one impossible GPU refuses the layout for all GPUs of the
// same source.
void MigManager::evaluate_round() {
  const auto same = [](const auto& a, const auto& b) {
    return a.first.source == b.first.source && a.first.layout == b.first.layout;
  };
  for (auto from = read_.begin(); from != read_.end();) {
    auto to = from;
    while (to != read_.end() && same(*from, *to)) ++to;
    evaluate_targets({from, to});
    from = to;
  }
  read_.clear();
  if (!jobs_.empty()) {
    hook_subject_ = {{}, jobs_.front().target.layout};
    for (const auto& job : jobs_) hook_subject_.gpus.push_back(job.target.gpu);
    if (from_label_) ports_.publish_state(kMigPending);
  }
  next_job();
}

void MigManager::evaluate_targets(std::span<const std::pair<MigTarget, mig::State>> alike) {
  std::vector<mig::State> states;
  for (const auto& [target, state] : alike) states.push_back(state);
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
    const auto plan = mig::make_plan(states[i], *layout);
    if (!plan) {
      errors.push_back(plan.error());
    } else if (!plan->is_noop() && !waits_for_mode(states[i].uuid, *plan)) {
      jobs.push_back({alike[i].first, *layout, false});
    }
  }
  for (const auto& error : errors) {
    refused_ = true;
    report_event(Severity::kWarning, "MigRefused",
                 first.source + ": " + error.full_message() + "; nothing was changed");
  }
  if (errors.empty()) std::ranges::move(jobs, std::back_inserter(jobs_));
}

bool MigManager::waits_for_mode(const DeviceUuid& gpu, const mig::Plan& plan) {
  const auto found = history_.refused_modes.find(gpu);
  if (found == history_.refused_modes.end() || plan.is_blocked()) return false;
  const auto& refused = found->second;
  // Somebody has reset the GPU, or cancelled the pending mode.
  if (!plan.set_mode || refused.pending != plan.needs_reset) {
    history_.refused_modes.erase(found);
    holders_.erase(gpu);
    return false;
  }
  if (refused.is_due) return false;
  (refused.pending ? mode_pending_ : mode_failed_) = true;
  report_event(Severity::kWarning, refused.event_reason, refused.message);
  return true;
}

void MigManager::on_mode_refused(const DeviceUuid& gpu) {
  const auto refused = history_.refused_modes.find(gpu);
  if (refused == history_.refused_modes.end()) return;  // the targets have changed since
  (refused->second.pending ? mode_pending_ : mode_failed_) = true;
  auto& watched = holders_[gpu];
  watched.clear();
  for (const auto& holder : refused->second.holders) {
    if (!ports_.watch_exit) break;
    auto watch = ports_.watch_exit(holder.pid, [this, gpu, pid = holder.pid] {
      auto& rest = holders_[gpu];
      rest.erase(pid);
      if (rest.empty()) retry_mode(gpu);
    });
    if (watch) watched.emplace(holder.pid, std::move(watch));
  }
}

void MigManager::retry_mode(const DeviceUuid& gpu) {
  const auto found = history_.refused_modes.find(gpu);
  if (found == history_.refused_modes.end()) return;
  found->second.not_before = ports_.loop.now();
  if (!busy_) schedule_mode_retry();
}

void MigManager::schedule_mode_retry() {
  Time due = Time::max();
  for (const auto& [gpu, refused] : history_.refused_modes) due = std::min(due, refused.not_before);
  mode_timer_.reset();
  if (due == Time::max()) return;
  mode_timer_ =
      ports_.loop.after(std::max(Duration::zero(), due - ports_.loop.now()), [this] { start_round(); });
}

void MigManager::next_job() {
  if (jobs_.empty() || run_again_) return abort_round();
  change_ = std::make_unique<MigChange>(round_, jobs_.front(), snapshot_,
                                        [this](MigChange::Outcome outcome) { on_change_done(outcome); });
  change_->start_change();
}

void MigManager::on_change_done(MigChange::Outcome outcome) {
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
      failed_gpus_.push_back(job.target.gpu);
      break;
    case MigChange::Outcome::kModeRefused:
      on_mode_refused(job.target.gpu);
      break;
    case MigChange::Outcome::kDrainLater:
      job.may_drain = true;
      jobs_.push_back(std::move(job));
      break;
  }
  if (begun_ && !*begun_) jobs_.clear();
  next_job();
}

void MigManager::run_start_hooks(std::function<void(Status)> done) {
  if (begun_) return ports_.loop.post([done = std::move(done), status = *begun_] { done(status); });
  exit_pending_ = true;
  ports_.hooks->run_hooks(mig::HookPoint::kApplyStart, hook_subject_,
                          [this, done = std::move(done), alive = lifetime_.watch()](const Status& status) {
                            if (!alive) return;
                            begun_ = status;
                            if (!status)
                              report_event(Severity::kWarning, "MigHookFailed",
                                           status.error().full_message() + "; nothing was changed");
                            done(status);
                          });
}

void MigManager::abort_round() {
  jobs_.clear();
  if (!exit_pending_ || !ports_.hooks->are_configured()) return end_round();
  ports_.hooks->run_hooks(
      mig::HookPoint::kApplyExit, hook_subject_, [this, alive = lifetime_.watch()](const Status& status) {
        if (!alive) return;
        exit_pending_ = !status;
        if (!status) {
          failed_ = true;
          report_event(Severity::kWarning, "MigHookFailed", status.error().full_message() + "; tried again");
        }
        end_round();
      });
}

void MigManager::end_round() {
  timer_.reset();
  busy_ = false;
  reported_ = std::move(reporting_);
  if (ports_.round_ended) ports_.round_ended(failed_gpus_);
  if (run_again_) return start_round();
  done_for_ = subject_of(targets_, *snapshot_);
  if (from_label_) {
    ports_.publish_state(refused_ || failed_ || mode_failed_ ? kMigFailed
                         : waiting_ || mode_pending_         ? kMigPending
                                                             : kMigSuccess);
  }
  schedule_mode_retry();
  if (failed_ || waiting_) {
    timer_ = ports_.loop.after(backoff_.next_delay(), [this] { start_round(); });
  } else {
    backoff_.reset();
  }
}

void MigManager::report_event(Severity severity, std::string_view reason, const std::string& message) {
  if (!reported_.contains(message) && !reporting_.contains(message))
    ports_.reporter.report_event(severity, reason, message);
  reporting_.insert(message);
}

Subscription watch_process_exit(Loop& loop, unsigned pid, std::function<void()> ended) {
  const auto process = std::make_shared<FileDescriptor>(
      static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0u)));
  if (!process->is_open()) return {};
  // The callback may end the watch, and with it itself.
  auto watch = std::make_shared<Subscription>(
      loop.watch_descriptor(process->get(), EPOLLIN, [ended = std::move(ended)](std::uint32_t) {
        const auto keep = ended;
        keep();
      }));
  return Subscription([process, watch] { watch->reset(); });
}

std::vector<MigTarget> mig_targets(const inventory::Snapshot& snapshot, const config::Config& config,
                                   const std::map<std::string, std::string>& labels) {
  std::vector<MigTarget> targets;
  if (!config.gpulet.mig.manage) return targets;
  const auto label = labels.find(kMigConfigLabel);
  const bool has_label = label != labels.end() && !label->second.empty();
  for (const auto& desired : partition::desired_mig(snapshot, config, labels)) {
    MigTarget target{desired.uuid, desired.layout, std::nullopt, desired.position, false};
    target.on_demand = desired.on_demand && config.gpulet.mig.on_demand.max_gpus > 0 && !has_label;
    if (!desired.enabled || desired.layout.empty())
      target.exact = mig::Layout{desired.enabled, desired.devices};
    targets.push_back(std::move(target));
  }
  if (!has_label) return targets;
  const std::size_t ruled = targets.size();
  // Not Gpu::excluded: the snapshot may be older than the config.
  const auto selection = partition::select_rules(snapshot, config, labels);
  for (std::size_t i = 0; i < snapshot.gpus.size(); ++i) {
    const auto& gpu = snapshot.gpus[i];
    if (!gpu.mig_capable || gpu.unreadable || !selection.excluded[i].empty()) continue;
    if (!selection.dynamic_profiles[i].empty()) continue;  // claims make its instances
    const auto first = targets.begin();
    if (std::ranges::count(first, first + static_cast<std::ptrdiff_t>(ruled), gpu.uuid, &MigTarget::gpu) != 0)
      continue;
    targets.push_back({gpu.uuid, label->second, std::nullopt,
                       "the label " + std::string(kMigConfigLabel) + "=" + label->second, true});
  }
  return targets;
}

Result<std::vector<std::optional<mig::Layout>>> mig_layouts(const config::Config& config,
                                                            const std::string& name,
                                                            std::span<const mig::State> gpus) {
  GPULET_TRY_ASSIGN(auto named, mig::named_layouts(config.gpulet.mig.config_file, name, gpus));
  std::vector<std::optional<mig::Layout>> layouts(named.size());
  for (std::size_t i = 0; i < named.size(); ++i) {
    if (named[i]) layouts[i] = std::move(named[i]->layout);
  }
  return layouts;
}

}  // namespace gpulet::agent

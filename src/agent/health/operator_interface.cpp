#include "agent/health/operator_interface.h"

#include "base/file.h"
#include "health/report/health_report.h"

namespace gpulet::agent {

HealthReportWriter::HealthReportWriter(Loop& loop, Reporter& reporter, std::string path, std::uint64_t seed)
    : loop_(loop), reporter_(reporter), path_(std::move(path)), backoff_(kReportBackoff, seed) {}

HealthReportWriter::~HealthReportWriter() {
  if (pending_) write_report();
}

void HealthReportWriter::update_report(const health::HealthViewPtr& view) {
  if (path_.empty() || !view) return;
  pending_ = view;
  if (!next_) next_ = loop_.after(Duration::zero(), [this] { write_report(); });
}

void HealthReportWriter::write_report() {
  const auto status = write_file_atomic(path_, health::format_report(*pending_), kReportMode);
  if (!status) {
    if (!std::exchange(failing_, true)) {
      reporter_.report_event(
          Reporter::Severity::kWarning, "HealthReportNotWritten",
          status.error().full_message() + "; `gpulet health` shows outdated data until it can be written");
    }
    next_ = loop_.after(backoff_.next_delay(), [this] { write_report(); });
    return;
  }
  if (std::exchange(failing_, false)) {
    reporter_.report_event(Reporter::Severity::kNormal, "HealthReportWritten", path_ + " is written again");
  }
  backoff_.reset();
  pending_.reset();
  next_ = loop_.after(kReportInterval, [this] {
    next_.reset();
    if (pending_) write_report();
  });
}

CordonWatcher::CordonWatcher(Loop& loop, Reporter& reporter, std::string path,
                             std::function<void(const health::Evidence&)> send_evidence)
    : loop_(loop),
      path_(std::move(path)),
      send_evidence_(std::move(send_evidence)),
      file_(loop, reporter, path_,
            {"CordonsNotWatched", "new cordons take effect up to a minute late", "CordonsUnreadable",
             "existing cordons stay in effect"},
            [this] { return read_cordons_file(); }) {}

CordonWatcher::~CordonWatcher() = default;

Status CordonWatcher::read_cordons_file() {
  GPULET_TRY_ASSIGN(cordons_, health::read_cordons(path_));
  sent_commands_.clear();
  apply_cordons_soon();
  return {};
}

void CordonWatcher::on_health_view(const health::HealthViewPtr& view) {
  view_ = view;
  apply_cordons_soon();
}

// Not from inside the agent's call: evidence changes statuses, which are published again.
void CordonWatcher::apply_cordons_soon() {
  if (!apply_timer_) apply_timer_ = loop_.after(Duration::zero(), [this] { apply_cordons(); });
}

void CordonWatcher::apply_cordons() {
  apply_timer_.reset();
  if (!view_ || !cordons_) return;
  const auto commands = health::pending_operator_commands(*view_, *cordons_, {loop_.now(), loop_.wall_now()});
  std::vector<SentCommand> reported;
  for (const auto& command : commands)
    reported.emplace_back(command.scope, std::get<health::OperatorCommand>(command.body).action);
  // Commands without effect (cordons that a policy ignores) are not repeated.
  if (reported == sent_commands_) return;
  sent_commands_ = std::move(reported);
  for (const auto& command : commands) send_evidence_(command);
}

OperatorInterface::OperatorInterface(Loop& loop, Reporter& reporter,
                                     std::function<void(const health::Evidence&)> send_evidence,
                                     std::uint64_t seed)
    : loop_(loop),
      reporter_(reporter),
      send_evidence_(std::move(send_evidence)),
      seed_(seed),
      backoff_(kPresenceBackoff, seed) {}

void OperatorInterface::set_paths(const std::string& state_dir, const std::string& health_file) {
  if (health_file_ != health_file) {
    health_file_ = health_file;
    report_.emplace(loop_, reporter_, health_file, seed_);
    if (view_) report_->update_report(view_);
  }
  if (state_dir_ == state_dir) return;
  state_dir_ = state_dir;
  presence_.reset();
  cordons_.reset();
  retry_.reset();
  backoff_.reset();
  failure_logged_ = false;
  if (state_dir.empty()) return;
  acquire_presence();
  cordons_.emplace(loop_, reporter_, cordons_path(state_dir), send_evidence_);
  if (view_) cordons_->on_health_view(view_);
}

void OperatorInterface::acquire_presence() {
  if (presence_path(*state_dir_) == held_presence_) return;
  auto held = ProcessLock::acquire_lock(presence_path(*state_dir_));
  if (held) {
    presence_.emplace(std::move(*held));
    return;
  }
  if (!std::exchange(failure_logged_, true)) {
    const bool other = held.error().code() == Code::kFailedPrecondition;
    reporter_.report_event(
        Reporter::Severity::kWarning, other ? "AnotherAgent" : "AgentLockFailed",
        held.error().full_message() + (other ? ": two agents must not share gpulet.stateDir"
                                             : "; `gpulet health` will report that no agent is running"));
  }
  retry_ = loop_.after(backoff_.next_delay(), [this] { acquire_presence(); });
}

void OperatorInterface::on_health_view(const health::HealthViewPtr& view) {
  view_ = view;
  if (report_) report_->update_report(view);
  if (cordons_) cordons_->on_health_view(view);
}

}  // namespace gpulet::agent

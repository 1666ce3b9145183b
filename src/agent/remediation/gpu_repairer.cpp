#include "agent/remediation/gpu_repairer.h"

#include <algorithm>

#include "agent/node/gpu_processes.h"
#include "base/log.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

using repair::GpuUse;
using repair::RepairDecision;
using RepairKind = repair::RepairDecision::Kind;
using RepairSeverity = Reporter::Severity;

constexpr std::string_view kMpsProgram = "nvidia-cuda-mps";  // the control daemon and its servers

// As GpuRepairPorts::reset says.
bool has_run(const Error& error) {
  return error.code() == Code::kFailedPrecondition || error.code() == Code::kDeadlineExceeded;
}

bool is_of_daemon(const mig::DeviceHolder& holder) {
  return holder.name.find(kMpsProgram) != std::string::npos;
}

}  // namespace

GpuRepairer::GpuRepairer(GpuRepairPorts ports, repair::Record record, Duration reset_timeout)
    : ports_(std::move(ports)), record_(std::move(record)) {
  if (ports_.boot_id.empty()) ports_.boot_id = "unknown";
  await_interrupted_reset(reset_timeout);
}

// Its attempt was counted before it began; what it did to the GPUs is up to their readings.
void GpuRepairer::await_interrupted_reset(Duration reset_timeout) {
  if (!record_.resetting) return;
  const auto& reset = *record_.resetting;
  std::string gpus;
  for (const auto& gpu : reset.gpus) gpus += (gpus.empty() ? "" : ", ") + gpu.str();
  ports_.reporter.report_event(
      RepairSeverity::kWarning, "GpuResetFailed",
      "the agent ended or was reconfigured during the reset of " + gpus + ", whose outcome is not known");
  const auto since = std::chrono::duration_cast<Duration>(ports_.loop.wall_now() - reset.since);
  // A clock that was set back: since now at the latest.
  const auto left = reset_timeout - std::max(since, Duration::zero());
  if (reset.boot_id != ports_.boot_id || left <= Duration::zero()) {
    record_.resetting.reset();
    ports_.resume_daemons();
    return save_record();
  }
  step_ = Step::kInterrupted;
  std::map<DeviceUuid, std::string> withdrawn;
  for (const auto& gpu : reset.gpus) withdrawn[gpu] = "may still be being reset by an earlier agent";
  ports_.withdraw(std::move(withdrawn));
  timer_ = ports_.loop.after(left, [this] { end_interrupted_reset(); });
}

void GpuRepairer::end_interrupted_reset() {
  record_.resetting.reset();
  save_record();
  step_ = Step::kIdle;
  ports_.resume_daemons();
  ports_.withdraw({});
  evaluate();
}

void GpuRepairer::update_repairs() {
  if (step_ == Step::kVerify) return on_verified();
  if (step_ != Step::kIdle) {
    update_requested_ = true;
    return;
  }
  evaluate();
}

void GpuRepairer::evaluate() {
  timer_.reset();
  update_requested_ = false;
  node_ = ports_.read_node();
  if (!node_) return;
  const auto& policy = node_->policy;
  notes_.clear();
  decisions_.clear();
  candidates_.clear();
  reporting_.clear();
  if (policy.is_enabled()) {
    const auto before = record_;
    prune_record(record_, ports_.loop.wall_now(), ports_.boot_id);
    if (record_ != before) save_record();
    decisions_ = decide(*node_, record_);
  }
  std::erase_if(holds_, [&](const auto& hold) {
    return hold.second.until <= ports_.loop.now() ||
           std::ranges::find(decisions_, hold.first, &Decision::gpu) == decisions_.end();
  });
  update_reboot_request(decisions_, policy);
  for (const auto& decision : decisions_) {
    note_decision(decision);
    if (decision.kind == RepairKind::kReset && !note_hold(decision.gpu)) candidates_.push_back(decision);
  }
  if (candidates_.empty()) return finish_repair_round();
  step_ = Step::kCheck;
  list_holding_pods();
}

std::vector<repair::RepairDecision> GpuRepairer::decide(const RepairNode& node,
                                                        const repair::Record& record) const {
  return decide_repairs({.view = *node.view,
                         .snapshot = *node.snapshot,
                         .record = record,
                         .now = ports_.loop.wall_now(),
                         .boot_id = ports_.boot_id,
                         .max_unhealthy_gpus_percent = node.max_unhealthy_gpus_percent,
                         .busy = node.busy,
                         .unmanaged_instances = node.unmanaged_instances},
                        node.policy);
}

bool GpuRepairer::note_hold(const DeviceUuid& gpu) {
  const auto hold = holds_.find(gpu);
  if (hold == holds_.end()) return false;
  notes_[gpu] = "The agent does not reset it yet: " + hold->second.why +
                "; it tries again within gpulet.repair.reset.cooldown";
  return true;
}

void GpuRepairer::note_decision(const Decision& decision) {
  auto& note = notes_[decision.gpu];
  switch (decision.kind) {
    case RepairKind::kReset:
      note = "The agent resets it once it is empty";
      return;
    case RepairKind::kWait:
      note = "The agent does not reset it yet: " + decision.reason;
      return;
    case RepairKind::kReboot:
      note = "Reboot the node: the agent has requested it, as " + decision.reason;
      return;
    case RepairKind::kGiveUp:
      note = "Have it diagnosed, or reboot the node: " + decision.reason;
      const std::string text = name_of(decision.gpu) + " is not repaired: " + decision.reason;
      if (!reported_.contains(text) && !reporting_.contains(text))
        ports_.reporter.report_event(RepairSeverity::kWarning, "GpuRepairFailed", text);
      reporting_.insert(text);
      return;
  }
}

// Level-triggered: what is requested follows the faults.
void GpuRepairer::update_reboot_request(const std::vector<Decision>& decisions,
                                        const repair::Policy& policy) {
  std::string text;
  std::vector<DeviceUuid> gpus;
  for (const auto& decision : decisions) {
    if (decision.kind != RepairKind::kReboot) continue;
    text += (text.empty() ? "" : "; ") + name_of(decision.gpu) + ": " +
            (decision.fault.empty() ? "" : decision.fault + "; ") + decision.reason;
    if (gpus.size() < repair::kMaxRecordGpus) gpus.push_back(decision.gpu);
  }
  const bool is_known = record_.reboot && record_.reboot->boot_id == ports_.boot_id;
  counts_.is_reboot_requested = !text.empty();
  if (!text.empty() && !is_known) {
    record_.reboot = {ports_.boot_id, ports_.loop.wall_now(), gpus};
    save_record();
    ports_.reporter.report_event(RepairSeverity::kWarning, "GpuRebootRequested",
                                 "the node needs a reboot: " + text);
  } else if (!text.empty() && record_.reboot->gpus != gpus) {
    record_.reboot->gpus = gpus;
    save_record();
  } else if (text.empty() && is_known) {
    record_.reboot.reset();
    save_record();
    ports_.reporter.report_event(RepairSeverity::kNormal, "GpuRebootRequestEnded",
                                 "the reboot of the node is no longer requested");
  }
  ports_.request_reboot(policy.reboot_request,
                        text.empty() ? std::nullopt : std::optional<std::string>(std::move(text)));
}

void GpuRepairer::list_holding_pods() {
  ports_.pods([this, alive = lifetime_.watch(), round = round_](const Result<mig::PodsByDevice>& pods) {
    if (alive && round == round_) step_ == Step::kWithdrawn ? check_again(pods) : on_pods(pods);
  });
}

void GpuRepairer::on_pods(const Result<mig::PodsByDevice>& pods) {
  if (!pods) {
    for (const auto& candidate : candidates_)
      notes_[candidate.gpu] = "The agent does not reset it yet: it cannot list the Pods that hold it: " +
                              pods.error().full_message();
    return finish_repair_round();
  }
  pods_ = *pods;
  check_next();
}

std::string GpuRepairer::pod_blocker(const Decision& decision) const {
  std::map<DeviceUuid, GpuUse> uses;
  for (const auto& member : decision.group.gpus) {
    if (const auto* gpu = node_->snapshot->find(member)) uses[member].pods = pods_on(*gpu, pods_);
  }
  return holding_reason(decision.group, decision.gpu, uses, *node_->snapshot);
}

// The first candidate that nothing holds is reset; the others wait for their turn.
void GpuRepairer::check_next() {
  while (!candidates_.empty()) {
    const auto blocker = pod_blocker(candidates_.front());
    if (blocker.empty()) break;
    notes_[candidates_.front().gpu] = "The agent resets it once it is empty: " + blocker;
    candidates_.pop_front();
  }
  if (candidates_.empty()) return finish_repair_round();
  read_processes(false, [this](const std::string& blocker) {
    if (!blocker.empty()) {
      notes_[candidates_.front().gpu] = "The agent resets it once it is empty: " + blocker;
      candidates_.pop_front();
      return check_next();
    }
    if (!node_->policy.reset.dry_run) return withdraw_group();
    report_dry_run(candidates_.front());
    candidates_.pop_front();
    check_next();
  });
}

// `with_daemons`: MPS daemons that still run count too.
void GpuRepairer::read_processes(bool with_daemons, std::function<void(std::string)> done) {
  ports_.processes(candidates_.front().group.gpus, [this, alive = lifetime_.watch(), round = round_,
                                                    with_daemons, done = std::move(done)](
                                                       const Result<GpuRepairPorts::Holders>& holders) {
    if (!alive || round != round_) return;
    if (!holders) return done("its processes are not known: " + holders.error().full_message());
    std::map<DeviceUuid, GpuUse> uses;
    for (const auto& [gpu, all] : *holders) {
      for (const auto& holder : all) {
        if (with_daemons || !is_of_daemon(holder)) uses[gpu].processes.push_back(holder.name);
      }
    }
    done(holding_reason(candidates_.front().group, candidates_.front().gpu, uses, *node_->snapshot));
  });
}

void GpuRepairer::report_dry_run(const Decision& decision) {
  const std::string text = "would reset " + group_text() + " (dry run): " + decision.fault;
  notes_[decision.gpu] = "The agent would reset it (gpulet.repair.reset.dryRun)";
  if (!reported_.contains(text) && !reporting_.contains(text)) {
    ++counts_.dry_run;
    ports_.reporter.report_event(RepairSeverity::kNormal, "GpuResetPlanned", text);
  }
  reporting_.insert(text);
}

void GpuRepairer::withdraw_group() {
  step_ = Step::kWithdrawn;
  const auto& decision = candidates_.front();
  std::map<DeviceUuid, std::string> withdrawn;
  for (const auto& gpu : decision.group.gpus) {
    withdrawn[gpu] = gpu == decision.gpu
                         ? "is being reset"
                         : "is being reset with " + name_of(decision.gpu) + ": " + decision.group.reason;
  }
  notes_[decision.gpu] = "Nothing to do: the agent is resetting it";
  ports_.show_notes(notes_);
  ports_.withdraw(std::move(withdrawn));
  awaited_ = "its MPS daemons have not stopped yet";
  limit_ = ports_.loop.after(kWithdrawnLimit, [this] { hold_group(awaited_); });
  // An Allocate that was answered before is in the kubelet's list by then.
  timer_ = ports_.loop.after(kMigSettleTime, [this] {
    ports_.pause_daemons(candidates_.front().group.gpus,
                         [this, alive = lifetime_.watch(), round = round_](const Status& paused) {
                           if (!alive) return;
                           if (round != round_) return resume_late_daemons();
                           if (!paused) return hold_group(paused.error().full_message());
                           awaited_ = "the Pods that hold it are not listed yet";
                           list_holding_pods();
                         });
  });
}

// They stopped after the group had been returned.
void GpuRepairer::resume_late_daemons() {
  if (step_ != Step::kWithdrawn && step_ != Step::kReset) ports_.resume_daemons();
}

void GpuRepairer::check_again(const Result<mig::PodsByDevice>& pods) {
  if (!pods) return hold_group("it cannot list the Pods that hold it: " + pods.error().full_message());
  pods_ = *pods;
  if (const auto blocker = pod_blocker(candidates_.front()); !blocker.empty()) return hold_group(blocker);
  awaited_ = "its processes are not listed yet";
  read_processes(true, [this](const std::string& blocker) {
    if (!blocker.empty()) return hold_group(blocker);
    record_attempt();
  });
}

// Counts for each GPU that it is to repair.
void GpuRepairer::record_attempt() {
  const auto now = ports_.loop.wall_now();
  const auto& decision = candidates_.front();
  before_ = record_;
  for (const auto& member : decision.group.gpus) {
    if (repair::needed_repair(*node_->view, member).action != repair::Action::kNone)
      record_.add_attempt(member, now);
  }
  record_.resetting = repair::Record::Reset{ports_.boot_id, now, decision.group.gpus};
  awaited_ = "the record is not written yet";
  ports_.save(record_, [this, alive = lifetime_.watch(), round = round_](const Status& saved) {
    if (!alive || round != round_) return;
    if (saved) return on_recorded();
    log::warning("cannot record the reset of a GPU", saved.error());
    hold_group("the attempt cannot be recorded: " + saved.error().full_message());
  });
}

// What was recorded before nvidia-smi started, and did not come to pass.
void GpuRepairer::undo_attempt() {
  if (!before_) return;
  record_ = std::move(*std::exchange(before_, std::nullopt));
  save_record();
}

// An operator, a layout or the end of the fault may have come meanwhile.
void GpuRepairer::on_recorded() {
  auto node = ports_.read_node();
  const auto change = node ? change_since(*node) : "the GPUs are not known";
  if (!change.empty()) return hold_group(change);
  node_ = std::move(node);
  run_reset();
}

// Why the withdrawn group is not reset after all; empty: it is.
std::string GpuRepairer::change_since(const RepairNode& node) const {
  const auto& wanted = candidates_.front();
  const auto decisions = decide(node, *before_);
  const auto now = std::ranges::find(decisions, wanted.gpu, &Decision::gpu);
  if (now == decisions.end()) return "it no longer needs a reset";
  if (now->kind != RepairKind::kReset) return now->reason;
  if (now->group.gpus != wanted.group.gpus) return "other GPUs are to be reset with it now";
  return node.policy.reset.dry_run ? "gpulet.repair.reset.dryRun is set" : "";
}

void GpuRepairer::run_reset() {
  step_ = Step::kReset;
  limit_.reset();
  log::info("resetting GPUs", {{"gpus", group_text()}, {"fault", candidates_.front().fault}});
  ports_.reset(candidates_.front().group.gpus, node_->policy.reset.timeout,
               [this, alive = lifetime_.watch()](const Status& status) {
                 if (alive) on_reset(status);
               });
}

void GpuRepairer::on_reset(const Status& status) {
  const auto& decision = candidates_.front();
  ports_.resume_daemons();
  const std::string failure = status ? "" : status.error().full_message();
  if (!status && !has_run(status.error())) {
    ports_.reporter.report_event(
        RepairSeverity::kWarning, "GpuResetFailed",
        group_text() + " could not be reset: " + failure + "; it does not count as an attempt");
    return hold_group("the reset did not begin: " + failure);
  }
  before_.reset();
  record_.resetting.reset();
  save_record();
  if (status) {
    ++counts_.done;
    ports_.reporter.report_event(RepairSeverity::kNormal, "GpuReset",
                                 group_text() + " has been reset: " + decision.fault);
  } else {
    ++counts_.failed;
    notes_[decision.gpu] = "Wait for the agent's next step: the reset failed: " + failure;
    ports_.reporter.report_event(RepairSeverity::kWarning, "GpuResetFailed",
                                 group_text() + " could not be reset: " + failure + "; attempt " +
                                     std::to_string(record_.attempts[decision.gpu].size()) + " of " +
                                     std::to_string(node_->policy.reset.max_attempts));
  }
  // A reset that failed or did not end may still change the GPUs.
  const auto node = ports_.read_node();
  generation_ = (node ? node->snapshot : node_->snapshot)->generation;
  step_ = Step::kVerify;
  timer_ = ports_.loop.after(kMigVerifyTimeout, [this] { return_group(); });
  for (const auto& gpu : decision.group.gpus) {
    if (status) ports_.submit_reset(gpu);
  }
  ports_.request_snapshot();
}

// The group stays withdrawn until the driver has answered for all of it.
void GpuRepairer::on_verified() {
  const auto node = ports_.read_node();
  if (!node || node->snapshot->generation <= generation_) return;
  const bool is_readable = std::ranges::all_of(candidates_.front().group.gpus, [&](const DeviceUuid& member) {
    const auto* gpu = node->snapshot->find(member);
    return gpu != nullptr && !gpu->unreadable;
  });
  if (is_readable) return_group();
}

// Not at once again: each time, healthy GPUs are withdrawn with it.
void GpuRepairer::hold_group(const std::string& why) {
  const auto& gpu = candidates_.front().gpu;
  holds_[gpu] = {ports_.loop.now() + node_->policy.reset.cooldown, why};
  note_hold(gpu);
  undo_attempt();
  return_group();
}

void GpuRepairer::return_group() {
  if (step_ == Step::kWithdrawn) ports_.resume_daemons();
  ports_.withdraw({});
  finish_repair_round();
}

void GpuRepairer::finish_repair_round() {
  step_ = Step::kIdle;
  ++round_;
  limit_.reset();
  timer_.reset();
  reported_ = std::move(reporting_);
  reporting_.clear();
  candidates_.clear();
  ports_.show_notes(notes_);
  const auto waits = [](const Decision& decision) {
    return decision.kind == RepairKind::kWait || decision.kind == RepairKind::kReset;
  };
  if (update_requested_ || std::ranges::any_of(decisions_, waits))
    timer_ = ports_.loop.after(kRepairPoll, [this] { evaluate(); });
}

void GpuRepairer::save_record() {
  ports_.save(record_, [alive = lifetime_.watch()](const Status& saved) {
    if (alive && !saved) log::warning("cannot record the repair of GPUs", saved.error());
  });
}

std::string GpuRepairer::name_of(const DeviceUuid& gpu) const {
  const auto* found = node_->view->find({gpu});
  return found == nullptr ? "GPU " + gpu.str() : describe_device(*found);
}

std::string GpuRepairer::group_text() const {
  std::string text;
  for (const auto& gpu : candidates_.front().group.gpus) text += (text.empty() ? "" : ", ") + name_of(gpu);
  return text;
}

}  // namespace gpulet::agent

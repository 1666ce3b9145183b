#include "agent/power/power_controller.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/log.h"

namespace gpulet::agent {

using partition::watts_text;

void PowerController::set_state_dir(const std::string& directory) {
  const std::string path = directory.empty() ? "" : directory + "/" + kPowerFile;
  const bool is_first = !std::exchange(has_state_dir_, true);
  const auto former = std::exchange(path_, path);
  if (!is_first) {
    if (former == path) return;
    if (const auto saved = save_records(); !saved)
      return log::warning("cannot move the record of power limits", saved.error());
    if (!former.empty()) (void)save_power_records(former, {});
    return;
  }
  if (path.empty()) return;
  const auto records = load_power_records(path);
  if (!records) {
    is_record_lost_ = true;
    log::warning("cannot read the record of power limits: the defaults are restored", records.error());
    const std::string broken = path + kBrokenPowerSuffix;
    if (std::rename(path.c_str(), broken.c_str()) != 0)
      log::warning("cannot keep the record of power limits", errno_error("cannot rename it", errno, path));
    return;
  }
  for (const auto& [gpu, record] : *records) gpus_[gpu].record = record;
}

void PowerController::set_targets(std::map<DeviceUuid, partition::PowerTarget> targets,
                                  const inventory::SnapshotPtr& snapshot, const std::set<DeviceUuid>& kept) {
  const bool is_new_snapshot = std::exchange(snapshot_, snapshot) != snapshot;
  for (auto& [gpu, target] : targets) gpus_.try_emplace(gpu);
  std::vector<DeviceUuid> due;
  for (auto& [gpu, entry] : gpus_) {
    const auto found = targets.find(gpu);
    if (kept.contains(gpu)) {
      if (is_new_snapshot && entry.target) due.push_back(gpu);
      continue;
    }
    auto target = found == targets.end() ? std::nullopt : std::optional(found->second);
    if (!is_new_snapshot && entry.target == target) continue;
    entry.target = std::move(target);
    due.push_back(gpu);
  }
  for (const auto& gpu : due) update_gpu(gpu);
}

void PowerController::drop_calls() {
  ++round_;
  for (auto& [gpu, entry] : gpus_) {
    entry.is_busy = entry.is_due = false;
    entry.retry.reset();
  }
  snapshot_.reset();  // the next one is looked at
}

void PowerController::restore_all(Duration limit, std::function<void()> done) {
  restore_limit_ = limit;
  std::vector<DeviceUuid> all;
  for (auto& [gpu, entry] : gpus_) {
    entry.target.reset();
    all.push_back(gpu);
  }
  for (const auto& gpu : all) update_gpu(gpu);
  restored_ = std::move(done);
  finish_restore();
}

void PowerController::finish_restore() {
  const bool is_done = std::ranges::none_of(gpus_, [](const auto& one) { return one.second.is_busy; });
  if (is_done && restored_) std::exchange(restored_, nullptr)();
}

void PowerController::drop_absent_gpus(const inventory::Snapshot& snapshot) {
  const bool is_complete = std::ranges::all_of(
      snapshot.gpus, [](const auto& gpu) { return !gpu.unreadable && !gpu.uuid.empty(); });
  if (!is_complete) return;
  const auto dropped =
      std::erase_if(gpus_, [&](const auto& one) { return snapshot.find(one.first) == nullptr; });
  if (dropped == 0) return;
  if (const auto saved = save_records(); !saved)
    log::warning("cannot write the record of power limits", saved.error());
}

std::vector<GpuPowerStatus> PowerController::statuses() const {
  std::vector<GpuPowerStatus> statuses;
  for (const auto& [gpu, entry] : gpus_) {
    if (entry.status) statuses.push_back(*entry.status);
  }
  return statuses;
}

std::vector<std::string> PowerController::read_errors() const {
  std::vector<std::string> errors;
  for (const auto& [gpu, entry] : gpus_) {
    if (!entry.read_error.empty()) errors.push_back(entry.read_error);
  }
  return errors;
}

void PowerController::update_gpu(const DeviceUuid& gpu) {
  auto& entry = gpus_[gpu];
  entry.is_due = true;
  if (entry.is_busy) return;
  entry.is_due = entry.has_failed = false;
  entry.retry.reset();
  // A rule without values asks the driver nothing.
  const bool is_asked =
      entry.target && (entry.target->values != config::PowerValues{} ||
                       entry.target->pod != partition::PodPowerRequest{} || entry.target->do_pods_differ);
  if (!is_asked && entry.record.is_empty()) {
    entry.status.reset();
    entry.read_error.clear();
    return finish_gpu(gpu);
  }
  entry.is_busy = true;
  ports_.read(gpu, restore_limit_.value_or(ports_.call_timeout()),
              [this, gpu, round = round_, alive = lifetime_.watch()](const auto& reading) {
                if (alive && round == round_) on_reading(gpu, reading);
              });
}

// The GPU may have left, or the driver is away, as while it is released: no problem, and looked at again.
void PowerController::on_no_reading(const DeviceUuid& gpu, const Error& error) {
  auto& entry = gpus_[gpu];
  GpuPowerStatus status{.gpu = gpu};
  const bool has_left = error.code() == Code::kNotFound && !entry.target;
  if (error.code() != Code::kUnavailable && !has_left)
    status.problems.push_back("its power limit is not known: " + error.message());
  entry.read_error = error.message();
  entry.has_failed = !has_left;
  set_status(entry, std::move(status));
  finish_gpu(gpu);
}

void PowerController::on_reading(const DeviceUuid& gpu, const Result<PowerReading>& reading) {
  if (!reading) return on_no_reading(gpu, reading.error());
  auto& entry = gpus_[gpu];
  entry.read_error.clear();
  Attempt attempt{.status = {.gpu = gpu}};
  auto& status = attempt.status;
  auto wanted =
      entry.target ? partition::resolve_power(*entry.target, reading->bounds) : partition::ResolvedPower{};
  if (wanted.is_limit_kept && wanted.limit && reading->limit && *reading->limit < *wanted.limit)
    wanted.limit.reset();
  if (ports_.on_pod_problem) {
    for (const auto& problem : wanted.pod_problems) ports_.on_pod_problem(gpu, problem);
  }
  attempt.step = plan_power_step(entry.record, wanted, *reading, entry.applied, is_record_lost_);
  attempt.applied = {.session = reading->session, .power = wanted};
  if (wanted.limit && attempt.step.drift.empty()) {
    status.limit = reading->limit;
    status.source = power_source_name(wanted.source);
  }
  if (status.limit && reading->enforced && *reading->enforced < *status.limit)
    status.enforced = reading->enforced;
  status.problems = wanted.problems;
  if (!attempt.step.drift.empty()) status.problems.push_back(attempt.step.drift);
  attempt.before = std::exchange(entry.record, attempt.step.record);
  if (attempt.before != entry.record) {
    if (const auto saved = save_records(); !saved) {
      entry.record = attempt.before;
      entry.has_failed = true;
      status = {.gpu = gpu, .problems = std::move(status.problems)};
      status.problems.push_back("nothing is set, as what is there now cannot be recorded: " +
                                saved.error().full_message());
      set_status(entry, std::move(status));
      return finish_gpu(gpu);
    }
  }
  if (attempt.step.writes.is_empty()) return on_written(std::move(attempt), PowerWritten{});
  const auto writes = attempt.step.writes;
  ports_.write(gpu, writes, restore_limit_.value_or(ports_.call_timeout()),
               [this, attempt = std::move(attempt), round = round_,
                alive = lifetime_.watch()](const Result<PowerWritten>& written) {
                 if (alive && round == round_) on_written(attempt, written);
               });
}

void PowerController::on_written(Attempt attempt, const Result<PowerWritten>& written) {
  const DeviceUuid gpu = attempt.status.gpu;
  auto& entry = gpus_[gpu];
  if (!written) {
    // It may have had its effect: the record stays as it is.
    entry.has_failed = true;
    attempt.status = {.gpu = gpu, .problems = std::move(attempt.status.problems)};
    attempt.status.problems.push_back("cannot set its power limit or clocks: " + written.error().message());
    set_status(entry, std::move(attempt.status));
    return finish_gpu(gpu);
  }
  use_limit(attempt, *written);
  const auto& writes = attempt.step.writes;
  const bool differs = writes.limit && written->read_back && *written->read_back != *writes.limit;
  entry.has_failed = !written->limit || !written->graphics || !written->memory || differs;
  auto& power = attempt.applied.power;
  use_clocks(attempt, written->graphics, writes.graphics, "graphics", &PowerRecord::graphics, power.graphics);
  use_clocks(attempt, written->memory, writes.memory, "memory", &PowerRecord::memory, power.memory);
  entry.applied = std::move(attempt.applied);
  if (std::exchange(entry.record, attempt.step.after) != attempt.step.after) {
    if (const auto saved = save_records(); !saved)
      log::warning("cannot write the record of power limits", saved.error());
  }
  set_status(entry, std::move(attempt.status));
  finish_gpu(gpu);
}

void PowerController::use_limit(Attempt& attempt, const PowerWritten& written) {
  const auto& limit = attempt.step.writes.limit;
  if (!limit) return;
  auto& status = attempt.status;
  auto& wanted = attempt.applied.power.limit;
  if (!written.limit) {
    status.problems.push_back("cannot " + std::string(wanted ? "set" : "restore") + " the power limit " +
                              watts_text(*limit) + ": " + written.limit.error().message());
    attempt.step.after.before = attempt.before.before;
    attempt.step.after.set = attempt.before.set;
    wanted.reset();
    status = {.gpu = status.gpu, .problems = std::move(status.problems)};
    return;
  }
  if (written.read_back && *written.read_back != *limit) {
    status.problems.push_back("the power limit " + watts_text(*limit) + " is set, but the driver reads " +
                              watts_text(*written.read_back) + " back");
    attempt.step.after.before = attempt.step.record.before;
    attempt.step.after.set = {*limit, *written.read_back};
    wanted.reset();
    status = {.gpu = status.gpu, .problems = std::move(status.problems)};
    return;
  }
  log::info(wanted ? "set the power limit of a GPU" : "restored the power limit of a GPU",
            {{"gpu", gpu_name(status.gpu)},
             {"limit", watts_text(*limit)},
             {"source", wanted ? status.source : std::string("before")}});
  if (!wanted) return;
  status.limit = written.read_back.value_or(*limit);
  status.enforced.reset();
  if (written.enforced && *written.enforced < *status.limit) status.enforced = written.enforced;
}

void PowerController::use_clocks(Attempt& attempt, const Status& result,
                                 const std::optional<ClockWrite>& write, const std::string& kind,
                                 bool PowerRecord::* flag, std::optional<config::ClockRange>& last) const {
  if (!write) return;
  const std::string clocks = kind + " clocks";
  const std::string range = write->lock ? config::clock_range_text(*write->lock) + " MHz" : "none";
  if (result)
    return log::info("locked the clocks of a GPU",
                     {{"gpu", gpu_name(attempt.status.gpu)}, {"clocks", kind}, {"range", range}});
  attempt.status.problems.push_back(
      "cannot " + (write->lock ? "lock the " + clocks + " to " + range : "unlock the " + clocks) + ": " +
      result.error().message());
  attempt.step.after.*flag = attempt.before.*flag;
  last.reset();
}

void PowerController::finish_gpu(const DeviceUuid& gpu) {
  auto& entry = gpus_[gpu];
  entry.is_busy = false;
  if (entry.is_due) return update_gpu(gpu);
  const bool has_problem = entry.status && !entry.status->problems.empty();
  if (!entry.target && entry.record.is_empty() && !has_problem) {
    gpus_.erase(gpu);
  } else if (!entry.has_failed) {
    entry.backoff.reset();
  } else if (!restore_limit_) {
    if (!entry.backoff) entry.backoff.emplace(kPowerRetry, std::hash<std::string>()(gpu.str()));
    entry.retry = ports_.loop.after(entry.backoff->next_delay(), [this, gpu] {
      const DeviceUuid due = gpu;  // update_gpu() ends this function's life
      update_gpu(due);
    });
  }
  finish_restore();
}

// An Event for each problem, once for all GPUs that have the same.
void PowerController::set_status(GpuEntry& entry, GpuPowerStatus status) {
  const auto has_problem = [&](const std::string& problem) {
    return std::ranges::any_of(gpus_, [&](const auto& one) {
      return one.second.status &&
             std::ranges::find(one.second.status->problems, problem) != one.second.status->problems.end();
    });
  };
  for (const auto& problem : status.problems) {
    if (!has_problem(problem))
      ports_.reporter.report_event(Reporter::Severity::kWarning, kPowerReason,
                                   gpu_name(status.gpu) + ": " + problem);
  }
  const bool is_empty = !entry.target && status.problems.empty();
  entry.status = is_empty ? std::nullopt : std::optional(std::move(status));
}

Status PowerController::save_records() {
  if (path_.empty()) return {};
  PowerRecords records;
  for (const auto& [gpu, entry] : gpus_) {
    if (!entry.record.is_empty()) records[gpu] = entry.record;
  }
  return save_power_records(path_, records);
}

std::string PowerController::gpu_name(const DeviceUuid& gpu) const {
  const auto* found = snapshot_ ? snapshot_->find(gpu) : nullptr;
  return found != nullptr ? partition::display_name(*found) : gpu.str();
}

}  // namespace gpulet::agent

#include "agent/preflight/preflight_controller.h"

#include <algorithm>
#include <utility>

#include "agent/mig/mig_change.h"
#include "base/device_id.h"
#include "base/log.h"

namespace gpulet::agent {
namespace {

using health::FaultClass;
using preflight::Verdict;
using VerdictKind = preflight::Verdict::Kind;

constexpr const char* kWaits = "waits for its preflight";

// The Pod that holds the GPU or a part of it; empty: none.
std::string pod_on(const inventory::Gpu& gpu, const mig::PodsByDevice& pods) {
  for (const auto& [id, pod] : pods) {
    const auto uuid = without_share(id.str());
    const bool is_part = std::ranges::any_of(
        gpu.mig_devices, [&](const inventory::MigDevice& device) { return device.uuid.str() == uuid; });
    if (is_part || uuid == gpu.uuid.str()) return pod;
  }
  return {};
}

bool is_of_probe(const health::Fault& fault) {
  return fault.fault_class == FaultClass::kProbeFailed || fault.fault_class == FaultClass::kSlowCopies;
}

bool is_hindered(const PreflightNode& node, const DeviceUuid& gpu) {
  const auto* found = node.snapshot->find(gpu);
  return node.is_paused || found == nullptr || found->unreadable;
}

}  // namespace

PreflightController::PreflightController(PreflightPorts ports, preflight::BootRecord record)
    : ports_(std::move(ports)), record_(std::move(record)) {
  if (ports_.boot_id.empty() || record_.boot_id != ports_.boot_id) record_ = {ports_.boot_id, {}};
  for (const auto& [gpu, kind] : record_.gpus) results_[gpu] = {{}, {.kind = kind}};
}

void PreflightController::update_preflights() {
  if (step_ == Step::kIdle) return evaluate();
  update_requested_ = true;
  stop_hindered_runs();
  if (step_ == Step::kRun) run_next();
}

bool PreflightController::is_due_in_boot(const DeviceUuid& gpu, const preflight::Policy& policy) const {
  if (!policy.at_boot || checked_.contains(gpu)) return false;
  const auto found = record_.gpus.find(gpu);
  return found == record_.gpus.end() || found->second == VerdictKind::kFailed ||
         found->second == VerdictKind::kSlow;
}

bool PreflightController::is_waiting(const DeviceUuid& gpu) const {
  return due_.contains(gpu) || std::ranges::find(round_, gpu) != round_.end();
}

std::map<DeviceUuid, std::string> PreflightController::gpus_before_offer(
    const inventory::Snapshot& snapshot, const preflight::Policy& policy,
    const std::map<DeviceUuid, std::string>& unfit) const {
  std::map<DeviceUuid, std::string> found;
  if (!policy.enabled) return found;
  for (const auto& gpu : snapshot.gpus) {
    // A faulty one is listed as such, and returns by its evidence only.
    if (gpu.uuid.empty() || !gpu.health.healthy || unfit.contains(gpu.uuid)) continue;
    if (is_waiting(gpu.uuid) || is_due_in_boot(gpu.uuid, policy)) found[gpu.uuid] = kWaits;
  }
  return found;
}

void PreflightController::remember_timer(Time at) { next_ = next_ ? std::min(*next_, at) : at; }

// A fault that withdraws the GPU must have met its recovery condition: then its checks run, of which the
// preflight is one, as it also is when they have passed long enough.
bool PreflightController::is_return_due(const DeviceUuid& gpu, const health::DeviceStatus& status) {
  const auto now = ports_.loop.now();
  const auto result = results_.find(gpu);
  const auto last = result == results_.end() ? std::nullopt : result->second.at;
  std::optional<Time> met;
  bool waits_for_probe = false;
  for (const auto& fault : status.faults) {
    if (fault.effect < health::Effect::kDrain) continue;
    if (fault.condition_met_at) {
      met = std::max(met.value_or(*fault.condition_met_at), *fault.condition_met_at);
    } else if (is_of_probe(fault)) {
      waits_for_probe = true;
    } else {
      return false;
    }
  }
  if (waits_for_probe) {
    if (!last || now - *last >= node_->policy.retry_interval) return true;
    remember_timer(*last + node_->policy.retry_interval);
    return false;
  }
  const bool is_of_preflight = std::ranges::any_of(status.faults, is_of_probe);
  if (!met || (!node_->policy.on_return && !is_of_preflight)) return false;
  if (!last || *last < *met) return true;
  if (!status.due || *last >= *status.due) return false;
  if (now >= *status.due) return true;
  remember_timer(*status.due);
  return false;
}

bool PreflightController::is_due(const inventory::Gpu& gpu) {
  const auto* device = node_->view->find({gpu.uuid});
  if (device != nullptr && !is_allocatable(device->status.state))
    return is_return_due(gpu.uuid, device->status);
  excused_.erase(gpu.uuid);
  return is_due_in_boot(gpu.uuid, node_->policy);
}

void PreflightController::evaluate() {
  timer_.reset();
  next_.reset();
  update_requested_ = false;
  node_ = ports_.read_node();
  if (!node_) return;
  due_.clear();
  std::vector<DeviceUuid> ready;
  for (const auto& gpu : node_->snapshot->gpus) {
    if (gpu.uuid.empty() || !gpu.excluded.empty() || !node_->policy.enabled || !is_due(gpu)) continue;
    const auto unfit = node_->unfit.find(gpu.uuid);
    if (unfit != node_->unfit.end()) {
      conclude(gpu.uuid, {VerdictKind::kUnknown, unfit->second});
      continue;
    }
    due_.insert(gpu.uuid);
    if (is_hindered(*node_, gpu.uuid)) {
      remember_timer(ports_.loop.now() + kPreflightPoll);
    } else {
      ready.push_back(gpu.uuid);
    }
  }
  if (ready.empty()) return finish_round();
  begin_round(std::move(ready));
}

void PreflightController::begin_round(std::vector<DeviceUuid> gpus) {
  step_ = Step::kSettle;
  round_ = std::move(gpus);
  show_results();  // from now on a return waits for the result
  ports_.replan();
  // An Allocate that was answered before is in the kubelet's list by then.
  timer_ = ports_.loop.after(kMigSettleTime, [this] {
    step_ = Step::kList;
    ports_.pods([this, alive = lifetime_.watch()](const Result<mig::PodsByDevice>& pods) {
      if (alive) on_pods(pods);
    });
  });
}

// They stay due.
void PreflightController::stop_hindered_runs() {
  const auto node = ports_.read_node();
  std::set<DeviceUuid> hindered;
  for (const auto& gpu : round_) {
    if (!node || !node->policy.enabled || node->unfit.contains(gpu) || is_hindered(*node, gpu))
      hindered.insert(gpu);
  }
  if (hindered.empty()) return;
  remember_timer(ports_.loop.now() + kPreflightPoll);
  const auto is_out = [&](const DeviceUuid& gpu) { return hindered.contains(gpu); };
  std::erase_if(round_, is_out);
  std::erase_if(queue_, is_out);
  std::erase_if(suspect_, is_out);
  for (auto run = running_.begin(); run != running_.end();) {
    if (!is_out(run->first) && std::ranges::none_of(run->second.peers, is_out)) {
      ++run;
      continue;
    }
    ports_.stop(run->first);
    if (!is_out(run->first)) (run->second.is_alone ? suspect_ : queue_).push_back(run->first);
    run = running_.erase(run);
  }
}

void PreflightController::conclude_unknown(const std::vector<DeviceUuid>& gpus, const std::string& why) {
  for (const auto& gpu : gpus) conclude(gpu, {VerdictKind::kUnknown, why});
}

void PreflightController::on_pods(const Result<mig::PodsByDevice>& pods) {
  stop_hindered_runs();
  if (!pods) {
    const auto now = ports_.loop.now();
    if (!pods_unknown_since_) pods_unknown_since_ = now;
    if (now - *pods_unknown_since_ < kPreflightPodsLimit) {
      remember_timer(now + kPreflightPoll);
    } else {
      conclude_unknown(round_, "cannot list the Pods that hold it: " + pods.error().full_message());
    }
    return finish_round();
  }
  pods_unknown_since_.reset();
  std::erase_if(round_, [&](const DeviceUuid& uuid) {
    const auto* gpu = node_->snapshot->find(uuid);
    const auto pod = gpu == nullptr ? std::string() : pod_on(*gpu, *pods);
    if (!pod.empty()) conclude(uuid, {VerdictKind::kUnknown, "held by Pod " + pod});
    return !pod.empty();
  });
  if (round_.empty()) return finish_round();
  ports_.processes(round_, [this, alive = lifetime_.watch()](const Result<PreflightPorts::Holders>& holders) {
    if (alive) on_processes(holders);
  });
}

void PreflightController::on_processes(const Result<PreflightPorts::Holders>& holders) {
  stop_hindered_runs();
  if (!holders) {
    conclude_unknown(round_, "cannot list the processes that use it: " + holders.error().full_message());
    return finish_round();
  }
  std::erase_if(round_, [&](const DeviceUuid& gpu) {
    const auto found = holders->find(gpu);
    const bool is_held = found != holders->end() && !found->second.empty();
    if (is_held) conclude(gpu, {VerdictKind::kUnknown, "held by " + found->second.front().name});
    return is_held;
  });
  step_ = Step::kRun;
  queue_.assign(round_.begin(), round_.end());
  run_next();
}

void PreflightController::run_next() {
  while (!queue_.empty() && running_.size() < node_->policy.parallel) {
    const auto gpu = queue_.front();
    queue_.pop_front();
    start_run(gpu, false);
  }
  if (queue_.empty() && running_.empty() && !suspect_.empty()) {
    const auto gpu = suspect_.front();
    suspect_.pop_front();
    start_run(gpu, true);
  }
  if (queue_.empty() && running_.empty()) finish_round();
}

// Another one of the round, as none of it is offered before its end. The peer may be at fault instead: a
// second run has another one, and after a hang none.
std::vector<DeviceUuid> PreflightController::peers_of(const DeviceUuid& gpu, bool is_alone) const {
  if (round_.size() < 2 || hung_.contains(gpu)) return {};
  const auto at = static_cast<std::size_t>(std::ranges::find(round_, gpu) - round_.begin());
  return {round_[(is_alone ? at + round_.size() - 1 : at + 1) % round_.size()]};
}

void PreflightController::start_run(const DeviceUuid& gpu, bool is_alone) {
  const auto id = ++last_run_;
  const auto peers = peers_of(gpu, is_alone);
  running_[gpu] = {id, is_alone, peers};
  ports_.run(gpu, peers, node_->policy,
             [this, gpu, id, alive = lifetime_.watch()](const preflight::RunResult& run) {
               if (alive) on_run(gpu, id, run);
             });
}

void PreflightController::on_run(const DeviceUuid& gpu, std::uint64_t id, const preflight::RunResult& run) {
  const auto found = running_.find(gpu);
  if (found == running_.end() || found->second.id != id) return;
  const bool was_alone = found->second.is_alone;
  running_.erase(found);
  auto verdict = preflight::judge_run(run, gpu.str(), hung_.contains(gpu));
  const bool has_hung = verdict.kind == VerdictKind::kRunAgain;
  if (has_hung) hung_.insert(gpu);
  if (has_hung || (verdict.kind == VerdictKind::kSlow && !was_alone)) {
    suspect_.push_back(gpu);
  } else {
    conclude(gpu, std::move(verdict));
  }
  stop_hindered_runs();
  run_next();
}

void PreflightController::conclude(const DeviceUuid& gpu, Verdict verdict) {
  const auto kind = verdict.kind;
  const auto text = verdict.text;
  due_.erase(gpu);
  checked_.insert(gpu);
  auto [recorded, is_new] = record_.gpus.try_emplace(gpu, kind);
  if (is_new || std::exchange(recorded->second, kind) != kind) is_saved_ = false;
  results_[gpu] = {ports_.loop.now(), std::move(verdict)};
  ++tally_[std::string(enum_name(kind))];
  log::info("preflight of a GPU",
            {{"gpu", gpu.str()}, {"result", std::string(enum_name(kind))}, {"text", text}});
  if (kind == VerdictKind::kUnknown) {
    excused_.insert(gpu);
    return;
  }
  const bool has_passed = kind != VerdictKind::kFailed;
  ports_.submit(gpu, {has_passed, has_passed ? "" : text, kind == VerdictKind::kSlow ? text : ""});
}

void PreflightController::finish_round() {
  const bool was_round = step_ != Step::kIdle;
  step_ = Step::kIdle;
  round_.clear();
  hung_.clear();
  timer_.reset();
  std::string text;
  for (const auto& [result, count] : std::exchange(tally_, {}))
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + result;
  if (!text.empty())
    ports_.reporter.report_event(Reporter::Severity::kNormal, "GpuPreflight", "GPUs checked: " + text);
  if (!std::exchange(is_saved_, true)) ports_.save(record_);
  show_results();
  if (was_round || !text.empty()) ports_.replan();
  if (update_requested_) remember_timer(ports_.loop.now());
  if (next_)
    timer_ = ports_.loop.after(std::max<Duration>(*next_ - ports_.loop.now(), Duration::zero()),
                               [this] { evaluate(); });
}

void PreflightController::show_results() {
  std::map<DeviceUuid, Preflights::OfGpu> shown;
  for (const auto& [gpu, status] : results_) {
    auto& one = shown[gpu];
    one.result = enum_name(status.verdict.kind);
    one.detail = status.verdict.text;
    const bool is_fault =
        status.verdict.kind == VerdictKind::kFailed || status.verdict.kind == VerdictKind::kSlow;
    if (excused_.contains(gpu)) {
      one.absent = "the preflight did not run: " + one.detail;
    } else if (!node_->policy.on_return && !is_fault) {
      one.absent = kNoReturn;
    }
  }
  for (const auto& gpu : node_->snapshot->gpus) {
    if (!is_waiting(gpu.uuid)) continue;
    auto& one = shown[gpu.uuid];
    one.absent.reset();
    // A fault stays until it is over.
    if (one.result != "failed" && one.result != "slow") {
      one.result = "waiting";
      one.detail.clear();
    }
  }
  ports_.show(std::move(shown));
}

}  // namespace gpulet::agent

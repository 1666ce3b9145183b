#include "agent/preflight/preflight_controller.h"

#include <algorithm>
#include <utility>

#include "agent/mig/mig_change.h"
#include "agent/node/gpu_processes.h"
#include "base/log.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

using health::FaultClass;
using preflight::Verdict;
using VerdictKind = preflight::Verdict::Kind;

constexpr const char* kWaits = "waits for its preflight";

bool is_of_probe(const health::Fault& fault) {
  return fault.fault_class == FaultClass::kProbeFailed || fault.fault_class == FaultClass::kSlowCopies;
}

bool is_fault(VerdictKind kind) { return kind == VerdictKind::kFailed || kind == VerdictKind::kSlow; }

// What the GPU waits for; empty: nothing.
std::string find_hindrance(const PreflightNode& node, const DeviceUuid& gpu) {
  if (!node.paused.empty()) return node.paused;
  const auto paused = node.paused_gpus.find(gpu);
  if (paused != node.paused_gpus.end()) return paused->second;
  const auto* found = node.snapshot->find(gpu);
  return found == nullptr || found->unreadable ? "for the driver" : "";
}

}  // namespace

PreflightController::PreflightController(PreflightPorts ports, preflight::BootRecord record)
    : ports_(std::move(ports)), record_(std::move(record)) {
  if (ports_.boot_id.empty() || record_.boot_id != ports_.boot_id) record_ = {ports_.boot_id, {}};
  interrupted_ = record_.started;
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
  return found == record_.gpus.end() || is_fault(found->second);
}

preflight::BootRecord PreflightController::record_at_end() const {
  auto record = record_;
  for (const auto& [gpu, run] : running_) record.started.erase(gpu);
  return record;
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
    if (gpu.uuid.empty() || !gpu.excluded.empty() || !gpu.health.healthy || unfit.contains(gpu.uuid))
      continue;
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
    const bool is_reset_since = last && status.reset_at && *status.reset_at > *last;
    if (!last || is_reset_since || now - *last >= node_->policy.retry_interval) return true;
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
  conclude_interrupted();
  std::vector<DeviceUuid> ready;
  for (const auto& gpu : node_->snapshot->gpus) {
    if (gpu.uuid.empty() || !gpu.excluded.empty() || !node_->policy.enabled || !is_due(gpu)) continue;
    const auto unfit = node_->unfit.find(gpu.uuid);
    if (unfit != node_->unfit.end()) {
      conclude(gpu.uuid, {VerdictKind::kUnknown, unfit->second});
      continue;
    }
    due_.insert(gpu.uuid);
    if (find_hindrance(*node_, gpu.uuid).empty()) {
      ready.push_back(gpu.uuid);
    } else {
      remember_timer(ports_.loop.now() + kPreflightPoll);
    }
  }
  if (ready.empty()) return finish_round();
  begin_round(std::move(ready));
}

// Its memory counts as the agent's: once more may end this agent too.
void PreflightController::conclude_interrupted() {
  for (const auto& gpu : std::exchange(interrupted_, {}))
    conclude(gpu, {VerdictKind::kUnknown, "the agent ended during its preflight"});
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
    if (!node || !node->policy.enabled || node->unfit.contains(gpu) || !find_hindrance(*node, gpu).empty())
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
    if (run->second.has_begun) ports_.stop(run->first);
    if (record_.started.erase(run->first) > 0) is_saved_ = false;
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
    const auto holders = gpu == nullptr ? std::vector<std::string>() : pods_on(*gpu, *pods);
    if (!holders.empty()) conclude(uuid, {VerdictKind::kUnknown, "held by Pod " + holders.front()});
    return !holders.empty();
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
  if (queue_.empty() && running_.empty() && have_all_hung()) excuse_hangs();
  if (queue_.empty() && running_.empty() && !suspect_.empty()) {
    const auto gpu = suspect_.front();
    suspect_.pop_front();
    start_run(gpu, true);
  }
  if (queue_.empty() && running_.empty()) finish_round();
}

// Two or more, in their first run.
bool PreflightController::have_all_hung() const {
  return round_.size() >= 2 && suspect_.size() == round_.size() && hung_.size() == round_.size();
}

void PreflightController::excuse_hangs() {
  const auto limit =
      format_duration(std::chrono::duration_cast<std::chrono::milliseconds>(node_->policy.timeout));
  const auto why = "no GPU's checks ended within " + limit + ": gpulet.preflight.timeout may be too short";
  ports_.reporter.report_event(Reporter::Severity::kWarning, "GpuPreflight",
                               "all " + std::to_string(round_.size()) + " GPUs count as unknown: " + why);
  const auto gpus = std::exchange(suspect_, {});
  conclude_unknown({gpus.begin(), gpus.end()}, why);
}

// For a second run: one that seems fit, and not the peer of the first.
std::optional<DeviceUuid> PreflightController::other_peer(const DeviceUuid& gpu) const {
  const auto first = first_peers_.find(gpu);
  const auto size = round_.size();
  const auto at = static_cast<std::size_t>(std::ranges::find(round_, gpu) - round_.begin());
  std::optional<DeviceUuid> suspect;
  for (std::size_t i = 1; i < size; ++i) {
    const auto& peer = round_[(at + size - i) % size];
    const bool is_first = first != first_peers_.end() && first->second == peer;
    if (is_first || hung_.contains(peer) || faulty_.contains(peer)) continue;
    if (std::ranges::find(suspect_, peer) == suspect_.end()) return peer;
    if (!suspect) suspect = peer;
  }
  return suspect;
}

// Another one of the round, as none of it is offered before its end; after a hang none, as it may have hung.
std::vector<DeviceUuid> PreflightController::peers_of(const DeviceUuid& gpu, bool is_alone) const {
  if (round_.size() < 2 || hung_.contains(gpu)) return {};
  if (is_alone) {
    const auto peer = other_peer(gpu);
    return peer ? std::vector{*peer} : std::vector<DeviceUuid>();
  }
  const auto at = static_cast<std::size_t>(std::ranges::find(round_, gpu) - round_.begin());
  return {round_[(at + 1) % round_.size()]};
}

// It begins once it is recorded.
void PreflightController::start_run(const DeviceUuid& gpu, bool is_alone) {
  const auto id = ++last_run_;
  auto peers = peers_of(gpu, is_alone);
  if (!is_alone && !peers.empty()) first_peers_.insert_or_assign(gpu, peers.front());
  running_[gpu] = {id, is_alone, std::move(peers)};
  record_.started.insert(gpu);
  is_saved_ = true;
  ports_.save(record_, [this, gpu, id, alive = lifetime_.watch()] {
    if (alive) begin_run(gpu, id);
  });
}

void PreflightController::begin_run(const DeviceUuid& gpu, std::uint64_t id) {
  const auto found = running_.find(gpu);
  if (found == running_.end() || found->second.id != id) return;
  found->second.has_begun = true;
  ports_.run(gpu, found->second.peers, node_->policy,
             [this, gpu, id, alive = lifetime_.watch()](const preflight::RunResult& run) {
               if (alive) on_run(gpu, id, run);
             });
}

void PreflightController::on_run(const DeviceUuid& gpu, std::uint64_t id, const preflight::RunResult& run) {
  const auto found = running_.find(gpu);
  if (found == running_.end() || found->second.id != id) return;
  const bool was_alone = found->second.is_alone;
  running_.erase(found);
  if (record_.started.erase(gpu) > 0) is_saved_ = false;
  auto verdict = preflight::judge_run(run, gpu.str(), hung_.contains(gpu));
  const bool has_hung = verdict.kind == VerdictKind::kRunAgain;
  if (has_hung) hung_.insert(gpu);
  bool is_suspect = has_hung;
  if (preflight::has_peer_fault(verdict) && !(was_alone && peer_suspects_.contains(gpu))) {
    // A fault of one peer: with another one it counts.
    verdict = preflight::judge_own_checks(std::move(verdict));
    if (verdict.kind != VerdictKind::kFailed && !was_alone && other_peer(gpu))
      is_suspect = peer_suspects_.insert(gpu).second;
  }
  if (is_suspect || (verdict.kind == VerdictKind::kSlow && !was_alone)) {
    suspect_.push_back(gpu);
  } else {
    conclude(gpu, std::move(verdict));
  }
  stop_hindered_runs();
  run_next();
}

bool PreflightController::is_withdrawn(const DeviceUuid& gpu) const {
  const auto* device = node_->view->find({gpu});
  return device != nullptr && !is_allocatable(device->status.state);
}

void PreflightController::conclude(const DeviceUuid& gpu, Verdict verdict) {
  const auto kind = verdict.kind;
  const auto text = verdict.text;
  due_.erase(gpu);
  checked_.insert(gpu);
  if (record_.started.erase(gpu) > 0) is_saved_ = false;
  ++tally_[std::string(enum_name(kind))];
  log::info("preflight of a GPU",
            {{"gpu", gpu.str()}, {"result", std::string(enum_name(kind))}, {"text", text}});
  if (kind == VerdictKind::kUnknown) {
    excused_[gpu] = text;
  } else {
    excused_.erase(gpu);
  }
  auto& status = results_[gpu];
  status.at = ports_.loop.now();
  // A fault stays shown until a check shows that it is over.
  if (kind == VerdictKind::kUnknown && is_fault(status.verdict.kind) && is_withdrawn(gpu)) return;
  auto [recorded, is_new] = record_.gpus.try_emplace(gpu, kind);
  if (is_new || std::exchange(recorded->second, kind) != kind) is_saved_ = false;
  status.verdict = std::move(verdict);
  if (kind == VerdictKind::kUnknown) return;
  if (is_fault(kind)) faulty_.insert(gpu);
  const bool has_passed = kind != VerdictKind::kFailed;
  ports_.submit(gpu, {has_passed, has_passed ? "" : text, kind == VerdictKind::kSlow ? text : ""});
}

void PreflightController::finish_round() {
  const bool was_round = step_ != Step::kIdle;
  step_ = Step::kIdle;
  round_.clear();
  hung_.clear();
  faulty_.clear();
  peer_suspects_.clear();
  first_peers_.clear();
  timer_.reset();
  std::string text;
  for (const auto& [result, count] : std::exchange(tally_, {}))
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + result;
  if (!text.empty())
    ports_.reporter.report_event(Reporter::Severity::kNormal, "GpuPreflight", "GPUs checked: " + text);
  if (!std::exchange(is_saved_, true)) ports_.save(record_, nullptr);
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
    if (const auto excused = excused_.find(gpu); excused != excused_.end()) {
      one.absent = "the preflight did not run: " + excused->second;
    } else if (!node_->policy.on_return && !is_fault(status.verdict.kind)) {
      one.absent = kNoReturn;
    }
  }
  for (const auto& gpu : node_->snapshot->gpus) {
    if (!is_waiting(gpu.uuid)) continue;
    auto& one = shown[gpu.uuid];
    one.absent.reset();
    const auto known = results_.find(gpu.uuid);
    if (known != results_.end() && is_fault(known->second.verdict.kind) && is_withdrawn(gpu.uuid)) continue;
    one.result = "waiting";
    one.detail = find_hindrance(*node_, gpu.uuid);
    if (one.detail.empty() && pods_unknown_since_) one.detail = "for the kubelet's list of Pods";
  }
  ports_.show(std::move(shown));
}

}  // namespace gpulet::agent

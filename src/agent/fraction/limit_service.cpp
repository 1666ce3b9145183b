#include "agent/fraction/limit_service.h"

#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/text.h"
#include "nvml/memory_limits.h"

namespace gpulet::agent {
namespace {

Error limit_deadline(const std::string& why) {
  return {Code::kDeadlineExceeded, why + " within " + format_duration(kLimitAnswerLimit)};
}

// The cgroup is gone, or never had a limit, or the driver has no limits: nothing is left to clear.
bool is_cleared(const Status& result) {
  return result || result.error().code() == Code::kNotFound || result.error().code() == Code::kUnsupported;
}

}  // namespace

LimitService::LimitService(LimitPorts ports, LimitRecordStore store)
    : ports_(std::move(ports)), store_(std::move(store)) {
  load_records();
}

void LimitService::load_records() {
  auto loaded = store_.load_records();
  if (!loaded) return log::warning("cannot read the records of memory limits", loaded.error());
  for (const auto& error : loaded->errors) log::warning("cannot read the record of a memory limit", error);
  for (auto& record : loaded->records) {
    const auto id = record.container_id;
    auto& limited = containers_[id];
    limited.record = std::move(record);
    watch_container(id, limited);
  }
}

void LimitService::answer_request(const LimitRequest& request, Done done) {
  const auto& id = request.container_id;
  const auto cgroup = ports_.find_cgroup(request.pid, request.cgroup);
  if (!cgroup) return done(fail(cgroup.error()));
  if (cgroup->names.uid != request.pod_uid || cgroup->names.container != id) {
    return done(fail(Code::kPermissionDenied, "the process is in the cgroup of Pod " + cgroup->names.uid +
                                                  ", container " + cgroup->names.container +
                                                  ", but the container runtime says Pod " + request.pod_uid +
                                                  ", container " + id));
  }
  const auto known = containers_.find(id);
  const bool is_busy = known != containers_.end() && known->second.phase != Phase::kHeld &&
                       known->second.phase != Phase::kStale;
  if (is_busy || pending_.contains(id))
    return done(fail(Code::kUnavailable, "the limits of this container are being set already"));
  if (pending_.size() >= kMaxPendingLimits)
    return done(fail(Code::kUnavailable, "too many containers wait for their memory limits"));
  auto& pending = pending_[id];
  pending.request = request;
  pending.cgroup = cgroup->directory;
  pending.pod_cgroup = cgroup->pod;
  pending.done = std::move(done);
  pending.until = ports_.loop.now() + kLimitAnswerLimit;
  pending.deadline = ports_.loop.after(kLimitAnswerLimit, [this, id] {
    refuse_pending(id, {}, limit_deadline("the kubelet or the API server has not said what it requests"));
  });
  resolve_pending(id, {});
}

// `result`: of the last round of reads, which began after the request if it has asked for one.
void LimitService::resolve_pending(const std::string& id, const Status& result) {
  auto& pending = pending_.at(id);
  const auto limits = ports_.find_limits(pending.request.pod_uid, pending.request.container);
  using State = ContainerLimits::State;
  if (limits.state == State::kUnknown) {
    if (!std::exchange(pending.has_asked, true))
      return ports_.refresh_pods({pending.request.name_space, pending.request.pod, pending.request.pod_uid});
    // The ledger tries again after a failure.
    if (!result) return;
    return refuse_pending(
        id, {},
        {Code::kNotFound, "the kubelet lists no GPU of container " + pending.request.container + " of Pod " +
                              pending.request.pod_uid});
  }
  if (limits.state == State::kRefused)
    return refuse_pending(id, limits.pod, {Code::kInvalidArgument, limits.reason});
  pending.deadline.reset();
  if (ports_.hold_compute) return hold_compute(id, limits);
  auto resolved = pending_.extract(id);
  if (limits.limits.empty()) return resolved.mapped().done({});
  begin_setting(std::move(resolved.mapped()), limits);
}

void LimitService::hold_compute(const std::string& id, const ContainerLimits& limits) {
  auto& pending = pending_.at(id);
  pending.is_holding_compute = true;
  ports_.hold_compute(
      limits, pending.until - ports_.loop.now(),
      [this, id, limits, alive = lifetime_.watch()](const Status& held) {
        if (!alive) return;
        auto resolved = pending_.extract(id);
        if (!held) {
          ports_.notify({limits.pod, kComputeRefusedReason,
                         "container " + resolved.mapped().request.container +
                             " does not start without its compute limit: " + held.error().full_message()});
          return resolved.mapped().done(held);
        }
        if (limits.limits.empty()) return resolved.mapped().done({});
        begin_setting(std::move(resolved.mapped()), limits);
      });
}

void LimitService::on_pods_read(const Status& result) {
  std::vector<std::string> waiting;
  for (const auto& [id, pending] : pending_) {
    if (!pending.is_holding_compute) waiting.push_back(id);
  }
  for (const auto& id : waiting) {
    if (pending_.contains(id)) resolve_pending(id, result);
  }
}

void LimitService::refuse_pending(const std::string& id, const PodRef& pod, const Error& why) {
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;
  const auto refused = std::move(found->second);
  pending_.erase(found);
  notify_refusal(pod, refused.request.container, why);
  refused.done(fail(why));
}

void LimitService::notify_refusal(const PodRef& pod, const std::string& container, const Error& why) {
  if (pod.uid.empty()) return log::warning("a container does not start without its memory limit", why);
  const auto what = "container " + container + " does not start without its memory limit: ";
  ports_.notify({pod, kLimitRefusedReason, what + why.full_message()});
}

void LimitService::begin_setting(Pending pending, const ContainerLimits& limits) {
  const auto id = pending.request.container_id;
  LimitRecord record{id, limits.pod, pending.request.container, pending.cgroup, limits.limits};
  for (const auto& [gpu, limit] : limits.limits) {
    if (!pending.pod_cgroup.empty() && !limits.unlimited.contains(gpu) && ports_.counts_for_ancestors(gpu))
      record.pod_gpus.insert(gpu);
  }
  if (!record.pod_gpus.empty()) record.pod_cgroup = pending.pod_cgroup;
  if (const auto written = store_.write_record(record); !written) {
    notify_refusal(limits.pod, pending.request.container, written.error());
    return pending.done(fail(written.error()));
  }
  auto& limited = containers_[id];
  limited.record = std::move(record);
  limited.phase = Phase::kSetting;
  limited.is_again_due = false;
  limited.done = std::move(pending.done);
  limited.deadline = ports_.loop.after(pending.until - ports_.loop.now(), [this, id] {
    const auto found = containers_.find(id);
    if (found == containers_.end() || !found->second.done) return;
    // What the driver does meanwhile is cleared when it answers.
    const auto done = std::exchange(found->second.done, nullptr);
    const auto why = limit_deadline("the driver has not set the limit");
    notify_refusal(found->second.record.pod, found->second.record.container, why);
    done(fail(why));
  });
  set_next(id, 0);
}

void LimitService::set_next(const std::string& id, std::size_t index) {
  auto& limited = containers_.at(id);
  if (index == limited.record.limits.size()) {
    if (std::exchange(limited.is_again_due, false)) return set_next(id, 0);
    return finish_setting(id);
  }
  const auto gpu = std::next(limited.record.limits.begin(), static_cast<std::ptrdiff_t>(index))->first;
  settle_pod(limited.record, gpu, [this, id, index, gpu](const Status& settled) {
    if (settled) return set_own(id, index);
    fail_setting(id, settled.error().with_context(gpu.str()));
  });
}

void LimitService::set_own(const std::string& id, std::size_t index) {
  auto& limited = containers_.at(id);
  const auto entry = std::next(limited.record.limits.begin(), static_cast<std::ptrdiff_t>(index));
  const DeviceUuid& gpu = entry->first;
  ports_.set_limit(gpu, limited.record.cgroup, entry->second,
                   [this, id, index, gpu = gpu, alive = lifetime_.watch()](const Status& result) {
                     if (!alive) return;
                     if (result) return set_next(id, index + 1);
                     fail_setting(id, result.error().with_context(gpu.str()));
                   });
}

// Of the containers that run or are about to; 0: there are none.
Bytes LimitService::pod_limit(const LimitRecord& record, const DeviceUuid& gpu) const {
  Bytes sum;
  bool is_limited = ports_.counts_for_ancestors(gpu);  // it may not be since the driver was loaded again
  for (const auto& [id, limited] : containers_) {
    const bool is_over = limited.phase == Phase::kClearing || limited.phase == Phase::kStale;
    const auto limit = limited.record.limits.find(gpu);
    if (is_over || limited.record.pod.uid != record.pod.uid || limit == limited.record.limits.end()) continue;
    is_limited = is_limited && limited.record.pod_gpus.contains(gpu);
    sum.value += limit->second.value;
  }
  return sum == Bytes{} || is_limited ? sum : nvml::kNoMemoryLimit;
}

// The driver takes calls in their order, so the last sum stands.
void LimitService::settle_pod(const LimitRecord& record, const DeviceUuid& gpu, Done done) {
  if (!record.pod_gpus.contains(gpu)) return done({});
  const auto settled = [done = std::move(done), alive = lifetime_.watch()](const Status& result) {
    if (alive) done(is_cleared(result) ? Status{} : result);
  };
  const auto limit = pod_limit(record, gpu);
  if (limit == Bytes{}) return ports_.clear_limit(gpu, record.pod_cgroup, settled);
  ports_.set_pod_limit(
      gpu, record.pod_cgroup, limit,
      [this, gpu, cgroup = record.pod_cgroup, settled, alive = lifetime_.watch()](const Status& set) {
        if (!alive || is_cleared(set)) return settled(set);
        log::warning("a Pod has no memory limit of its own; its containers have theirs", set.error());
        ports_.set_pod_limit(gpu, cgroup, nvml::kNoMemoryLimit, settled);
      });
}

void LimitService::finish_setting(const std::string& id) {
  auto& limited = containers_.at(id);
  const bool is_abandoned = limited.phase == Phase::kSetting && !limited.done;
  limited.phase = Phase::kHeld;
  limited.is_lost = false;
  limited.deadline.reset();
  if (is_abandoned) return begin_clearing(id);
  const auto done = std::exchange(limited.done, nullptr);
  watch_container(id, limited);
  if (done) done({});
  // Its end may have come before the watch.
  if (!ports_.has_processes(limited.record.cgroup)) on_end(id);
}

void LimitService::fail_setting(const std::string& id, const Error& why) {
  auto& limited = containers_.at(id);
  const auto& record = limited.record;
  if (limited.phase == Phase::kRestoring) {
    limited.phase = Phase::kHeld;
    limited.is_lost = true;
    if (!ports_.has_processes(record.cgroup)) return on_end(id);
    ports_.notify(
        {record.pod, kLimitLostReason,
         "container " + record.container +
             " runs without its memory limit since the driver was loaded again: " + why.full_message()});
    if (std::exchange(limited.is_again_due, false)) restore_one(id);
    return;
  }
  limited.deadline.reset();
  if (const auto done = std::exchange(limited.done, nullptr)) {
    notify_refusal(record.pod, record.container, why);
    done(fail(why));
  }
  begin_clearing(id);
}

// Without a watch the end is seen by the next restore_limits() only.
void LimitService::watch_container(const std::string& id, Limited& limited) {
  if (limited.watch) return;
  auto watch = ports_.watch_end(limited.record.cgroup, [this, id] { on_end(id); });
  if (!watch && watch.error().code() != Code::kNotFound)
    log::warning("cannot watch a container with a memory limit", watch.error());
  limited.watch = watch ? std::move(*watch) : Subscription();
}

// Also called for one that is being set or restored: that ends with it.
void LimitService::on_end(const std::string& id) {
  const auto found = containers_.find(id);
  if (found == containers_.end() || found->second.phase != Phase::kHeld) return;
  begin_clearing(id);
}

void LimitService::begin_clearing(const std::string& id) {
  auto& limited = containers_.at(id);
  limited.phase = Phase::kClearing;
  limited.is_again_due = limited.has_clear_error = false;
  clear_next(id, 0);
}

void LimitService::clear_next(const std::string& id, std::size_t index) {
  auto& limited = containers_.at(id);
  if (index == limited.record.limits.size()) return finish_clearing(id);
  const auto& gpu = std::next(limited.record.limits.begin(), static_cast<std::ptrdiff_t>(index))->first;
  ports_.clear_limit(gpu, limited.record.cgroup,
                     [this, id, index, gpu = gpu, alive = lifetime_.watch()](const Status& result) {
                       if (!alive) return;
                       note_clear_error(id, gpu, result);
                       settle_pod(containers_.at(id).record, gpu,
                                  [this, id, index, gpu](const Status& settled) {
                                    note_clear_error(id, gpu, settled);
                                    clear_next(id, index + 1);
                                  });
                     });
}

void LimitService::note_clear_error(const std::string& id, const DeviceUuid& gpu, const Status& result) {
  auto& limited = containers_.at(id);
  if (!is_cleared(result) && !std::exchange(limited.has_clear_error, true))
    limited.clear_error = result.error().with_context(gpu.str());
}

void LimitService::finish_clearing(const std::string& id) {
  auto& limited = containers_.at(id);
  limited.watch.reset();
  if (limited.has_clear_error) {
    log::warning(
        "cannot clear the memory limit of a container that has ended; it is tried again when the "
        "driver is back, and when the agent starts",
        limited.clear_error);
    limited.phase = Phase::kStale;
    if (std::exchange(limited.is_again_due, false)) begin_clearing(id);
    return;
  }
  if (const auto removed = store_.remove_record(id); !removed)
    log::warning("cannot remove the record of a memory limit", removed.error());
  containers_.erase(id);
}

bool LimitService::is_in_force(const std::string& container_id, const DeviceUuid& gpu) const {
  const auto found = containers_.find(container_id);
  return found != containers_.end() && found->second.phase == Phase::kHeld && !found->second.is_lost &&
         found->second.record.limits.contains(gpu);
}

void LimitService::restore_limits() {
  std::vector<std::string> ids;
  for (const auto& [id, limited] : containers_) ids.push_back(id);
  for (const auto& id : ids) restore_one(id);
}

void LimitService::restore_one(const std::string& id) {
  const auto found = containers_.find(id);
  if (found == containers_.end()) return;
  auto& limited = found->second;
  if (limited.phase == Phase::kStale) return begin_clearing(id);
  if (limited.phase != Phase::kHeld) {
    limited.is_again_due = true;
    return;
  }
  if (!ports_.has_processes(limited.record.cgroup)) return begin_clearing(id);
  limited.phase = Phase::kRestoring;
  set_next(id, 0);
}

}  // namespace gpulet::agent

#include "health/policy/eviction_policy.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/text.h"

namespace gpulet::health {
namespace {

using Act = EvictionDecision::Act;
using std::chrono::seconds;

struct Unit {
  char letter;
  std::int64_t seconds;
};
constexpr Unit kUnits[] = {{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}};
constexpr std::string_view kFinishPrefix = "finish=";

std::string grace_time_text(Duration time) {
  const auto whole = std::chrono::duration_cast<seconds>(time).count();
  const auto unit = std::ranges::find_if(kUnits, [&](const Unit& u) { return whole % u.seconds == 0; });
  return std::to_string(whole / unit->seconds) + unit->letter;
}

std::optional<Duration> parse_grace_time(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const auto unit = std::ranges::find(kUnits, text.back(), &Unit::letter);
  const auto count = text::parse_unsigned(text.substr(0, text.size() - 1));
  const auto most = static_cast<std::uint64_t>(std::chrono::duration_cast<seconds>(kMaxGrace).count());
  if (unit == std::end(kUnits) || !count || *count == 0 || *count > most) return std::nullopt;
  const Duration time = seconds(static_cast<std::int64_t>(*count) * unit->seconds);
  return time <= kMaxGrace ? std::optional(time) : std::nullopt;
}

// Whether Pods may override the grace: not for a cordon or an unavailable driver, which are no faults of the
// GPU.
bool pods_may_override(FaultClass fault_class) {
  return fault_class != FaultClass::kCordoned && fault_class != FaultClass::kDriverAway;
}

// A fault that withdraws the device and is not about to end.
bool needs_eviction(const Fault& fault) { return fault.effect >= Effect::kDrain && !fault.due; }

// The grace from the annotation of the Pod or its namespace.
struct PodPreference {
  std::optional<Grace> grace;
  std::string source;  // "its annotation"
};

PodPreference pod_preference(const PodOnDevice& pod) {
  const bool own = pod.annotation.has_value();
  const auto& annotation = own ? pod.annotation : pod.namespace_annotation;
  if (!annotation) return {};
  const std::string whose = own ? "its annotation" : "its namespace's annotation";
  const auto grace = parse_grace(*annotation);
  // A value that cannot be parsed was meant to differ from the policy: the safe reading is to stay.
  if (!grace) return {Grace{}, whose + " " + kGraceAnnotation + " cannot be parsed, so the Pod stays"};
  return {*grace, whose + " says " + grace_text(*grace)};
}

// The grace of one cause for one Pod.
struct EvictionRequest {
  Scope device;
  std::optional<FaultClass> fault_class;  // as in EvictionDecision
  Time since{};
  std::string cause;  // "XID 79: GPU has fallen off the bus"
  Grace grace;
  std::string reason;
  bool is_of_gpu() const { return fault_class && *fault_class != FaultClass::kCordoned; }
  std::optional<Time> evict_at() const {
    if (grace.kind == Grace::Kind::kEvict) return since;
    if (grace.kind == Grace::Kind::kFinish && grace.deadline) return since + *grace.deadline;
    return std::nullopt;
  }
  // Smaller is stricter.
  auto rank() const {
    const auto when = evict_at();
    return std::tuple(!when, when.value_or(Time{}), grace.kind == Grace::Kind::kStay);
  }
};

bool holds_device(const PodOnDevice& pod, const Scope& device) {
  return std::ranges::any_of(pod.devices,
                             [&](const Scope& held) { return device.covers(held) || held.covers(device); });
}

std::optional<EvictionRequest> strictest_request(const EvictionInputs& node, const PodOnDevice& pod,
                                                 const EvictionPolicy& policy) {
  std::optional<EvictionRequest> worst;
  const PodPreference word = pod_preference(pod);
  for (const auto& device : node.devices) {
    if (is_allocatable(device.status.state) || !holds_device(pod, device.device)) continue;
    for (const auto& fault : device.status.faults) {
      if (!needs_eviction(fault)) continue;
      EvictionRequest ask{.device = device.device,
                          .fault_class = fault.fault_class,
                          .since = fault.opened,
                          .cause = fault.fault_text(),
                          .grace = policy.grace_for(fault),
                          .reason = {}};
      ask.reason = "the policy says " + grace_text(ask.grace);
      if (word.grace && pods_may_override(fault.fault_class)) {
        ask.grace = *word.grace;
        ask.reason = word.source;
      }
      if (!worst || ask.rank() < worst->rank()) worst = std::move(ask);
    }
  }
  return worst;
}

std::optional<EvictionRequest> access_request(const CutOffPod& cut_off, const EvictionPolicy& policy) {
  if (policy.access_lost.kind == Grace::Kind::kStay) return std::nullopt;
  const PodPreference word = pod_preference(cut_off.pod);
  const std::string by_policy = "the policy says " + grace_text(policy.access_lost);
  return EvictionRequest{.device = {},
                         .fault_class = std::nullopt,
                         .since = cut_off.since,
                         .cause = cut_off.finding,
                         .grace = word.grace.value_or(policy.access_lost),
                         .reason = word.grace ? word.source : by_policy};
}

// Why this Pod is never evicted; empty if it may be.
std::string exemption_of(const PodOnDevice& pod, const EvictionPolicy& policy) {
  if (!policy.enabled) return "eviction is disabled";
  if (!pod.mirror && pod.owner.empty() && (policy.bare_pods || pod.annotation)) return {};
  return no_return_reason(pod.owner, pod.mirror);
}

// Why the node's state forbids evictions; empty if it does not.
std::string node_block_reason(const EvictionInputs& node, const EvictionPolicy& policy,
                              const EvictionLog& log, Time now) {
  std::set<DeviceUuid> broken;
  for (const auto& [device, status] : node.devices) {
    const bool fault = std::ranges::any_of(status.faults, [](const Fault& one) {
      return one.effect >= Effect::kDrain && one.fault_class != FaultClass::kCordoned;
    });
    if (!is_allocatable(status.state) && fault) broken.insert(device.gpu);
  }
  for (const auto& [uid, entry] : log.evictions()) {
    if (entry.fault && now - entry.at < policy.unhealthy_gpus_window) broken.insert(entry.gpu);
  }
  const auto allowed = std::max(1u, node.gpus * std::min(policy.max_unhealthy_gpus_percent, 100u) / 100);
  if (broken.size() <= allowed) return {};
  return std::to_string(broken.size()) + " of " + std::to_string(node.gpus) +
         " GPUs are unhealthy, more than " + std::to_string(allowed) + ": the cause is not a single GPU";
}

// The times of the next evictions, so that no window has more than max_evictions.
class EvictionRateLimit {
 public:
  EvictionRateLimit(const EvictionPolicy& policy, const EvictionLog& log)
      : max_evictions_(policy.max_evictions), window_(policy.max_evictions_window) {
    for (const auto& [uid, entry] : log.evictions()) times_.push_back(entry.at);
    std::ranges::sort(times_);
  }
  // The next eviction's time, `now` or later; nullopt for never.
  std::optional<Time> reserve_slot(Time now) {
    if (max_evictions_ == 0) return std::nullopt;
    Time at = now;
    if (times_.size() >= max_evictions_) at = std::max(now, times_[times_.size() - max_evictions_] + window_);
    times_.push_back(at);
    return at;
  }

 private:
  std::size_t max_evictions_;
  Duration window_;
  std::vector<Time> times_;  // ascending
};

using ActWithReason = std::pair<Act, std::string>;

ActWithReason decide_act(const EvictionRequest& ask, std::string never, Time now) {
  if (!never.empty()) return {Act::kNotify, std::move(never)};
  if (ask.grace.kind == Grace::Kind::kStay) return {Act::kNotify, ask.reason};
  const auto leave = ask.evict_at();
  if (!leave) return {Act::kFinish, ask.reason};
  return {*leave > now ? Act::kEvictAt : Act::kEvict, ask.reason};
}

// An eviction that is due, and since when.
struct DueEviction {
  std::size_t decision;
  Time since;
};

// Oldest first; those above the limit get a later time.
void apply_rate_limit(std::vector<EvictionDecision>& decisions, std::vector<DueEviction>& due,
                      const EvictionPolicy& policy, const EvictionLog& log, Time now) {
  const auto place = [&](const DueEviction& one) {
    const EvictionDecision& of = decisions[one.decision];
    return std::tie(one.since, of.name_space, of.name, of.uid);
  };
  std::ranges::sort(due, [&](const DueEviction& a, const DueEviction& b) { return place(a) < place(b); });
  EvictionRateLimit rate(policy, log);
  for (const auto& one : due) {
    EvictionDecision& decision = decisions[one.decision];
    const auto at = rate.reserve_slot(now);
    if (at == now) continue;
    decision.act = at ? Act::kEvictAt : Act::kBlocked;
    decision.at = at;
    decision.reason += "; at most " + std::to_string(policy.max_evictions) +
                       " Pods may leave the node within " + grace_time_text(policy.max_evictions_window);
  }
}

}  // namespace

std::string no_return_reason(std::string_view owner, bool mirror) {
  if (mirror || owner == "Node") return "a static Pod, which the kubelet runs regardless of the API server";
  if (owner == "DaemonSet") return "a DaemonSet Pod, which would return to this node";
  if (owner.empty()) return "a Pod without an owner, which nothing would restart";
  return {};
}

std::string grace_text(const Grace& grace) {
  switch (grace.kind) {
    case Grace::Kind::kStay:
      return "stay";
    case Grace::Kind::kFinish:
      return grace.deadline ? std::string(kFinishPrefix) + grace_time_text(*grace.deadline) : "finish";
    case Grace::Kind::kEvict:
      return "evict";
  }
  return "stay";
}

Result<Grace> parse_grace(std::string_view text) {
  if (text == "stay") return Grace{Grace::Kind::kStay, {}};
  if (text == "evict") return Grace{Grace::Kind::kEvict, {}};
  if (text == "finish") return Grace{Grace::Kind::kFinish, {}};
  if (text.starts_with(kFinishPrefix)) {
    const auto time = parse_grace_time(text.substr(kFinishPrefix.size()));
    if (time) return Grace{Grace::Kind::kFinish, *time};
  }
  return fail(Code::kInvalidArgument,
              "expected stay, finish, evict or finish=TIME (for example finish=30m, at most 30d)",
              std::string(text.substr(0, 64)));
}

std::string_view enum_name(EvictionDecision::Act act) {
  switch (act) {
    case Act::kNotify:
      return "notify";
    case Act::kFinish:
      return "finish";
    case Act::kEvictAt:
      return "evict-at";
    case Act::kBlocked:
      return "blocked";
    case Act::kEvict:
      return "evict";
    case Act::kTerminating:
      return "terminating";
  }
  return "notify";
}

Grace EvictionPolicy::grace_for(const Fault& fault) const {
  const auto own = class_graces.find(fault.fault_class);
  if (own != class_graces.end()) return own->second;
  if (fault.fault_class == FaultClass::kDriverAway) return {};
  switch (fault.effect) {
    case Effect::kIgnore:
    case Effect::kFlag:
      return {};
    case Effect::kDrain:
      return draining;
    case Effect::kQuarantine:
      return quarantined;
    case Effect::kLose:
      return lost;
  }
  return {};
}

void EvictionLog::record_eviction(const EvictionDecision& decision, Time now) {
  const bool is_fault = decision.fault_class && *decision.fault_class != FaultClass::kCordoned;
  entries_[decision.uid] = {now, decision.device.gpu, is_fault};
}

void EvictionLog::prune(std::span<const PodOnDevice> pods, const EvictionPolicy& policy, Time now) {
  std::set<std::string_view> known;
  for (const auto& pod : pods) known.insert(pod.uid);
  const Duration window = std::max(policy.max_evictions_window, policy.unhealthy_gpus_window);
  std::erase_if(entries_, [&](const auto& entry) {
    return now - entry.second.at >= window && !known.contains(entry.first);
  });
}

std::vector<EvictionDecision> decide_evictions(const EvictionInputs& node, std::span<const PodOnDevice> pods,
                                               const EvictionPolicy& policy, const EvictionLog& log,
                                               Time now) {
  std::vector<EvictionDecision> decisions;
  std::vector<DueEviction> due;
  const std::string broken = node_block_reason(node, policy, log, now);
  const auto add_decision = [&](const PodOnDevice& pod, const EvictionRequest& ask) {
    const bool left = pod.terminating || log.evictions().contains(pod.uid);
    auto [act, why] = left ? ActWithReason{Act::kTerminating, pod.terminating ? "it is terminating"
                                                                              : "its eviction was requested"}
                           : decide_act(ask, exemption_of(pod, policy), now);
    if (act == Act::kEvict && !node.blocked_reason.empty()) {
      std::tie(act, why) = std::pair(Act::kBlocked, node.blocked_reason);
    } else if (act == Act::kEvict && !broken.empty() && ask.is_of_gpu()) {
      std::tie(act, why) = std::pair(Act::kBlocked, broken);
    }
    if (act == Act::kEvict) due.push_back({decisions.size(), *ask.evict_at()});
    decisions.push_back({.name_space = pod.name_space,
                         .name = pod.name,
                         .uid = pod.uid,
                         .device = ask.device,
                         .fault_class = ask.fault_class,
                         .act = act,
                         .at = act == Act::kEvictAt ? ask.evict_at() : std::nullopt,
                         .reason = ask.cause + "; " + why,
                         .dry_run = policy.dry_run});
  };
  std::map<std::string_view, EvictionRequest> cut_off;  // by the Pod's uid
  for (const auto& one : node.cut_off) {
    if (auto ask = access_request(one, policy)) cut_off.emplace(one.pod.uid, std::move(*ask));
  }
  for (const auto& pod : pods) {
    auto ask = strictest_request(node, pod, policy);
    if (!ask) continue;
    const auto other = cut_off.find(pod.uid);
    if (other != cut_off.end()) {
      if (other->second.rank() < ask->rank()) ask = std::move(other->second);
      cut_off.erase(other);
    }
    add_decision(pod, *ask);
  }
  for (const auto& one : node.cut_off) {
    const auto ask = cut_off.find(one.pod.uid);
    if (ask != cut_off.end()) add_decision(one.pod, ask->second);
  }
  apply_rate_limit(decisions, due, policy, log, now);
  std::ranges::sort(decisions, {},
                    [](const EvictionDecision& one) { return std::tie(one.name_space, one.name, one.uid); });
  return decisions;
}

}  // namespace gpulet::health

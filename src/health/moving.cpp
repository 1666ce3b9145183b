#include "health/moving.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/text.h"

namespace gpulet::health {
namespace {

using Act = Decision::Act;
using std::chrono::seconds;

struct Unit {
  char letter;
  std::int64_t seconds;
};
constexpr Unit kUnits[] = {{'d', 86400}, {'h', 3600}, {'m', 60}, {'s', 1}};
constexpr std::string_view kFinishPrefix = "finish=";

std::string time_text(Duration time) {
  const auto whole = std::chrono::duration_cast<seconds>(time).count();
  const auto unit = std::ranges::find_if(kUnits, [&](const Unit& u) { return whole % u.seconds == 0; });
  return std::to_string(whole / unit->seconds) + unit->letter;
}

std::optional<Duration> parse_time(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const auto unit = std::ranges::find(kUnits, text.back(), &Unit::letter);
  const auto count = text::parse_unsigned(text.substr(0, text.size() - 1));
  const auto most = static_cast<std::uint64_t>(std::chrono::duration_cast<seconds>(kMaxGrace).count());
  if (unit == std::end(kUnits) || !count || *count == 0 || *count > most) return std::nullopt;
  const Duration time = seconds(static_cast<std::int64_t>(*count) * unit->seconds);
  return time <= kMaxGrace ? std::optional(time) : std::nullopt;
}

// What a fault is to those on the device: a wish of the operator's, or of the driver's host, is no fault of
// the GPU, and no Pod has a say in it.
bool pods_may_say(FaultClass fault_class) {
  return fault_class != FaultClass::kCordoned && fault_class != FaultClass::kDriverAway;
}

// A fault that withdraws the device, and does not end by itself in a moment.
bool asks(const Fault& fault) { return fault.effect >= Effect::kDrain && !fault.due; }

// What a Pod's own words, or its namespace's, come to.
struct Word {
  std::optional<Grace> grace;
  std::string whose;  // "its annotation"
};

Word word_of(const PodOnDevice& pod) {
  const bool own = pod.annotation.has_value();
  const auto& said = own ? pod.annotation : pod.namespace_annotation;
  if (!said) return {};
  const std::string whose = own ? "its annotation" : "its namespace's annotation";
  const auto grace = parse_grace(*said);
  // Whoever wrote it wanted something else than the policy: the least that can be wrong is to let it stay.
  if (!grace) return {Grace{}, whose + " " + kGraceAnnotation + " is not understood, so it stays"};
  return {*grace, whose + " says " + text(*grace)};
}

// What one fault asks of one Pod.
struct Ask {
  const DeviceStanding* device = nullptr;
  const Fault* fault = nullptr;
  Grace grace;
  std::string why;
  std::optional<Time> leave() const {
    if (grace.kind == Grace::Kind::kEvict) return fault->opened;
    if (grace.kind == Grace::Kind::kFinish && grace.deadline) return fault->opened + *grace.deadline;
    return std::nullopt;
  }
  // Smaller asks for more.
  auto rank() const {
    const auto when = leave();
    return std::tuple(!when, when.value_or(Time{}), grace.kind == Grace::Kind::kStay);
  }
};

bool holds(const PodOnDevice& pod, const Scope& device) {
  return std::ranges::any_of(pod.devices,
                             [&](const Scope& held) { return device.covers(held) || held.covers(device); });
}

std::optional<Ask> worst_ask(const MovingNode& node, const PodOnDevice& pod, const MovingPolicy& policy) {
  std::optional<Ask> worst;
  const Word word = word_of(pod);
  for (const auto& device : node.devices) {
    if (offered(device.standing.state) || !holds(pod, device.device)) continue;
    for (const auto& fault : device.standing.faults) {
      if (!asks(fault)) continue;
      Ask ask{&device, &fault, policy.grace(fault), ""};
      ask.why = "the policy says " + text(ask.grace);
      if (word.grace && pods_may_say(fault.fault_class)) {
        ask.grace = *word.grace;
        ask.why = word.whose;
      }
      if (!worst || ask.rank() < worst->rank()) worst = std::move(ask);
    }
  }
  return worst;
}

// Why this Pod is never moved, whatever its fault.
std::string never(const PodOnDevice& pod, const MovingPolicy& policy) {
  if (!policy.enabled) return "moving Pods is off";
  if (pod.mirror || pod.owner == "Node")
    return "a static Pod, which the kubelet runs whatever the API server says";
  if (pod.owner == "DaemonSet") return "a DaemonSet's Pod, which would come back here";
  if (pod.owner.empty() && !policy.bare_pods && !pod.annotation) {
    return "a Pod without an owner, which nobody would start again";
  }
  return {};
}

// Why nobody is moved from broken GPUs now; empty when they may be.
std::string breaker(const MovingNode& node, const MovingPolicy& policy, const MovingLog& log, Time now) {
  std::set<DeviceUuid> broken;
  for (const auto& [device, standing] : node.devices) {
    const bool fault = std::ranges::any_of(standing.faults, [](const Fault& one) {
      return one.effect >= Effect::kDrain && one.fault_class != FaultClass::kCordoned;
    });
    if (!offered(standing.state) && fault) broken.insert(device.gpu);
  }
  for (const auto& [uid, entry] : log.entries()) {
    if (entry.fault && now - entry.at < policy.breaker_window) broken.insert(entry.gpu);
  }
  const auto allowed = std::max(1u, node.gpus * std::min(policy.breaker_percent, 100u) / 100);
  if (broken.size() <= allowed) return {};
  return std::to_string(broken.size()) + " of " + std::to_string(node.gpus) + " GPUs are broken, more than " +
         std::to_string(allowed) + ": that is no fault of single GPUs";
}

// When the next ones may leave, so that no window has more than the policy's number.
class Rate {
 public:
  Rate(const MovingPolicy& policy, const MovingLog& log) : rate_(policy.rate), window_(policy.rate_window) {
    for (const auto& [uid, entry] : log.entries()) times_.push_back(entry.at);
    std::ranges::sort(times_);
  }
  // The next one's time, which is `now` or later; nullopt for never.
  std::optional<Time> next(Time now) {
    if (rate_ == 0) return std::nullopt;
    Time at = now;
    if (times_.size() >= rate_) at = std::max(now, times_[times_.size() - rate_] + window_);
    times_.push_back(at);
    return at;
  }

 private:
  std::size_t rate_;
  Duration window_;
  std::vector<Time> times_;  // ascending
};

using Judged = std::pair<Act, std::string>;

Judged judge(const Ask& ask, std::string never, Time now) {
  if (!never.empty()) return {Act::kTell, std::move(never)};
  if (ask.grace.kind == Grace::Kind::kStay) return {Act::kTell, ask.why};
  const auto leave = ask.leave();
  if (!leave) return {Act::kFinish, ask.why};
  return {*leave > now ? Act::kEvictAt : Act::kEvict, ask.why};
}

// One that is due, with what its place in the queue goes by.
struct Due {
  std::size_t decision;
  Time since;
};

// Whoever has been due the longest goes first; those beyond the rate go later.
void ration(std::vector<Decision>& decisions, std::vector<Due>& due, const MovingPolicy& policy,
            const MovingLog& log, Time now) {
  const auto place = [&](const Due& one) {
    const Decision& of = decisions[one.decision];
    return std::tie(one.since, of.name_space, of.name, of.uid);
  };
  std::ranges::sort(due, [&](const Due& a, const Due& b) { return place(a) < place(b); });
  Rate rate(policy, log);
  for (const auto& one : due) {
    Decision& decision = decisions[one.decision];
    const auto at = rate.next(now);
    if (at == now) continue;
    decision.act = at ? Act::kEvictAt : Act::kHold;
    decision.at = at;
    decision.reason += "; no more than " + std::to_string(policy.rate) + " leave the node within " +
                       time_text(policy.rate_window);
  }
}

}  // namespace

std::string text(const Grace& grace) {
  switch (grace.kind) {
    case Grace::Kind::kStay:
      return "stay";
    case Grace::Kind::kFinish:
      return grace.deadline ? std::string(kFinishPrefix) + time_text(*grace.deadline) : "finish";
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
    const auto time = parse_time(text.substr(kFinishPrefix.size()));
    if (time) return Grace{Grace::Kind::kFinish, *time};
  }
  return fail(Code::kInvalidArgument,
              "neither stay, finish, evict nor finish=TIME, such as finish=30m, of at most 30d",
              std::string(text.substr(0, 64)));
}

std::string_view name(Decision::Act act) {
  switch (act) {
    case Act::kTell:
      return "tell";
    case Act::kFinish:
      return "finish";
    case Act::kEvictAt:
      return "evict-at";
    case Act::kHold:
      return "hold";
    case Act::kEvict:
      return "evict";
    case Act::kLeaving:
      return "leaving";
  }
  return "tell";
}

Grace MovingPolicy::grace(const Fault& fault) const {
  const auto own = graces.find(fault.fault_class);
  if (own != graces.end()) return own->second;
  if (fault.fault_class == FaultClass::kDriverAway) return {};
  switch (fault.effect) {
    case Effect::kIgnore:
    case Effect::kFlag:
      return {};
    case Effect::kDrain:
      return drained;
    case Effect::kQuarantine:
      return quarantined;
    case Effect::kLose:
      return lost;
  }
  return {};
}

void MovingLog::add(const Decision& decision, Time now) {
  entries_[decision.uid] = {now, decision.device.gpu, decision.fault_class != FaultClass::kCordoned};
}

void MovingLog::tidy(std::span<const PodOnDevice> pods, const MovingPolicy& policy, Time now) {
  std::set<std::string_view> known;
  for (const auto& pod : pods) known.insert(pod.uid);
  const Duration window = std::max(policy.rate_window, policy.breaker_window);
  std::erase_if(entries_, [&](const auto& entry) {
    return now - entry.second.at >= window && !known.contains(entry.first);
  });
}

std::vector<Decision> decide_moves(const MovingNode& node, std::span<const PodOnDevice> pods,
                                   const MovingPolicy& policy, const MovingLog& log, Time now) {
  std::vector<Decision> decisions;
  std::vector<Due> due;
  const std::string broken = breaker(node, policy, log, now);
  for (const auto& pod : pods) {
    const auto ask = worst_ask(node, pod, policy);
    if (!ask) continue;
    const bool left = pod.leaving || log.entries().contains(pod.uid);
    const bool operators = ask->fault->fault_class == FaultClass::kCordoned;
    auto [act, why] = left ? Judged{Act::kLeaving, pod.leaving ? "it is leaving" : "it was asked to leave"}
                           : judge(*ask, never(pod, policy), now);
    if (act == Act::kEvict && !node.hold.empty()) {
      std::tie(act, why) = std::pair(Act::kHold, node.hold);
    } else if (act == Act::kEvict && !broken.empty() && !operators) {
      std::tie(act, why) = std::pair(Act::kHold, broken);
    }
    if (act == Act::kEvict) due.push_back({decisions.size(), *ask->leave()});
    decisions.push_back({.name_space = pod.name_space,
                         .name = pod.name,
                         .uid = pod.uid,
                         .device = ask->device->device,
                         .fault_class = ask->fault->fault_class,
                         .act = act,
                         .at = act == Act::kEvictAt ? ask->leave() : std::nullopt,
                         .reason = ask->fault->text() + "; " + why,
                         .dry_run = policy.dry_run});
  }
  ration(decisions, due, policy, log, now);
  std::ranges::sort(decisions, {},
                    [](const Decision& one) { return std::tie(one.name_space, one.name, one.uid); });
  return decisions;
}

}  // namespace gpulet::health

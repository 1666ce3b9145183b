#include "agent/fault_pods.h"

#include <algorithm>

#include "base/log.h"
#include "health/telling.h"

namespace gpulet::agent {
namespace {

// Of the Pods alone: "<uuid>" or "<uuid>::<n>".
DeviceUuid uuid_of(const DeviceId& id) { return DeviceUuid(id.str().substr(0, id.str().find("::"))); }

std::optional<std::string> value_of(const cluster::Annotations& annotations, const char* key) {
  const auto found = annotations.find(key);
  return found == annotations.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

FaultPods::FaultPods(FaultPodsPorts ports, std::uint64_t seed)
    : ports_(std::move(ports)), backoff_(kPodsBackoff, seed) {}

void FaultPods::update(const health::View& view, Wants wants) {
  learn(view);
  if (wants.all && !swept_) sweep_ = true;
  wants_ = wants;
  if (faulty_.empty() && !sweep_) {
    next_.reset();
    return;
  }
  // What was learned long ago, while its devices were well, tells and moves nobody.
  for (auto& [name, known] : pods_) {
    if (matters(known) && !younger(known.read, kFactsKept)) known.facts.reset();
  }
  look();
}

// A MIG device whose GPU is gone has no UUID any more: what it was is remembered.
void FaultPods::learn(const health::View& view) {
  faulty_.clear();
  for (const auto& device : view.devices) {
    if (health::told(device)) faulty_.insert(device.scope);
    if (!device.uuid.empty()) scopes_[device.uuid] = device.scope;
  }
  if (scopes_.size() <= kMaxKnownDevices) return;
  std::erase_if(scopes_, [&](const auto& entry) {
    return std::ranges::find(view.devices, entry.first, &health::DeviceView::uuid) == view.devices.end();
  });
}

void FaultPods::look() {
  next_.reset();
  if (looking_ || reading_ > 0) {
    again_ = true;
    return;
  }
  looking_ = true;
  again_ = round_failed_ = false;
  const auto answered = [this, round = ++round_, alive = std::weak_ptr(alive_)](const auto& holders) {
    if (!alive.lock() || !looking_ || round != round_) return;
    looking_ = false;
    limit_.reset();
    on_holders(holders);
  };
  limit_ = ports_.loop.after(kHoldersLimit, [answered] {
    answered(Result<std::vector<kubelet::ContainerDevices>>(fail(Code::kDeadlineExceeded, "no answer")));
  });
  ports_.holders(answered);
}

void FaultPods::on_holders(const Result<std::vector<kubelet::ContainerDevices>>& holders) {
  if (!holders) {
    failed(holders.error().with("cannot ask the kubelet which Pods hold a device"));
    return settle();
  }
  std::map<Name, std::set<health::Scope>> held;
  for (const auto& container : *holders) {
    for (const auto& [resource, ids] : container.devices) {
      for (const auto& id : ids) {
        const auto scope = scopes_.find(uuid_of(id));
        if (scope != scopes_.end()) held[{container.name_space, container.pod}].insert(scope->second);
      }
    }
  }
  std::erase_if(pods_, [&](const auto& entry) { return !held.contains(entry.first); });
  for (auto& [name, devices] : held) {
    Known& known = pods_[name];
    // Another Pod of the same name, perhaps: the kubelet does not say.
    if (known.devices != devices) known = {std::move(devices), std::nullopt, std::nullopt};
  }
  std::erase_if(spaces_, [&](const auto& entry) {
    const auto in = [&](const auto& pod) { return pod.first.first == entry.first; };
    return std::ranges::none_of(pods_, in);
  });
  read_pods();
}

bool FaultPods::matters(const Known& known) const {
  return sweep_ || std::ranges::any_of(known.devices, [&](const health::Scope& held) {
           return std::ranges::any_of(faulty_, [&](const health::Scope& faulty) {
             return faulty.covers(held) || held.covers(faulty);
           });
         });
}

bool FaultPods::younger(const std::optional<Time>& read, Duration than) const {
  return read && ports_.loop.now() - *read < than;
}

void FaultPods::read_pods() {
  ++reading_;  // so that no answer ends the round before all are asked
  for (auto& [name, known] : pods_) {
    if (!matters(known)) continue;
    if (wants_.namespaces) read_namespace(name.first);
    if (known.facts && younger(known.read, kFactsFresh)) continue;
    ++reading_;
    ports_.reader.pod(name.first, name.second,
                      [this, name = name, alive = std::weak_ptr(alive_)](const auto& facts) {
                        if (!alive.lock()) return;
                        --reading_;
                        const auto found = pods_.find(name);
                        if (!facts) {
                          failed(facts.error());
                        } else if (found != pods_.end()) {
                          found->second.facts = *facts;
                          found->second.read = ports_.loop.now();
                        }
                        settle();
                      });
  }
  --reading_;
  settle();
}

void FaultPods::read_namespace(const std::string& name) {
  Space& space = spaces_[name];
  if (space.reading || younger(space.read, kFactsFresh)) return;
  space.reading = true;
  ++reading_;
  ports_.reader.namespace_annotations(name,
                                      [this, name, alive = std::weak_ptr(alive_)](const auto& annotations) {
                                        if (!alive.lock()) return;
                                        --reading_;
                                        auto& known = spaces_[name];
                                        known.reading = false;
                                        if (annotations) {
                                          known.annotations = *annotations;
                                          known.read = ports_.loop.now();
                                        } else {
                                          failed(annotations.error());
                                        }
                                        settle();
                                      });
}

// Said once for each kind, until a round is without trouble.
void FaultPods::failed(const Error& error) {
  round_failed_ = true;
  trouble_ = error.text();
  // A right that is missing is missing for all, whatever the words.
  if (!told_.insert(error.code() == Code::kPermissionDenied ? error.about() : std::string(name(error.code())))
           .second)
    return;
  log::warning("it is not known which Pods hold a device with a fault; trying again", error);
}

// The end of a round: all that was asked is answered.
void FaultPods::settle() {
  if (looking_ || reading_ > 0) return;
  if (!round_failed_) {
    swept_ = swept_ || sweep_;
    sweep_ = false;
    trouble_.clear();
    told_.clear();
    backoff_.reset();
  }
  if (again_) {
    next_ = ports_.loop.after(kLookAgain, [this] { look(); });
  } else if (round_failed_) {
    next_ = ports_.loop.after(backoff_.next(), [this] { look(); });
  } else if (!faulty_.empty()) {
    next_ = ports_.loop.after(kPodsPoll, [this] { look(); });
  }
  const auto changed = ports_.changed;
  changed();
}

std::vector<HeldPod> FaultPods::pods() const {
  std::vector<HeldPod> pods;
  for (const auto& [name, known] : pods_) {
    if (!known.facts) continue;
    HeldPod held;
    held.pod = {.name_space = name.first,
                .name = name.second,
                .uid = known.facts->pod.uid,
                .owner = known.facts->owner,
                .mirror = known.facts->mirror,
                .leaving = known.facts->leaving,
                .annotation = value_of(known.facts->annotations, health::kGraceAnnotation),
                .devices = {known.devices.begin(), known.devices.end()}};
    const auto space = spaces_.find(name.first);
    const bool asked = space != spaces_.end() && younger(space->second.read, kFactsKept);
    if (asked) held.pod.namespace_annotation = value_of(space->second.annotations, health::kGraceAnnotation);
    held.sure = younger(known.read, kFactsKept) && (asked || held.pod.annotation);
    held.note = value_of(known.facts->annotations, health::kFaultAnnotation);
    pods.push_back(std::move(held));
  }
  return pods;
}

}  // namespace gpulet::agent

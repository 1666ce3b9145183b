#include "agent/remediation/pod_device_index.h"

#include <algorithm>
#include <set>

#include "base/device_id.h"
#include "base/log.h"
#include "health/report/node_health.h"

namespace gpulet::agent {
namespace {

// Device ids are "<uuid>" or "<uuid>::<n>".

std::optional<std::string> annotation_value(const k8s::Annotations& annotations, const char* key) {
  const auto found = annotations.find(key);
  return found == annotations.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

PodDeviceIndex::PodDeviceIndex(PodDeviceIndexPorts ports, std::uint64_t seed)
    : ports_(std::move(ports)), backoff_(kPodsRetryBackoff, seed) {}

void PodDeviceIndex::update_index(const health::HealthView& view, Options wants) {
  update_scopes(view);
  if (wants.all_pods && !all_read_) read_all_ = true;
  options_ = wants;
  if (faulty_.empty() && !read_all_) {
    next_.reset();
    return;
  }
  // Data from before the fault is too old to act on.
  for (auto& [name, known] : pods_) {
    if (is_relevant(known) && !is_fresh(known.read, kPodInfoMaxAge)) known.facts.reset();
  }
  refresh_pods();
}

// A MIG device of a removed GPU has no UUID any more: remember its scope.
void PodDeviceIndex::update_scopes(const health::HealthView& view) {
  faulty_.clear();
  for (const auto& device : view.devices) {
    if (health::has_reportable_fault(device)) faulty_.insert(device.scope);
    if (!device.uuid.empty()) scopes_[device.uuid] = device.scope;
  }
  if (scopes_.size() <= kMaxKnownDevices) return;
  std::erase_if(scopes_, [&](const auto& entry) {
    return std::ranges::find(view.devices, entry.first, &health::DeviceView::uuid) == view.devices.end();
  });
}

void PodDeviceIndex::refresh_pods() {
  next_.reset();
  if (refreshing_ || reading_ > 0) {
    refresh_again_ = true;
    return;
  }
  refreshing_ = true;
  refresh_again_ = round_failed_ = false;
  const auto answered = [this, round = ++round_, alive = lifetime_.watch()](const auto& holders) {
    if (!alive || !refreshing_ || round != round_) return;
    refreshing_ = false;
    limit_.reset();
    on_holders(holders);
  };
  limit_ = ports_.loop.after(kHoldersTimeout, [answered] {
    answered(Result<std::vector<ContainerDevices>>(fail(Code::kDeadlineExceeded, "no answer")));
  });
  ports_.holders(answered);
}

void PodDeviceIndex::on_holders(const Result<std::vector<ContainerDevices>>& holders) {
  if (!holders) {
    on_failure(holders.error().with_context("cannot read the device allocations from the kubelet"));
    return finish_refresh();
  }
  std::map<Name, std::set<health::Scope>> held;
  for (const auto& container : *holders) {
    for (const auto& [resource, ids] : container.devices) {
      for (const auto& id : ids) {
        const auto scope = scopes_.find(uuid_of_device(id));
        if (scope != scopes_.end())
          held[{container.pod.name_space, container.pod.name}].insert(scope->second);
      }
    }
  }
  std::erase_if(pods_, [&](const auto& entry) { return !held.contains(entry.first); });
  for (auto& [name, devices] : held) {
    PodEntry& known = pods_[name];
    // Perhaps another Pod of the same name: PodResources has no uid.
    if (known.devices != devices) known = {std::move(devices), std::nullopt, std::nullopt};
  }
  std::erase_if(namespaces_, [&](const auto& entry) {
    const auto in = [&](const auto& pod) { return pod.first.first == entry.first; };
    return std::ranges::none_of(pods_, in);
  });
  read_pods();
}

bool PodDeviceIndex::is_relevant(const PodEntry& known) const {
  return read_all_ || std::ranges::any_of(known.devices, [&](const health::Scope& held) {
           return std::ranges::any_of(faulty_, [&](const health::Scope& faulty) {
             return faulty.covers(held) || held.covers(faulty);
           });
         });
}

bool PodDeviceIndex::is_fresh(const std::optional<Time>& read, Duration than) const {
  return read && ports_.loop.now() - *read < than;
}

void PodDeviceIndex::read_pods() {
  ++reading_;  // so that no response ends the round before all requests are sent
  for (auto& [name, known] : pods_) {
    if (!is_relevant(known)) continue;
    if (options_.namespaces) read_namespace(name.first);
    if (known.facts && is_fresh(known.read, kPodInfoTtl)) continue;
    ++reading_;
    ports_.reader.read_pod(name.first, name.second,
                           [this, pod = name, alive = lifetime_.watch()](const auto& facts) {
                             if (!alive) return;
                             --reading_;
                             const auto found = pods_.find(pod);
                             if (!facts) {
                               on_failure(facts.error());
                             } else if (found != pods_.end()) {
                               found->second.facts = *facts;
                               found->second.read = ports_.loop.now();
                             }
                             finish_refresh();
                           });
  }
  --reading_;
  finish_refresh();
}

void PodDeviceIndex::read_namespace(const std::string& name) {
  NamespaceEntry& space = namespaces_[name];
  if (space.reading || is_fresh(space.read, kPodInfoTtl)) return;
  space.reading = true;
  ++reading_;
  ports_.reader.read_namespace_annotations(name,
                                           [this, name, alive = lifetime_.watch()](const auto& annotations) {
                                             if (!alive) return;
                                             --reading_;
                                             auto& known = namespaces_[name];
                                             known.reading = false;
                                             if (annotations) {
                                               known.annotations = *annotations;
                                               known.read = ports_.loop.now();
                                             } else {
                                               on_failure(annotations.error());
                                             }
                                             finish_refresh();
                                           });
}

// Logged once for each kind, until a round succeeds.
void PodDeviceIndex::on_failure(const Error& error) {
  round_failed_ = true;
  problem_ = error.full_message();
  // A missing permission is the same problem for all Pods.
  if (!reported_problems_
           .insert(error.code() == Code::kPermissionDenied ? error.subject()
                                                           : std::string(code_name(error.code())))
           .second)
    return;
  log::warning("cannot determine which Pods hold a faulty device; retrying", error);
}

// Ends the round once all requests have a response.
void PodDeviceIndex::finish_refresh() {
  if (refreshing_ || reading_ > 0) return;
  if (!round_failed_) {
    all_read_ = all_read_ || read_all_;
    read_all_ = false;
    problem_.clear();
    reported_problems_.clear();
    backoff_.reset();
  }
  if (refresh_again_) {
    next_ = ports_.loop.after(kRefreshMinInterval, [this] { refresh_pods(); });
  } else if (round_failed_) {
    next_ = ports_.loop.after(backoff_.next_delay(), [this] { refresh_pods(); });
  } else if (!faulty_.empty()) {
    next_ = ports_.loop.after(kPodsPollInterval, [this] { refresh_pods(); });
  }
  const auto changed = ports_.changed;
  changed();
}

health::PodOnDevice evictable_pod(const k8s::PodMetadata& pod) {
  return {.name_space = pod.pod.name_space,
          .name = pod.pod.name,
          .uid = pod.pod.uid,
          .owner = pod.owner,
          .mirror = pod.mirror,
          .terminating = pod.terminating,
          .annotation = annotation_value(pod.annotations, health::kGraceAnnotation)};
}

std::vector<HeldPod> PodDeviceIndex::held_pods() const {
  std::vector<HeldPod> pods;
  for (const auto& [name, known] : pods_) {
    if (!known.facts) continue;
    HeldPod held;
    held.pod = evictable_pod(*known.facts);
    held.pod.devices.assign(known.devices.begin(), known.devices.end());
    const auto space = namespaces_.find(name.first);
    const bool asked = space != namespaces_.end() && is_fresh(space->second.read, kPodInfoMaxAge);
    if (asked)
      held.pod.namespace_annotation = annotation_value(space->second.annotations, health::kGraceAnnotation);
    held.is_current = is_fresh(known.read, kPodInfoMaxAge) && (asked || held.pod.annotation);
    held.annotation = annotation_value(known.facts->annotations, health::kFaultAnnotation);
    pods.push_back(std::move(held));
  }
  return pods;
}

PodLabelCache::PodLabelCache(Loop& loop, k8s::ObjectReader& reader,
                             std::function<void(const Labels&)> on_changed)
    : loop_(loop), reader_(reader), on_changed_(std::move(on_changed)) {}

void PodLabelCache::on_containers(const std::vector<ContainerDevices>& containers) {
  std::set<PodName> there;
  for (const auto& one : containers) {
    if (!one.devices.empty()) there.insert(one.pod);
  }
  std::erase_if(pods_, [&](const auto& known) { return !there.contains(known.first); });
  for (const auto& pod : there) {
    auto& known = pods_[pod];
    const bool fresh = known.read && loop_.now() - *known.read < kPodLabelsTtl;
    if (!fresh && !std::exchange(known.reading, true)) request_labels(pod);
  }
  publish_if_changed();
}

void PodLabelCache::request_labels(const PodName& pod) {
  reader_.read_pod(
      pod.name_space, pod.name, [this, pod](const Result<std::optional<k8s::PodMetadata>>& facts) {
        const auto known = pods_.find(pod);
        if (known == pods_.end()) return;
        known->second.reading = false;
        if (!facts) {
          if (const auto text = facts.error().full_message(); std::exchange(reported_problem_, text) != text)
            log::warning("cannot read the labels of Pods", facts.error());
          return;
        }
        reported_problem_.clear();
        known->second.read = loop_.now();
        known->second.labels = *facts ? (*facts)->labels : std::map<std::string, std::string>{};
        publish_if_changed();
      });
}

void PodLabelCache::publish_if_changed() {
  Labels labels;
  for (const auto& [pod, known] : pods_) {
    if (!known.labels.empty()) labels[pod] = known.labels;
  }
  if (labels == labels_) return;
  labels_ = std::move(labels);
  on_changed_(labels_);
}

}  // namespace gpulet::agent

#include "agent/remediation/cut_off_pods.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace gpulet::agent {

CutOffPods::CutOffPods(CutOffPodPorts ports) : ports_(std::move(ports)) {
  next_ = ports_.loop.after(kAccessConfirmInterval, [this] { start_round(); });
}

std::optional<std::vector<std::string>> CutOffPods::cut_off_containers() const {
  if (!are_cgroups_seen_ || (cut_off_.empty() && answers_unknown_)) return std::nullopt;
  std::vector<std::string> texts;
  for (const auto& [id, found] : cut_off_)
    texts.push_back("Pod " + found.pod.name_space + "/" + found.pod.name + ": " + found.text);
  std::ranges::sort(texts);
  return texts;
}

void CutOffPods::start_round() {
  seen_.clear();
  answered_ = 0;
  ports_.holders([this, alive = lifetime_.watch()](const Result<std::vector<ContainerDevices>>& holders) {
    if (!alive) return;
    if (!holders) return schedule_round();
    on_holders(*holders);
  });
}

void CutOffPods::on_holders(const std::vector<ContainerDevices>& holders) {
  waiting_.clear();
  std::set<PodName> names;
  for (const auto& holder : holders) {
    std::set<std::string> nodes;
    for (const auto& [resource, ids] : holder.devices) {
      for (const auto& id : ids) {
        for (auto& node : ports_.nodes(id)) nodes.insert(std::move(node));
      }
    }
    if (nodes.empty()) continue;
    names.insert(holder.pod);
    waiting_.push_back({holder.pod, holder.container, {nodes.begin(), nodes.end()}});
  }
  std::erase_if(pods_, [&](const auto& pod) { return !names.contains(pod.first); });
  if (waiting_.empty()) return finish_round();
  auto cgroups = ports_.cgroups();
  const bool were_seen = std::exchange(are_cgroups_seen_, cgroups.has_value());
  if (!cgroups) {
    if (were_seen)
      log::info("the device access of containers cannot be checked",
                {{"error", cgroups.error().full_message()}});
    waiting_.clear();
    return finish_round();
  }
  cgroups_ = std::move(*cgroups);
  read_unknown_pods();
}

// A Pod's container may have restarted, or be another of the same name.
void CutOffPods::read_unknown_pods() {
  std::set<PodName> unknown;
  for (const auto& container : waiting_) {
    if (!cgroups_.containers.contains(id_of(container))) unknown.insert(container.pod);
  }
  reading_ = unknown.size();
  if (unknown.empty()) return check_next();
  for (const auto& name : unknown) {
    ports_.reader.read_pod(name.name_space, name.name,
                           [this, name, alive = lifetime_.watch()](const auto& read) {
                             if (!alive) return;
                             pods_.erase(name);
                             if (read && *read) {
                               auto& pod = pods_[name];
                               pod.uid = (*read)->pod.uid;
                               for (const auto& container : (*read)->containers)
                                 pod.ids[container.name] = container.engine_id();
                             }
                             if (--reading_ == 0) check_next();
                           });
  }
}

std::string CutOffPods::id_of(const GpuContainer& container) const {
  const auto pod = pods_.find(container.pod);
  if (pod == pods_.end()) return {};
  const auto id = pod->second.ids.find(container.container);
  return id == pod->second.ids.end() ? std::string() : id->second;
}

void CutOffPods::check_next() {
  while (!waiting_.empty()) {
    const auto container = std::move(waiting_.front());
    waiting_.pop_front();
    const auto id = id_of(container);
    const auto cgroup = cgroups_.containers.find(id);
    if (cgroup == cgroups_.containers.end()) continue;
    check_ = ports_.check(cgroups_, cgroup->second, container.nodes,
                          [this, container, id](const AccessCheck::Answer& answer) {
                            on_answer(container, id, answer);
                            ports_.loop.post([this, alive = lifetime_.watch()] {
                              if (alive) check_next();
                            });
                          });
    return;
  }
  check_.reset();
  finish_round();
}

void CutOffPods::on_answer(const GpuContainer& container, const std::string& id,
                           const AccessCheck::Answer& answer) {
  seen_.insert(id);
  if (!answer) {
    // What is unknown stays as it was.
    log::debug("the device access of a container is not known",
               {{"pod", container.pod.name_space + "/" + container.pod.name},
                {"error", answer.error().full_message()}});
    return;
  }
  ++answered_;
  if (!*answer) {
    refused_.erase(id);
    cut_off_.erase(id);
    return;
  }
  if (refused_.insert(id).second) return;
  const PodRef pod{container.pod.name_space, container.pod.name, pods_[container.pod].uid};
  const std::string text = "container " + container.container + " may not open " + **answer;
  if (!cut_off_.emplace(id, Finding{pod, text, ports_.loop.now()}).second) return;
  ports_.notify({.pod = pod,
                 .reason = "GpuAccessLost",
                 .message = text +
                            ": its device cgroup refuses it, as after `systemctl daemon-reload`; restart the "
                            "Pod to give it the GPU again"});
}

void CutOffPods::finish_round() {
  answers_unknown_ = answered_ == 0 && !seen_.empty();
  std::erase_if(refused_, [this](const auto& id) { return !seen_.contains(id); });
  std::erase_if(cut_off_, [this](const auto& one) { return !seen_.contains(one.first); });
  report_pods();
  schedule_round();
}

void CutOffPods::report_pods() {
  const auto report = report_ = std::make_shared<Report>();
  report->reading = 1;  // so that no answer completes it before all requests are sent
  std::set<std::string> pods;
  for (const auto& [id, found] : cut_off_) {
    if (ports_.may_evict() && pods.insert(found.pod.uid).second) read_for_report(report, found);
  }
  finish_read(report);
}

// Annotations may have changed, and a deletion begun.
void CutOffPods::read_for_report(const std::shared_ptr<Report>& report, const Finding& found) {
  ++report->reading;
  ports_.reader.read_pod(found.pod.name_space, found.pod.name,
                         [this, report, found, alive = lifetime_.watch()](const auto& read) {
                           if (!alive) return;
                           if (!read || !*read || (*read)->pod.uid != found.pod.uid)
                             return finish_read(report);
                           const health::CutOffPod pod{evictable_pod(**read), found.text, found.since};
                           ports_.reader.read_namespace_annotations(
                               found.pod.name_space, [this, report, pod, alive](const auto& annotations) {
                                 if (!alive) return;
                                 if (annotations) {
                                   report->pods.push_back(pod);
                                   const auto grace = annotations->find(health::kGraceAnnotation);
                                   if (grace != annotations->end())
                                     report->pods.back().pod.namespace_annotation = grace->second;
                                 }
                                 finish_read(report);
                               });
                         });
}

void CutOffPods::finish_read(const std::shared_ptr<Report>& report) {
  if (--report->reading > 0 || report != report_) return;
  const bool was_reported = std::exchange(is_reported_, !report->pods.empty());
  if (is_reported_ || was_reported) ports_.cut_off(std::move(report->pods));
}

void CutOffPods::schedule_round() {
  const bool is_unconfirmed = refused_.size() > cut_off_.size();
  next_ = ports_.loop.after(is_unconfirmed ? kAccessConfirmInterval : kAccessCheckInterval,
                            [this] { start_round(); });
}

}  // namespace gpulet::agent

#include "agent/pod_labels.h"

#include <set>

#include "base/log.h"

namespace gpulet::agent {

using metrics::PodName;

PodLabels::PodLabels(Loop& loop, cluster::Reader& reader, std::function<void(const Labels&)> told)
    : loop_(loop), reader_(reader), told_(std::move(told)) {}

void PodLabels::on_containers(const std::vector<kubelet::ContainerDevices>& containers) {
  std::set<PodName> there;
  for (const auto& one : containers) {
    if (!one.devices.empty()) there.insert({one.name_space, one.pod});
  }
  std::erase_if(pods_, [&](const auto& known) { return !there.contains(known.first); });
  for (const auto& pod : there) {
    auto& known = pods_[pod];
    const bool fresh = known.read && loop_.now() - *known.read < kPodLabelsFresh;
    if (!fresh && !std::exchange(known.reading, true)) ask(pod);
  }
  tell();
}

void PodLabels::ask(const PodName& pod) {
  reader_.pod(pod.name_space, pod.name, [this, pod](const Result<std::optional<cluster::PodFacts>>& facts) {
    const auto known = pods_.find(pod);
    if (known == pods_.end()) return;
    known->second.reading = false;
    if (!facts) {
      if (const auto text = facts.error().text(); std::exchange(said_, text) != text)
        log::warning("the labels of Pods are not known", facts.error());
      return;
    }
    said_.clear();
    known->second.read = loop_.now();
    known->second.labels = *facts ? (*facts)->labels : std::map<std::string, std::string>{};
    tell();
  });
}

void PodLabels::tell() {
  Labels labels;
  for (const auto& [pod, known] : pods_) {
    if (!known.labels.empty()) labels[pod] = known.labels;
  }
  if (labels == labels_) return;
  labels_ = std::move(labels);
  told_(labels_);
}

}  // namespace gpulet::agent

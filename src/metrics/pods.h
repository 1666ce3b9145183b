// Finds the Pod of a process by the cgroup names of the kubelet and the container engines, and turns Pod
// labels into metric labels.
//
// A Pod's cgroup is named by its UID, with a cgroup for each container below:
//   /kubepods/burstable/podUID/ID                                                     cgroupfs driver
//   /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope systemd
//   driver,
//     dashes of the UID as underscores; CRI-O has crio-ID.scope, dockershim docker-ID.scope
//   /system.slice/containerd.service/kubepods-burstable-podUID.slice:cri-containerd:ID   containerd without
//   systemd
// A static Pod's UID is 32 digits without dashes. All may be below another cgroup of the node
// ("/kubelet.slice/…"). Source: kubernetes pkg/kubelet/cm, containerd, CRI-O.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace gpulet::metrics {

// Limit of /proc/PID/cgroup.
inline constexpr std::size_t kMaxCgroupBytes = 64 << 10;

// A Pod's cgroup, or that of one of its containers.
struct PodCgroup {
  std::string uid;  // of the Pod: "0b1d…-…", lower case, with dashes where it has them
  std::string
      container;  // the engine's ID of the container, 64 hexadecimal digits; empty: none, or another form
  friend bool operator==(const PodCgroup&, const PodCgroup&) = default;
};
// The cgroups of Pods that a process is in, outermost first, without duplicates. `cgroup_file`:
// /proc/PID/cgroup, version 1 or 2. A Pod may name cgroups below its own as it likes, so the first UID that
// this node knows counts.
std::vector<PodCgroup> pod_cgroups(std::string_view cgroup_file);
// The UIDs of these, without duplicates.
std::vector<std::string> pod_uids(std::string_view cgroup_file);

struct PodLogDirectory {
  PodName pod;
  std::string uid;
  friend bool operator==(const PodLogDirectory&, const PodLogDirectory&) = default;
};
// Parses the name of a Pod's log directory, "NAMESPACE_NAME_UID" (/var/log/pods), which maps UIDs to Pods
// without the API server. nullopt for other names.
std::optional<PodLogDirectory> parse_log_directory(std::string_view directory);

// Regular expressions, one of which must match in a label's key. Empty: every label is allowed, as in
// dcgm-exporter.
class PodLabelPatterns {
 public:
  PodLabelPatterns() = default;
  // Errors: kInvalidArgument with the invalid pattern and the reason.
  static Result<PodLabelPatterns> compile_patterns(const std::vector<std::string>& patterns,
                                                   const std::string& about);
  bool allows_key(const std::string& key) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

// "app.kubernetes.io/name" becomes app_kubernetes_io_name. Sorted by name; if two keys become one, the first
// stands.
std::vector<std::pair<std::string, std::string>> pod_metric_labels(
    const std::map<std::string, std::string>& labels, const PodLabelPatterns& patterns);

}  // namespace gpulet::metrics

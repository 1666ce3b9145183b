// Which Pod a process belongs to, by the names that the kubelet and the container engines give to cgroups.
//
// The kubelet names a Pod's cgroup by its UID, below it each container has its own:
//   /kubepods/burstable/podUID/ID                                                     cgroupfs driver
//   /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope systemd
//   driver,
//     dashes of the UID as underscores; CRI-O has crio-ID.scope, dockershim docker-ID.scope
//   /system.slice/containerd.service/kubepods-burstable-podUID.slice:cri-containerd:ID   containerd without
//   systemd
// A static Pod's UID is 32 digits without dashes. All may lie below a cgroup of the node's own
// ("/kubelet.slice/…"). Source: kubernetes pkg/kubelet/cm, containerd, CRI-O.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpulet::metrics {

// More of a /proc/PID/cgroup is not read.
inline constexpr std::size_t kMostCgroupBytes = 64 << 10;

// The UIDs of Pods ("0b1d…-…", lower case, with dashes where it has them) that the cgroups of a process name,
// outermost first, each once: `cgroup_file` is /proc/PID/cgroup, of version 1 or 2. A Pod may make cgroups
// below its own and call them as it likes: of the UIDs that this node knows the first counts.
std::vector<std::string> pod_uids(std::string_view cgroup_file);

struct PodName {
  std::string name_space, name;
  friend auto operator<=>(const PodName&, const PodName&) = default;
};
struct PodOfFolder {
  PodName pod;
  std::string uid;
  friend bool operator==(const PodOfFolder&, const PodOfFolder&) = default;
};
// The Pod whose folder of logs has that name, "NAMESPACE_NAME_UID" (/var/log/pods): how a node knows the UIDs
// of its Pods without the API server. nullopt for what is no such name.
std::optional<PodOfFolder> parse_log_folder(std::string_view folder);

}  // namespace gpulet::metrics

// What containers on a shared GPU must not have for their memory limit to hold, and the grade that is left
// where they have it. Pure.
//
//   privileged, CAP_SYS_ADMIN        none      it can leave its cgroup, and set limits itself
//   /sys/fs/cgroup of the node       none      likewise
//   /dev/dri, /dev/nvidia-modeset    none      buffers of the display driver are charged to no container
//   hostPID                          audited   it reaches other containers' files by /proc
//   root with an MPS control pipe    audited   the pipe's daemon obeys root: it can raise its own limit
// A path of the node above one of these counts as it does.
//
// An ephemeral container (kubectl debug) is added to a Pod that runs. What it has of these counts for every
// container of its Pod. One that shares the processes of a container (targetContainerName) leaves that
// container `audited`: it can take its open device files, whose memory is then charged to another cgroup.
// Source: core/v1 EphemeralContainer; open-gpu-kernel-modules 615, nvidia-drm and memory accounting; CUDA MPS
// documentation, "Security".
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "fraction/limit_grade.h"

namespace gpulet::fraction {

// What a container may reach, from its Pod's spec.
struct ContainerAccess {
  std::string name{};
  bool is_privileged = false;
  bool has_sys_admin = false;
  bool has_host_pids = false;
  bool may_be_root = true;  // false: runAsUser above 0, or runAsNonRoot
  bool reaches_cgroups = false;
  std::string display_path{};  // of the node, mounted, with /dev/dri or /dev/nvidia-modeset; empty: none
  // What ephemeral containers of its Pod have, or do to this one: at most kMaxGradeReasons.
  std::vector<GradeCap> ephemeral_caps{};
  friend bool operator==(const ContainerAccess&, const ContainerAccess&) = default;
};

// Of each container of a Pod, init containers first: at most kMaxRequestContainers. Ephemeral containers, of
// which as many are read, are not listed: they are in the others' ephemeral_caps. Fields of another type than
// the API's count as absent.
std::vector<ContainerAccess> parse_container_access(const nlohmann::json& pod);

// The rules that the container breaks. `reaches_mps_pipe`: the control pipe of an MPS daemon is mounted.
std::vector<GradeCap> check_container_rules(const ContainerAccess& access, bool reaches_mps_pipe);

}  // namespace gpulet::fraction

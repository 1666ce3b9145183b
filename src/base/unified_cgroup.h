// The cgroup v2 of a process. Source: cgroups(7), "/proc/pid/cgroup".
#pragma once

#include <string>
#include <string_view>

namespace gpulet {

// From the text of /proc/PID/cgroup: "0::/kubepods.slice/…" → "/kubepods.slice/…", as the reader's cgroup
// namespace shows it; empty where the host has no cgroup v2.
std::string unified_cgroup(std::string_view cgroup_file);

}  // namespace gpulet

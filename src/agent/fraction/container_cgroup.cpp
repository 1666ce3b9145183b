#include "agent/fraction/container_cgroup.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/file.h"
#include "base/file_watch.h"
#include "base/text.h"
#include "base/unified_cgroup.h"

namespace gpulet::agent {
namespace {

constexpr std::size_t kMaxCgroupEventsBytes = 4096;
constexpr std::string_view kParentPart = "/..";

bool is_clean_path(std::string_view path) {
  if (!text::starts_with(path, "/")) return false;
  const auto parts = text::split(path.substr(1), '/');
  return std::ranges::none_of(parts,
                              [](const auto& part) { return part.empty() || part == "." || part == ".."; });
}

// The part of the path that ends with the container's own cgroup.
std::string up_to_container(const std::string& path, const std::string& container) {
  const auto id = path.find(container);
  return path.substr(0, path.find('/', id));
}

// Of containerd without systemd's names, a container's cgroup is beside those of other Pods.
std::string pod_above(const std::string& container, const std::string& uid) {
  const auto parent = container.substr(0, container.rfind('/'));
  const auto pods = metrics::pod_cgroups("0::" + parent);
  const bool is_its = !pods.empty() && pods.front().uid == uid && pods.front().container.empty();
  return is_its ? parent : std::string();
}

}  // namespace

Result<ContainerCgroup> find_container_cgroup(unsigned pid, const std::string& runtime_path,
                                              const CgroupRoots& roots) {
  const std::string about = "process " + std::to_string(pid);
  const auto file = read_file(roots.proc + "/" + std::to_string(pid) + "/cgroup", metrics::kMaxCgroupBytes);
  if (!file) {
    return fail(Code::kNotFound,
                "the agent cannot see it: its Pod needs hostPID (" + file.error().message() + ")", about);
  }
  const auto shown = unified_cgroup(*file);
  if (shown.empty()) return fail(Code::kUnsupported, "memory limits of the driver need cgroup v2", about);
  std::string_view below = shown;
  while (text::starts_with(below, kParentPart)) below.remove_prefix(kParentPart.size());
  const bool is_outside = below.size() != shown.size();
  if (!is_clean_path(below) || !runtime_path.ends_with(below) || !is_clean_path(runtime_path)) {
    return fail(Code::kPermissionDenied,
                "its cgroup is " + shown + ", the container runtime says " +
                    (runtime_path.empty() ? "nothing" : runtime_path),
                about);
  }
  const std::string path = is_outside ? runtime_path : shown;
  const auto pods = metrics::pod_cgroups("0::" + path);
  if (pods.empty() || pods.front().container.empty())
    return fail(Code::kFailedPrecondition, "it is in no container of a Pod: its cgroup is " + path, about);
  const auto own = up_to_container(path, pods.front().container);
  const auto pod = pod_above(own, pods.front().uid);
  for (const std::string& mount : {roots.mount, roots.mount + "/unified"}) {
    if (::access((mount + own + "/cgroup.controllers").c_str(), F_OK) == 0)
      return ContainerCgroup{mount + own, pods.front(), pod.empty() ? pod : mount + pod};
  }
  return fail(Code::kNotFound,
              "its cgroup " + own + " is not below " + roots.mount +
                  ": the agent's Pod needs the host's cgroups (privileged)",
              about);
}

bool has_processes(const std::string& cgroup_directory) {
  const auto events = read_file(cgroup_directory + "/cgroup.events", kMaxCgroupEventsBytes);
  if (!events) return false;
  const auto lines = text::split(*events, '\n');
  return std::ranges::find(lines, "populated 1") != lines.end();
}

Result<Subscription> watch_cgroup_end(Loop& loop, const std::string& cgroup_directory,
                                      std::function<void()> ended) {
  return watch_events(loop, cgroup_directory + "/cgroup.events", IN_MODIFY | IN_DELETE_SELF,
                      [cgroup_directory, ended = std::move(ended)](const std::string&, std::uint32_t) {
                        if (!has_processes(cgroup_directory)) ended();
                      });
}

}  // namespace gpulet::agent

#include "fraction/container_rules.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"
#include "fraction/fraction_request.h"

namespace gpulet::fraction {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxNameBytes = 100;  // in messages
constexpr std::string_view kDisplayNodes[] = {"/dev/dri", "/dev/nvidia-modeset"};
constexpr std::string_view kCgroups = "/sys/fs/cgroup";

// "//dev/./dri/" → "/dev/dri". The API server refuses "..".
std::string normalized_path(std::string_view path) {
  std::string out;
  for (const auto& part : text::split(path, '/')) {
    if (!part.empty() && part != ".") out.append("/").append(part);
  }
  return out;
}

// Whether one of two normalized paths is the other, or above it.
bool are_nested(std::string_view a, std::string_view b) {
  const auto shorter = std::min(a.size(), b.size());
  if (a.substr(0, shorter) != b.substr(0, shorter)) return false;
  return a.size() == b.size() || (a.size() > b.size() ? a : b)[shorter] == '/';
}

// What the API server does not refuse: "SYS_ADMIN"; engines accept "CAP_SYS_ADMIN" and "ALL", in any case.
bool adds_sys_admin(const json& security) {
  const auto& added = json_member(json_member(security, "capabilities"), "add");
  if (!added.is_array()) return false;
  return std::ranges::any_of(added, [](const json& one) {
    const auto name = text::lower(json_text(one));
    return name == "sys_admin" || name == "cap_sys_admin" || name == "all";
  });
}

std::optional<bool> read_flag(const json& security, const char* field) {
  const auto& value = json_member(security, field);
  return value.is_boolean() ? std::optional(value.get<bool>()) : std::nullopt;
}

bool may_be_root(const json& of_pod, const json& of_container) {
  for (const auto* security : {&of_container, &of_pod}) {
    const auto& user = json_member(*security, "runAsUser");
    if (user.is_number_integer()) return user == json(0);
  }
  const auto refused = read_flag(of_container, "runAsNonRoot");
  return !refused.value_or(read_flag(of_pod, "runAsNonRoot").value_or(false));
}

// The paths of the node by volume.
std::map<std::string, std::string> read_host_paths(const json& spec) {
  std::map<std::string, std::string> paths;
  const auto& volumes = json_member(spec, "volumes");
  if (!volumes.is_array()) return paths;
  for (const auto& volume : volumes) {
    const auto path = json_text(json_member(json_member(volume, "hostPath"), "path"));
    if (!path.empty()) paths[json_text(json_member(volume, "name"))] = normalized_path(path);
  }
  return paths;
}

void read_mounts(const json& mounts, const std::map<std::string, std::string>& host_paths,
                 ContainerAccess& access) {
  if (!mounts.is_array()) return;
  for (const auto& mount : mounts) {
    const auto path = host_paths.find(json_text(json_member(mount, "name")));
    if (path == host_paths.end()) continue;
    access.reaches_cgroups = access.reaches_cgroups || are_nested(path->second, kCgroups);
    const bool has_display = std::ranges::any_of(
        kDisplayNodes, [&](std::string_view node) { return are_nested(path->second, node); });
    if (has_display && access.display_path.empty())
      access.display_path = path->second.empty() ? "/" : path->second;
  }
}

// Without what its Pod's spec says of all its containers.
ContainerAccess read_access(const json& container, const json& of_pod,
                            const std::map<std::string, std::string>& host_paths) {
  const auto& security = json_member(container, "securityContext");
  ContainerAccess access{.name = json_text(json_member(container, "name"))};
  access.is_privileged = read_flag(security, "privileged").value_or(false);
  access.has_sys_admin = adds_sys_admin(security);
  access.may_be_root = may_be_root(of_pod, security);
  read_mounts(json_member(container, "volumeMounts"), host_paths, access);
  return access;
}

std::vector<GradeCap> broken_rules(const ContainerAccess& access, const std::string& subject,
                                   bool reaches_mps_pipe) {
  std::vector<GradeCap> caps;
  const auto add_cap = [&](bool is_broken, LimitGrade highest, std::string_view what) {
    if (is_broken) caps.push_back({highest, subject + std::string(what)});
  };
  add_cap(access.is_privileged, LimitGrade::kNone, "is privileged");
  add_cap(access.has_sys_admin, LimitGrade::kNone, "has the capability SYS_ADMIN");
  add_cap(access.reaches_cgroups, LimitGrade::kNone, "mounts the node's cgroups");
  add_cap(!access.display_path.empty(), LimitGrade::kNone,
          "mounts " + printable_field(access.display_path, kMaxNameBytes) +
              " of the node, with nodes of the display driver");
  add_cap(access.has_host_pids, LimitGrade::kAudited, "sees the node's processes (hostPID)");
  add_cap(reaches_mps_pipe && access.may_be_root, LimitGrade::kAudited,
          "may run as root beside an MPS control pipe (no runAsNonRoot or runAsUser)");
  return caps;
}

// Adds to each container what the Pod's ephemeral containers take from its limit.
void add_ephemeral_caps(const json& spec, const std::map<std::string, std::string>& host_paths,
                        std::vector<ContainerAccess>& containers) {
  const auto& ephemeral = json_member(spec, "ephemeralContainers");
  if (!ephemeral.is_array()) return;
  const bool shares_processes = read_flag(spec, "shareProcessNamespace").value_or(false);
  std::size_t read = 0;
  for (const auto& container : ephemeral) {
    if (read++ == kMaxRequestContainers) return;
    const auto access = read_access(container, json_member(spec, "securityContext"), host_paths);
    const auto subject = "ephemeral container " + printable_field(access.name, kMaxNameBytes) + " ";
    const auto caps = broken_rules(access, subject, false);
    const auto target = json_text(json_member(container, "targetContainerName"));
    for (auto& one : containers) {
      auto& mine = one.ephemeral_caps;
      mine.insert(mine.end(), caps.begin(), caps.end());
      if (shares_processes || (!target.empty() && one.name == target)) {
        mine.push_back({LimitGrade::kAudited, subject + "shares the processes of container " +
                                                  printable_field(one.name, kMaxNameBytes)});
      }
      // The worst are kept: others must not hide them.
      std::ranges::stable_sort(mine, {}, &GradeCap::highest);
      if (mine.size() > kMaxGradeReasons) mine.resize(kMaxGradeReasons);
    }
  }
}

}  // namespace

std::vector<ContainerAccess> parse_container_access(const json& pod) {
  const auto& spec = json_member(pod, "spec");
  const auto& of_pod = json_member(spec, "securityContext");
  const bool has_host_pids = read_flag(spec, "hostPID").value_or(false);
  const auto host_paths = read_host_paths(spec);
  std::vector<ContainerAccess> all;
  for (const auto* const field : {"initContainers", "containers"}) {
    const auto& containers = json_member(spec, field);
    if (!containers.is_array()) continue;
    for (const auto& container : containers) {
      if (all.size() == kMaxRequestContainers) break;
      all.push_back(read_access(container, of_pod, host_paths));
      all.back().has_host_pids = has_host_pids;
    }
  }
  add_ephemeral_caps(spec, host_paths, all);
  return all;
}

std::vector<GradeCap> check_container_rules(const ContainerAccess& access, bool reaches_mps_pipe) {
  const std::string subject = "container " + printable_field(access.name, kMaxNameBytes) + " ";
  auto caps = broken_rules(access, subject, reaches_mps_pipe);
  caps.insert(caps.end(), access.ephemeral_caps.begin(), access.ephemeral_caps.end());
  return caps;
}

}  // namespace gpulet::fraction

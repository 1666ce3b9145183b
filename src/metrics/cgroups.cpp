#include "metrics/cgroups.h"

#include <algorithm>

#include "base/text.h"

namespace gpulet::metrics {
namespace {

constexpr std::string_view kPod = "pod";
constexpr std::size_t kUid = 36;        // with dashes
constexpr std::size_t kStaticUid = 32;  // a hash
constexpr std::size_t kDashes[] = {8, 13, 18, 23};

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

bool is_dash_at(std::size_t i) {
  return std::find(std::begin(kDashes), std::end(kDashes), i) != std::end(kDashes);
}

// A UID with dashes from one with dashes or underscores; empty when it is none.
std::string to_uid(std::string_view text) {
  std::string uid;
  if (text.size() != kUid && text.size() != kStaticUid) return uid;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool dash = text.size() == kUid && is_dash_at(i);
    if (dash ? text[i] != '-' && text[i] != '_' : !is_hex(text[i])) return {};
    uid += dash ? '-' : text[i];
  }
  return uid;
}

// The UID in one part of a path, or empty: "podUID", "kubepods-…-podUID.slice",
// "…-podUID.slice:cri-containerd:ID".
std::string uid_of_part(std::string_view part) {
  part = part.substr(0, part.find(':'));
  if (part.ends_with(".slice")) {
    part.remove_suffix(std::string_view(".slice").size());
    const auto at = part.rfind("-pod");
    if (at == std::string_view::npos || part.find("kubepods") == std::string_view::npos) return {};
    part.remove_prefix(at + 1);
  }
  return part.starts_with(kPod) ? to_uid(part.substr(kPod.size())) : std::string();
}

}  // namespace

std::vector<std::string> pod_uids(std::string_view cgroup_file) {
  std::vector<std::string> uids;
  cgroup_file = cgroup_file.substr(0, kMostCgroupBytes);
  while (!cgroup_file.empty()) {
    const std::size_t end = std::min(cgroup_file.find('\n'), cgroup_file.size());
    std::string_view line = cgroup_file.substr(0, end);
    cgroup_file.remove_prefix(std::min(end + 1, cgroup_file.size()));
    // "N:controllers:/path"; the path may have colons.
    const auto first = line.find(':');
    const auto second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    line.remove_prefix(second + 1);
    for (const auto& part : text::split(line, '/')) {
      auto uid = uid_of_part(part);
      if (!uid.empty() && std::find(uids.begin(), uids.end(), uid) == uids.end())
        uids.push_back(std::move(uid));
    }
  }
  return uids;
}

std::optional<PodOfFolder> parse_log_folder(std::string_view folder) {
  const auto parts = text::split(folder, '_');
  if (parts.size() != 3 || parts[0].empty() || parts[1].empty()) return std::nullopt;
  auto uid = to_uid(parts[2]);
  if (uid.empty()) return std::nullopt;
  return PodOfFolder{{parts[0], parts[1]}, std::move(uid)};
}

}  // namespace gpulet::metrics

#include "metrics/pods.h"

#include <algorithm>
#include <regex>

#include "base/text.h"

namespace gpulet::metrics {
namespace {

constexpr std::string_view kPod = "pod";
constexpr std::size_t kUid = 36;        // with dashes
constexpr std::size_t kStaticUid = 32;  // a hash
constexpr std::size_t kContainerId = 64;
constexpr std::size_t kDashes[] = {8, 13, 18, 23};

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

bool is_dash_at(std::size_t i) {
  return std::find(std::begin(kDashes), std::end(kDashes), i) != std::end(kDashes);
}

// A UID with dashes from one with dashes or underscores; empty if it is not a UID.
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

// The container's ID at the end of one part of a path, or empty: "ID", "crio-ID", "cri-containerd-ID.scope",
// "…-podUID.slice:cri-containerd:ID".
std::string container_of_part(std::string_view part) {
  constexpr std::string_view kScope = ".scope";
  if (part.ends_with(kScope)) part.remove_suffix(kScope.size());
  if (part.size() < kContainerId) return {};
  const auto id = part.substr(part.size() - kContainerId);
  const bool is_whole = id.size() == part.size() || part[part.size() - kContainerId - 1] == '-' ||
                        part[part.size() - kContainerId - 1] == ':';
  return is_whole && std::ranges::all_of(id, is_hex) ? std::string(id) : std::string();
}

}  // namespace

std::vector<PodCgroup> pod_cgroups(std::string_view cgroup_file) {
  std::vector<PodCgroup> found;
  cgroup_file = cgroup_file.substr(0, kMaxCgroupBytes);
  while (!cgroup_file.empty()) {
    const std::size_t end = std::min(cgroup_file.find('\n'), cgroup_file.size());
    std::string_view line = cgroup_file.substr(0, end);
    cgroup_file.remove_prefix(std::min(end + 1, cgroup_file.size()));
    // "N:controllers:/path"; the path may have colons.
    const auto first = line.find(':');
    const auto second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    line.remove_prefix(second + 1);
    const auto parts = text::split(line, '/');
    for (std::size_t i = 0; i < parts.size(); ++i) {
      PodCgroup cgroup{uid_of_part(parts[i]), {}};
      if (cgroup.uid.empty()) continue;
      cgroup.container = container_of_part(parts[i]);
      if (cgroup.container.empty() && i + 1 < parts.size())
        cgroup.container = container_of_part(parts[i + 1]);
      if (std::ranges::find(found, cgroup) == found.end()) found.push_back(std::move(cgroup));
    }
  }
  return found;
}

std::vector<std::string> pod_uids(std::string_view cgroup_file) {
  std::vector<std::string> uids;
  for (auto& cgroup : pod_cgroups(cgroup_file)) {
    if (std::ranges::find(uids, cgroup.uid) == uids.end()) uids.push_back(std::move(cgroup.uid));
  }
  return uids;
}

std::optional<PodLogDirectory> parse_log_directory(std::string_view directory) {
  const auto parts = text::split(directory, '_');
  if (parts.size() != 3 || parts[0].empty() || parts[1].empty()) return std::nullopt;
  auto uid = to_uid(parts[2]);
  if (uid.empty()) return std::nullopt;
  return PodLogDirectory{{parts[0], parts[1]}, std::move(uid)};
}

namespace {

// A key has at most 253 + 1 + 63 characters; a longer one is invalid and could overflow the matcher's stack.
constexpr std::size_t kLongestKey = 317;
constexpr std::size_t kLongestPattern = 1024;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

std::string to_name(const std::string& key) {
  std::string name;
  for (const char c : key) name += is_letter(c) || text::is_digit(c) ? c : '_';
  if (name.empty() || text::is_digit(name.front())) name.insert(name.begin(), '_');
  // A leading double underscore is reserved by Prometheus.
  while (name.starts_with("__")) name.erase(name.begin());
  return name;
}

}  // namespace

struct PodLabelPatterns::Compiled {
  std::vector<std::regex> all;
};

Result<PodLabelPatterns> PodLabelPatterns::compile_patterns(const std::vector<std::string>& patterns,
                                                            const std::string& about) {
  auto compiled = std::make_shared<Compiled>();
  for (const auto& pattern : patterns) {
    if (pattern.size() > kLongestPattern) {
      return fail(Code::kInvalidArgument,
                  "a pattern of more than " + std::to_string(kLongestPattern) + " characters", about);
    }
    try {
      compiled->all.emplace_back(pattern, std::regex::ECMAScript | std::regex::optimize);
    } catch (const std::regex_error& error) {
      return fail(Code::kInvalidArgument, "\"" + pattern + "\" is not a regular expression: " + error.what(),
                  about);
    }
  }
  PodLabelPatterns result;
  if (!patterns.empty()) result.compiled_ = std::move(compiled);
  return result;
}

bool PodLabelPatterns::allows_key(const std::string& key) const {
  if (key.size() > kLongestKey) return false;
  if (!compiled_) return true;
  return std::any_of(compiled_->all.begin(), compiled_->all.end(), [&](const std::regex& pattern) {
    try {
      return std::regex_search(key, pattern);
    } catch (const std::regex_error&) {
      return false;  // too costly for this key
    }
  });
}

std::vector<std::pair<std::string, std::string>> pod_metric_labels(
    const std::map<std::string, std::string>& labels, const PodLabelPatterns& patterns) {
  std::map<std::string, std::string> named;
  for (const auto& [key, value] : labels) {
    if (patterns.allows_key(key)) named.emplace(to_name(key), value);
  }
  return {named.begin(), named.end()};
}

}  // namespace gpulet::metrics

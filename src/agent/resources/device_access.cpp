#include "agent/resources/device_access.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

constexpr std::string_view kControlName = "nvidiactl", kGpuPrefix = "nvidia";

// nvidiactl, without which nothing works, and the nodes of GPUs.
bool is_watched_node(std::string_view name) {
  if (name == kControlName) return true;
  return name.starts_with(kGpuPrefix) && text::parse_unsigned(name.substr(kGpuPrefix.size()));
}

}  // namespace

bool is_access_denied(const std::string& path) {
  return ::faccessat(AT_FDCWD, path.c_str(), R_OK | W_OK, AT_EACCESS) != 0 && errno == EPERM;
}

std::set<std::string> find_denied_nodes(const std::vector<std::string>& roots,
                                        const std::function<bool(const std::string&)>& is_denied) {
  std::map<std::string, bool> denied;  // by name
  for (const auto& path : roots) {
    const auto root = RootDirectory::open_root(path);
    if (!root) continue;
    const std::string directory = path == "/" ? "/dev/" : path + "/dev/";
    for (const auto& name : root->list_directory("/dev").value_or(std::vector<std::string>())) {
      if (!is_watched_node(name)) continue;
      const auto [known, is_new] = denied.try_emplace(name, true);
      known->second = known->second && is_denied(directory + name);
    }
  }
  std::set<std::string> nodes;
  for (const auto& [name, is_refused] : denied) {
    if (is_refused) nodes.insert("/dev/" + name);
  }
  return nodes;
}

DeviceAccessWatcher::DeviceAccessWatcher(Loop& loop, Reporter& reporter, FindDenied find_denied,
                                         std::function<void()> restart)
    : loop_(loop),
      reporter_(reporter),
      find_denied_(std::move(find_denied)),
      restart_(std::move(restart)),
      started_(loop.now()) {}

void DeviceAccessWatcher::check_access() {
  if (restarting_) return;
  const auto denied = find_denied_();
  if (std::exchange(is_first_, false)) {
    denied_at_start_ = denied;
    // GPUs alone may be left out on purpose (NVIDIA_VISIBLE_DEVICES).
    if (denied.contains("/dev/" + std::string(kControlName))) {
      report_denied(
          denied,
          "run the agent privileged, or with NVIDIA's container runtime (docs/INSTALL.md, Access to "
          "the driver)");
    }
    return;
  }
  std::set<std::string> lost;
  std::ranges::set_difference(denied, denied_at_start_, std::inserter(lost, lost.end()));
  recheck_.reset();
  if (lost.empty()) return reported_.clear();
  if (!restart_) return report_denied(lost, "restart the agent");
  const auto uptime = loop_.now() - started_;
  if (uptime < kMinimumUptime) {
    recheck_ = loop_.after(kMinimumUptime - uptime, [this] { check_access(); });
    return;
  }
  restarting_ = true;
  report_denied(lost, "the agent ends, so that its next container gets access");
  restart_();
}

void DeviceAccessWatcher::report_denied(const std::set<std::string>& denied, const std::string& consequence) {
  if (denied == reported_) return;
  reported_ = denied;
  std::string names;
  for (const auto& node : denied) names += (names.empty() ? "" : ", ") + node;
  reporter_.report_event(Reporter::Severity::kWarning, "DeviceAccessDenied",
                         "this container's device cgroup does not permit " + names + ": " + consequence);
}

}  // namespace gpulet::agent

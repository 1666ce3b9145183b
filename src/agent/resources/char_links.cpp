#include "agent/resources/char_links.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "agent/resources/device_nodes.h"
#include "base/driver_root.h"
#include "base/file_watch.h"
#include "base/log.h"

namespace gpulet::agent {
namespace {

// Whoever removes a link each time gets no busy loop.
constexpr Duration kRelinkPause = std::chrono::seconds(1);

struct LinkRoots {
  RootDirectory nodes, host;
  std::string nodes_on_host;  // empty: the same
};

// nullopt: the driver has no nodes yet, or the host's /dev is not known.
std::optional<LinkRoots> find_link_roots(const config::Config& config) {
  auto nodes = find_device_root(config);
  if (!nodes) return std::nullopt;
  if (nodes->exists(kCharDirectory) && has_all_device_nodes(*nodes)) {
    auto host = RootDirectory::open_root(nodes->root_path());
    if (!host) return std::nullopt;
    return LinkRoots{std::move(*nodes), std::move(*host), {}};
  }
  if (config.flags.nvidia_driver_root != kDriverContainerRoot) return std::nullopt;
  auto host = RootDirectory::open_root("/");
  if (!host || !has_all_device_nodes(*host)) return std::nullopt;
  return LinkRoots{std::move(*nodes), std::move(*host), kDriverContainerRoot};
}

// In the place of a link that leads nowhere. Follows no link to its directory.
Status create_link(const RootDirectory& host, const CharLink& link) {
  const auto slash = link.path.rfind('/');
  GPULET_TRY_ASSIGN(const FileDescriptor directory,
                    host.open_file(link.path.substr(0, slash), O_PATH | O_DIRECTORY, RESOLVE_NO_SYMLINKS));
  const auto name = link.path.substr(slash + 1);
  if (::symlinkat(link.target.c_str(), directory.get(), name.c_str()) == 0) return {};
  if (errno != EEXIST) return fail(errno_error("cannot create a link", errno, link.path));
  struct stat status{};
  if (::fstatat(directory.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISLNK(status.st_mode))
    return fail(Code::kFailedPrecondition, "is not a link", link.path);
  if (::unlinkat(directory.get(), name.c_str(), 0) != 0 ||
      ::symlinkat(link.target.c_str(), directory.get(), name.c_str()) != 0)
    return fail(errno_error("cannot replace a link that leads nowhere", errno, link.path));
  return {};
}

}  // namespace

std::vector<CharLink> find_missing_char_links(const RootDirectory& nodes, const RootDirectory& host,
                                              const std::string& nodes_on_host) {
  std::vector<CharLink> missing;
  if (!host.exists(kCharDirectory)) return missing;
  for (const auto& path : list_driver_nodes(nodes)) {
    const auto device = nodes.character_device(path);
    if (!device) continue;
    const std::string link = std::string(kCharDirectory) + "/" + std::to_string(major(*device)) + ":" +
                             std::to_string(minor(*device));
    if (host.exists(link)) continue;
    missing.push_back({link, nodes_on_host.empty() ? ".." + path.substr(std::string_view("/dev").size())
                                                   : nodes_on_host + path});
  }
  std::ranges::sort(missing, {}, &CharLink::path);
  // Two nodes may have one number.
  missing.erase(std::ranges::unique(missing, {}, &CharLink::path).begin(), missing.end());
  return missing;
}

void CharLinkKeeper::create_links() {
  if (!config_.gpulet.create_device_nodes) return watch_.reset();
  const auto roots = find_link_roots(config_);
  if (!roots) return watch_.reset();
  // Watched before it is read, so that no removal is missed.
  watch_links(path_below(roots->host.root_path(), kCharDirectory));
  const auto missing = find_missing_char_links(roots->nodes, roots->host, roots->nodes_on_host);
  for (const auto& link : missing) {
    if (const auto created = create_link(roots->host, link); !created)
      return report_failure(created.error().full_message());
  }
  reported_.clear();
  if (!missing.empty())
    log::info("linked the driver's device nodes in /dev/char",
              {{"links", missing.size()}, {"first", missing.front().path}});
}

void CharLinkKeeper::watch_links(const std::string& directory) {
  const auto identity = file_identity(directory);
  const std::string seen =
      directory + (identity ? " " + std::to_string(identity->device) + ":" + std::to_string(identity->inode)
                            : std::string());
  if (watch_ && seen == watched_) return;
  auto watch = watch_events(loop_, directory, IN_DELETE | IN_MOVED_FROM | IN_ONLYDIR,
                            [this](const std::string&, std::uint32_t) {
                              if (pause_) return;
                              pause_ = loop_.after(kRelinkPause, [this] {
                                pause_.reset();
                                create_links();
                              });
                            });
  watched_ = seen;
  watch_ = watch ? std::move(*watch) : Subscription();
}

void CharLinkKeeper::report_failure(const std::string& message) {
  if (message == reported_) return;
  reported_ = message;
  log::warning(
      "cannot link the driver's device nodes in /dev/char: after `systemctl daemon-reload` "
      "containers that run may lose their GPUs",
      {{"error", message}});
}

}  // namespace gpulet::agent

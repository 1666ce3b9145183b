#include "agent/resources/device_nodes.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/log.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

constexpr const char* kControlNode = "/dev/nvidiactl";
constexpr std::string_view kNodePrefix = "nvidia";
constexpr const char* kNodeDirectories[] = {"/dev", "/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels"};
// nvidia-modprobe creates several nodes and then sets their modes.
constexpr Duration kNodesSettle = std::chrono::milliseconds(50);
constexpr std::uint32_t kNodeEvents = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB |
                                      IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;

std::string path_in(const std::string& root, const std::string& path) {
  return root == "/" ? path : root + path;
}

// One line for each node of the driver: equal texts, equal nodes.
std::string list_nodes(const std::vector<std::string>& roots) {
  std::string text;
  for (const auto& path : roots) {
    const auto root = RootDirectory::open_root(path);
    if (!root) continue;
    for (const std::string directory : kNodeDirectories) {
      const auto opened = root->open_file(directory, O_PATH | O_DIRECTORY);
      if (!opened) continue;
      for (const auto& name : root->list_directory(directory).value_or(std::vector<std::string>())) {
        if (directory == "/dev" && !name.starts_with(kNodePrefix)) continue;
        struct stat status{};
        if (::fstatat(opened->get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
        text += path_in(path, directory) + "/" + name + " " + std::to_string(status.st_mode) + " " +
                std::to_string(status.st_rdev) + " " + std::to_string(status.st_gid) + "\n";
      }
    }
  }
  return text;
}

}  // namespace

std::vector<std::string> driver_roots(const config::Config& config) {
  const auto& root = config.flags.container_driver_root;
  return root == "/" ? std::vector<std::string>{root} : std::vector<std::string>{root, "/"};
}

std::optional<RootDirectory> find_device_root(const config::Config& config) {
  for (const auto& path : driver_roots(config)) {
    auto root = RootDirectory::open_root(path);
    if (root && root->exists(kControlNode)) return std::move(*root);
  }
  return std::nullopt;
}

// "22 1 0:21 / /dev rw,nosuid shared:2 - devtmpfs udev rw": fields 5 and the one after the hyphen. The last
// mount at a path is the visible one.
bool mounts_devtmpfs(std::string_view mountinfo) {
  bool found = false;
  for (const auto& line : text::split(mountinfo, '\n')) {
    const auto fields = text::split(line, ' ');
    const auto hyphen = std::ranges::find(fields, "-");
    if (fields.size() < 5 || fields[4] != "/dev" || hyphen == fields.end() || hyphen + 1 == fields.end())
      continue;
    found = *(hyphen + 1) == "devtmpfs";
  }
  return found;
}

bool has_all_device_nodes(const RootDirectory& root) {
  if (root.root_path() != "/") return true;
  const auto mounts = read_file("/proc/self/mountinfo");
  return mounts && mounts_devtmpfs(*mounts);
}

std::string find_compute_problem(const RootDirectory& root) {
  if (root.exists(kUvmNode) || !has_all_device_nodes(root)) return {};
  return std::string(kUvmNode) + " is missing: load nvidia-uvm, for example with `nvidia-modprobe -u -c 0`";
}

DeviceNodeWatcher::DeviceNodeWatcher(Loop& loop, std::function<void()> changed)
    : loop_(loop), changed_(std::move(changed)) {}

void DeviceNodeWatcher::watch_roots(const std::vector<std::string>& roots) {
  std::string directories;
  for (const auto& root : roots) {
    for (const std::string directory : {"/", kNodeDirectories[0], kNodeDirectories[1], kNodeDirectories[2]}) {
      const auto identity = file_identity(path_in(root, directory));
      directories += root + directory;
      if (identity)
        directories += " " + std::to_string(identity->device) + ":" + std::to_string(identity->inode);
      directories += "\n";
    }
  }
  if (directories == directories_seen_) return;
  const bool first = directories_seen_.empty();
  directories_seen_ = std::move(directories);
  roots_ = roots;
  add_watches();
  if (first) {
    nodes_seen_ = list_nodes(roots_);
  } else if (!settling_) {
    settling_ = loop_.after(kNodesSettle, [this] { on_settled(); });
  }
}

void DeviceNodeWatcher::add_watches() {
  if (!inotify_) {
    auto opened = InotifyWatcher::create_watcher(loop_);
    if (!opened) return log::warning("cannot watch the driver's device nodes", opened.error());
    inotify_ = std::move(*opened);
  }
  std::vector<Subscription> watches;
  const auto watch = [&](const std::string& directory, std::uint32_t events) {
    auto added = inotify_->add_watch(
        directory, events, [this](const std::string& name, std::uint32_t mask) { on_event(name, mask); });
    if (added) watches.push_back(std::move(*added));
  };
  for (const auto& root : roots_) {
    if (root != "/") watch(root, IN_CREATE | IN_MOVED_TO | IN_ONLYDIR);  // dev itself
    for (const char* directory : kNodeDirectories) watch(path_in(root, directory), kNodeEvents);
  }
  watches_ = std::move(watches);
}

void DeviceNodeWatcher::on_event(const std::string& name, std::uint32_t mask) {
  constexpr std::uint32_t kDirectoryItself =
      IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED | IN_UNMOUNT | IN_Q_OVERFLOW;
  const bool lost = (mask & kDirectoryItself) != 0;
  if (lost) directories_seen_ = "lost";  // a new directory may have the number of the old one
  const bool matters = lost || name == "dev" || name.starts_with("channel") || name.starts_with(kNodePrefix);
  if (matters && !settling_) settling_ = loop_.after(kNodesSettle, [this] { on_settled(); });
}

void DeviceNodeWatcher::on_settled() {
  settling_.reset();
  // Directories that are new are watched before they are read.
  watch_roots(roots_);
  std::string nodes = list_nodes(roots_);
  if (nodes == nodes_seen_) return;
  nodes_seen_ = std::move(nodes);
  changed_();
}

}  // namespace gpulet::agent

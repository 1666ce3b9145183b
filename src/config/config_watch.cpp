#include "config/config_watch.h"

#include <limits.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <deque>

#include "base/log.h"
#include "base/text.h"

namespace gpulet::config {
namespace {

constexpr std::uint32_t kEvents = IN_CLOSE_WRITE | IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO |
                                  IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;
constexpr int kMostLinks = 16;    // on the way to one file
constexpr int kMostAttempts = 4;  // to watch a way that changes meanwhile

std::deque<std::string> segments_of(const std::string& path) {
  std::deque<std::string> segments;
  for (auto& part : text::split(path, '/')) {
    if (!part.empty() && part != ".") segments.push_back(std::move(part));
  }
  return segments;
}

std::string link_target(const std::string& path) {
  std::array<char, PATH_MAX> buffer;
  const auto length = readlink(path.c_str(), buffer.data(), buffer.size());
  return length > 0 ? std::string(buffer.data(), static_cast<std::size_t>(length)) : std::string();
}

}  // namespace

// Walks the path by hand: each link on it, the first thing that is missing and the file itself are names to
// watch for in the folder where they are.
ConfigWatch::Places ConfigWatch::places_of(const std::string& path) {
  Places places;
  std::string folder = "/";
  auto rest = segments_of(path);
  if (path.empty() || path.front() != '/') {
    std::array<char, PATH_MAX> current;
    if (getcwd(current.data(), current.size())) {
      auto before = segments_of(current.data());
      rest.insert(rest.begin(), before.begin(), before.end());
    }
  }
  int links = 0;
  while (!rest.empty()) {
    const std::string name = rest.front();
    rest.pop_front();
    if (name == "..") {
      const auto slash = folder.rfind('/', folder.size() - 2);
      folder = folder == "/" ? folder : folder.substr(0, slash + 1);
      continue;
    }
    const std::string here = folder + name;
    struct stat status{};
    const bool exists = lstat(here.c_str(), &status) == 0;
    const bool link = exists && S_ISLNK(status.st_mode);
    if (!exists || link || rest.empty()) places[folder].insert(name);
    if (!exists || (link && ++links > kMostLinks)) break;
    if (!link) {
      folder = here + "/";
      continue;
    }
    const std::string target = link_target(here);
    const auto steps = segments_of(target);
    rest.insert(rest.begin(), steps.begin(), steps.end());
    if (!target.empty() && target.front() == '/') folder = "/";
  }
  return places;
}

ConfigWatch::ConfigWatch(Loop& loop, std::string path, std::function<void()> changed, FileDescriptor inotify)
    : loop_(loop), path_(std::move(path)), changed_(std::move(changed)), inotify_(std::move(inotify)) {}

Result<std::unique_ptr<ConfigWatch>> ConfigWatch::start(Loop& loop, std::string path,
                                                        std::function<void()> changed) {
  FileDescriptor inotify(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (!inotify.valid()) return fail(errno_error("inotify_init1", errno, path));
  std::unique_ptr<ConfigWatch> watch(
      new ConfigWatch(loop, std::move(path), std::move(changed), std::move(inotify)));
  GPULET_TRY(watch->arm());
  watch->reading_ =
      loop.watch(watch->inotify_.get(), EPOLLIN, [raw = watch.get()](std::uint32_t) { raw->on_readable(); });
  return watch;
}

// Watches the folders on the way to the file. What changes while they are being watched is seen by looking
// again.
Status ConfigWatch::arm() {
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    Places places = places_of(path_);
    std::map<int, std::string> watches;
    for (const auto& [folder, names] : places) {
      const int id = inotify_add_watch(inotify_.get(), folder.c_str(), kEvents);
      if (id >= 0) {
        watches.emplace(id, folder);
      } else if (errno != ENOENT && errno != ENOTDIR && errno != EACCES) {
        return fail(errno_error("inotify_add_watch", errno, folder));
      }
    }
    for (const auto& [id, folder] : watches_) {
      if (!watches.contains(id)) inotify_rm_watch(inotify_.get(), id);
    }
    watches_ = std::move(watches);
    places_ = std::move(places);
    if (places_of(path_) == places_) break;
  }
  return {};
}

void ConfigWatch::on_readable() {
  alignas(inotify_event) std::array<char, 16384> buffer;
  bool matters = false;
  for (;;) {
    const auto size = read(inotify_.get(), buffer.data(), buffer.size());
    if (size <= 0) break;
    for (std::size_t offset = 0; offset < static_cast<std::size_t>(size);) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + offset);
      offset += sizeof(inotify_event) + event->len;
      if ((event->mask & IN_Q_OVERFLOW) != 0) matters = true;
      const auto watch = watches_.find(event->wd);
      if (watch == watches_.end()) continue;
      const bool folder_itself =
          (event->mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED | IN_UNMOUNT)) != 0;
      const auto names = places_.find(watch->second);
      if (folder_itself ||
          (event->len > 0 && names != places_.end() && names->second.contains(event->name))) {
        matters = true;
      }
    }
  }
  if (matters && !settling_) settling_ = loop_.after(kWatchDebounce, [this] { on_settled(); });
}

void ConfigWatch::on_settled() {
  settling_.reset();
  // Watched anew before it is read: a change from here on is an event of its own.
  if (const auto armed = arm(); !armed)
    log::warning("the configuration file is watched no longer", armed.error());
  changed_();
}

}  // namespace gpulet::config

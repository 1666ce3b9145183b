#include "base/file_watch.h"

#include <limits.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <deque>
#include <vector>

#include "base/log.h"
#include "base/text.h"

namespace gpulet {
namespace {

// Flags of inotify_add_watch; the kernel never reports them.
constexpr std::uint32_t kSteering =
    IN_ONLYDIR | IN_DONT_FOLLOW | IN_EXCL_UNLINK | IN_ONESHOT | IN_MASK_ADD | IN_MASK_CREATE;
// Reported to every callback of a watch, whatever its mask.
constexpr std::uint32_t kAlways = IN_IGNORED | IN_Q_OVERFLOW | IN_UNMOUNT;

}  // namespace

// The inotify descriptor of a loop and its watches.
struct LoopInotify {
  struct Watcher {
    int descriptor;
    std::uint32_t mask;
    std::shared_ptr<InotifyCallback> callback;
  };

  FileDescriptor fd;
  std::uint64_t next_id = 0;
  std::map<std::uint64_t, Watcher> watchers;
  Subscription reading;

  // Receivers by id: a callback may remove any watch, also its own, or add one, before the next is called.
  std::vector<std::uint64_t> ids_of(int descriptor) const {
    std::vector<std::uint64_t> ids;
    for (const auto& [id, watcher] : watchers) {
      if (descriptor < 0 || watcher.descriptor == descriptor) ids.push_back(id);
    }
    return ids;
  }

  void dispatch_event(int descriptor, const std::string& name, std::uint32_t mask) {
    for (const std::uint64_t id : ids_of(descriptor)) {
      const auto it = watchers.find(id);
      if (it == watchers.end()) continue;
      if ((mask & (it->second.mask | kAlways)) == 0) continue;
      const auto callback = it->second.callback;
      (*callback)(name, mask);
    }
  }

  void remove_watcher(std::uint64_t id) {
    const auto it = watchers.find(id);
    if (it == watchers.end()) return;
    const int descriptor = it->second.descriptor;
    watchers.erase(it);
    if (descriptor >= 0 && ids_of(descriptor).empty()) ::inotify_rm_watch(fd.get(), descriptor);
  }

  void read_events() {
    alignas(inotify_event) std::array<char, 16384> buffer;
    for (;;) {
      const ssize_t size = ::read(fd.get(), buffer.data(), buffer.size());
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) return;
      for (std::size_t offset = 0; offset < static_cast<std::size_t>(size);) {
        const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + offset);
        offset += sizeof(inotify_event) + event->len;
        if ((event->mask & IN_Q_OVERFLOW) != 0) {
          dispatch_event(-1, {}, IN_Q_OVERFLOW);
          continue;
        }
        dispatch_event(event->wd, event->len > 0 ? std::string(event->name) : std::string(), event->mask);
        if ((event->mask & IN_IGNORED) != 0) drop_watch(event->wd);
      }
    }
  }

  // The kernel has removed this descriptor and may reuse its number.
  void drop_watch(int descriptor) {
    for (auto& [id, watcher] : watchers) {
      if (watcher.descriptor == descriptor) watcher.descriptor = kEnded;
    }
  }
  static constexpr int kEnded = -2;
};

namespace {

Result<std::shared_ptr<LoopInotify>> open_inotify(Loop& loop) {
  auto inotify = std::make_shared<LoopInotify>();
  inotify->fd = FileDescriptor(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (!inotify->fd.is_open()) return fail(errno_error("cannot open inotify", errno));
  inotify->reading =
      loop.watch_descriptor(inotify->fd.get(), EPOLLIN, [weak = std::weak_ptr(inotify)](std::uint32_t) {
        if (const auto strong = weak.lock()) strong->read_events();
      });
  return inotify;
}

}  // namespace

Result<Subscription> watch_events(Loop& loop, const std::string& path, std::uint32_t mask,
                                  InotifyCallback callback) {
  if (!loop.inotify_) {
    GPULET_TRY_ASSIGN(loop.inotify_, open_inotify(loop));
  }
  const auto& inotify = loop.inotify_;
  // IN_MASK_ADD: a second watch of one path must not take events from the first.
  const int descriptor = ::inotify_add_watch(inotify->fd.get(), path.c_str(), mask | IN_MASK_ADD);
  if (descriptor < 0) return fail(errno_error("cannot watch", errno, path));
  const std::uint64_t id = inotify->next_id++;
  inotify->watchers[id] = {descriptor, mask & ~kSteering,
                           std::make_shared<InotifyCallback>(std::move(callback))};
  return Subscription([weak = std::weak_ptr(inotify), id] {
    if (const auto strong = weak.lock()) strong->remove_watcher(id);
  });
}

namespace {

constexpr std::uint32_t kEvents = IN_CLOSE_WRITE | IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO |
                                  IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;
constexpr int kMostLinksWatched = 16;  // on the path to one file
constexpr int kMostWatchAttempts = 4;  // to watch a path that changes meanwhile

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

// Walks the path by hand. Each link on it, the first missing component and the file itself are watched by
// name in their directory.
FileWatcher::NamesByDirectory FileWatcher::names_to_watch(const std::string& path) {
  NamesByDirectory places;
  std::string directory = "/";
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
      const auto slash = directory.rfind('/', directory.size() - 2);
      directory = directory == "/" ? directory : directory.substr(0, slash + 1);
      continue;
    }
    const std::string here = directory + name;
    struct stat status{};
    const bool exists = lstat(here.c_str(), &status) == 0;
    const bool link = exists && S_ISLNK(status.st_mode);
    if (!exists || link || rest.empty()) places[directory].insert(name);
    if (!exists || (link && ++links > kMostLinksWatched)) break;
    if (!link) {
      directory = here + "/";
      continue;
    }
    const std::string target = link_target(here);
    const auto steps = segments_of(target);
    rest.insert(rest.begin(), steps.begin(), steps.end());
    if (!target.empty() && target.front() == '/') directory = "/";
  }
  return places;
}

FileWatcher::FileWatcher(Loop& loop, std::string path, std::function<void()> changed)
    : loop_(loop), path_(std::move(path)), changed_(std::move(changed)) {}

Result<std::unique_ptr<FileWatcher>> FileWatcher::watch_path(Loop& loop, std::string path,
                                                             std::function<void()> changed) {
  std::unique_ptr<FileWatcher> watch(new FileWatcher(loop, std::move(path), std::move(changed)));
  GPULET_TRY(watch->add_watches());
  return watch;
}

// Watches the directories on the path to the file, and walks it again to detect changes made meanwhile.
Status FileWatcher::add_watches() {
  for (int attempt = 0; attempt < kMostWatchAttempts; ++attempt) {
    NamesByDirectory places = names_to_watch(path_);
    std::vector<Subscription> watches;
    for (const auto& [directory, names] : places) {
      auto watch = watch_events(loop_, directory, kEvents,
                                [this, directory](const std::string& name, std::uint32_t mask) {
                                  on_event(directory, name, mask);
                                });
      if (watch) {
        watches.push_back(std::move(*watch));
      } else if (watch.error().code() == Code::kIo) {
        return fail(watch.error());
      }
    }
    watches_ = std::move(watches);
    names_ = std::move(places);
    if (names_to_watch(path_) == names_) break;
  }
  return {};
}

void FileWatcher::on_event(const std::string& directory, const std::string& name, std::uint32_t mask) {
  constexpr std::uint32_t kFolderItself =
      IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED | IN_UNMOUNT | IN_Q_OVERFLOW;
  const auto names = names_.find(directory);
  const bool matters =
      (mask & kFolderItself) != 0 || (!name.empty() && names != names_.end() && names->second.contains(name));
  if (matters && !settling_) settling_ = loop_.after(kWatchDebounce, [this] { on_settled(); });
}

void FileWatcher::on_settled() {
  settling_.reset();
  // The watches are renewed before the file is read: a later change causes another event.
  if (const auto armed = add_watches(); !armed)
    log::warning("changes of a file are no longer seen", armed.error());
  changed_();
}

}  // namespace gpulet

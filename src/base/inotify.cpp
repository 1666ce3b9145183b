#include "base/inotify.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

namespace gpulet {
namespace {

// Bits of add() that steer the watch; the kernel never reports them.
constexpr std::uint32_t kSteering =
    IN_ONLYDIR | IN_DONT_FOLLOW | IN_EXCL_UNLINK | IN_ONESHOT | IN_MASK_ADD | IN_MASK_CREATE;
// Told to every callback of a watch, whatever it asked for.
constexpr std::uint32_t kAlways = IN_IGNORED | IN_Q_OVERFLOW | IN_UNMOUNT;

}  // namespace

struct InotifyWatch::State {
  struct Watcher {
    int descriptor;
    std::uint32_t mask;
    std::shared_ptr<Callback> callback;
  };

  FileDescriptor fd;
  std::uint64_t next_id = 0;
  std::map<std::uint64_t, Watcher> watchers;
  Subscription reading;

  // Whom an event is for, by id: a callback may end any watch, its own too, or add one, before the next is called.
  std::vector<std::uint64_t> ids_of(int descriptor) const {
    std::vector<std::uint64_t> ids;
    for (const auto& [id, watcher] : watchers) {
      if (descriptor < 0 || watcher.descriptor == descriptor) ids.push_back(id);
    }
    return ids;
  }

  void tell(int descriptor, const std::string& name, std::uint32_t mask) {
    for (const std::uint64_t id : ids_of(descriptor)) {
      const auto it = watchers.find(id);
      if (it == watchers.end()) continue;
      if ((mask & (it->second.mask | kAlways)) == 0) continue;
      const auto callback = it->second.callback;
      (*callback)(name, mask);
    }
  }

  void remove(std::uint64_t id) {
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
          tell(-1, {}, IN_Q_OVERFLOW);
          continue;
        }
        tell(event->wd, event->len > 0 ? std::string(event->name) : std::string(), event->mask);
        if ((event->mask & IN_IGNORED) != 0) forget(event->wd);
      }
    }
  }

  // The kernel has ended this descriptor and may give its number away again.
  void forget(int descriptor) {
    for (auto& [id, watcher] : watchers) {
      if (watcher.descriptor == descriptor) watcher.descriptor = kEnded;
    }
  }
  static constexpr int kEnded = -2;
};

Result<std::unique_ptr<InotifyWatch>> InotifyWatch::open(Loop& loop) {
  auto state = std::make_shared<State>();
  state->fd = FileDescriptor(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (!state->fd.valid()) return fail(errno_error("cannot open inotify", errno));
  state->reading = loop.watch(state->fd.get(), EPOLLIN, [weak = std::weak_ptr(state)](std::uint32_t) {
    if (const auto strong = weak.lock()) strong->read_events();
  });
  return std::unique_ptr<InotifyWatch>(new InotifyWatch(std::move(state)));
}

InotifyWatch::~InotifyWatch() {
  state_->reading.reset();
  state_->watchers.clear();
}

Result<Subscription> InotifyWatch::add(const std::string& path, std::uint32_t mask, Callback callback) {
  // IN_MASK_ADD: a second watch of one path must not take events from the first.
  const int descriptor = ::inotify_add_watch(state_->fd.get(), path.c_str(), mask | IN_MASK_ADD);
  if (descriptor < 0) return fail(errno_error("cannot watch", errno, path));
  const std::uint64_t id = state_->next_id++;
  state_->watchers[id] = {descriptor, mask & ~kSteering, std::make_shared<Callback>(std::move(callback))};
  return Subscription([weak = std::weak_ptr(state_), id] {
    if (const auto state = weak.lock()) state->remove(id);
  });
}

}  // namespace gpulet

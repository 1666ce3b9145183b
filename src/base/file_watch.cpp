#include "base/file_watch.h"

#include <limits.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <deque>

#include "base/log.h"
#include "base/text.h"

namespace gpulet {
namespace {

constexpr std::uint32_t kEvents = IN_CLOSE_WRITE | IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO |
                                  IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR;
constexpr int kMostLinksWatched = 16;  // on the way to one file
constexpr int kMostWatchAttempts = 4;  // to watch a way that changes meanwhile

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
FileWatch::Places FileWatch::places_of(const std::string& path) {
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
    if (!exists || (link && ++links > kMostLinksWatched)) break;
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

FileWatch::FileWatch(Loop& loop, std::string path, std::function<void()> changed,
                     std::unique_ptr<InotifyWatch> inotify)
    : loop_(loop), path_(std::move(path)), changed_(std::move(changed)), inotify_(std::move(inotify)) {}

Result<std::unique_ptr<FileWatch>> FileWatch::start(Loop& loop, std::string path,
                                                    std::function<void()> changed) {
  GPULET_TRY_ASSIGN(auto inotify, InotifyWatch::open(loop));
  std::unique_ptr<FileWatch> watch(
      new FileWatch(loop, std::move(path), std::move(changed), std::move(inotify)));
  GPULET_TRY(watch->arm());
  return watch;
}

// Watches the folders on the way to the file. What changes while they are being watched is seen by looking
// again.
Status FileWatch::arm() {
  for (int attempt = 0; attempt < kMostWatchAttempts; ++attempt) {
    Places places = places_of(path_);
    std::vector<Subscription> watches;
    for (const auto& [folder, names] : places) {
      auto watch = inotify_->add(
          folder, kEvents,
          [this, folder](const std::string& name, std::uint32_t mask) { on_event(folder, name, mask); });
      if (watch) {
        watches.push_back(std::move(*watch));
      } else if (watch.error().code() == Code::kIo) {
        return fail(watch.error());
      }
    }
    watches_ = std::move(watches);
    places_ = std::move(places);
    if (places_of(path_) == places_) break;
  }
  return {};
}

void FileWatch::on_event(const std::string& folder, const std::string& name, std::uint32_t mask) {
  constexpr std::uint32_t kFolderItself =
      IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED | IN_UNMOUNT | IN_Q_OVERFLOW;
  const auto names = places_.find(folder);
  const bool matters = (mask & kFolderItself) != 0 ||
                       (!name.empty() && names != places_.end() && names->second.contains(name));
  if (matters && !settling_) settling_ = loop_.after(kWatchDebounce, [this] { on_settled(); });
}

void FileWatch::on_settled() {
  settling_.reset();
  // Watched anew before it is read: a change from here on is an event of its own.
  if (const auto armed = arm(); !armed) log::warning("changes of a file are no longer seen", armed.error());
  changed_();
}

}  // namespace gpulet

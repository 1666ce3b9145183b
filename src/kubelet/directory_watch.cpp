#include "kubelet/directory_watch.h"

#include <filesystem>

namespace gpulet::kubelet {
namespace {

constexpr std::uint32_t kCame = IN_CREATE | IN_MOVED_TO;
constexpr std::uint32_t kWent = IN_DELETE | IN_MOVED_FROM;
constexpr std::uint32_t kSelf = IN_DELETE_SELF | IN_MOVE_SELF;

}  // namespace

Result<std::unique_ptr<DirectoryWatch>> DirectoryWatch::open(Loop& loop, std::string directory, Events events) {
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  GPULET_TRY_ASSIGN(auto inotify, InotifyWatch::open(loop));
  std::unique_ptr<DirectoryWatch> watch(
      new DirectoryWatch(std::move(directory), std::move(events), std::move(inotify)));
  watch->attach();
  return watch;
}

DirectoryWatch::DirectoryWatch(std::string directory, Events events, std::unique_ptr<InotifyWatch> inotify)
    : directory_(std::move(directory)), events_(std::move(events)), inotify_(std::move(inotify)) {}

bool DirectoryWatch::attach() {
  watch_.reset();
  const auto on_folder = [this](const std::string& name, std::uint32_t mask) { on_entry(name, mask); };
  const auto on_above = [this](const std::string&, std::uint32_t mask) { on_ancestor(mask); };
  // Each round ends with a watch, unless the ancestor vanished between two system calls: bounded all the same.
  for (int round = 0; round < 64; ++round) {
    if (auto watch = inotify_->add(directory_, kCame | kWent | kSelf | IN_ONLYDIR, on_folder)) {
      watch_ = std::move(*watch);
      return true;
    }
    std::filesystem::path ancestor = std::filesystem::path(directory_).parent_path();
    std::filesystem::path below(directory_);
    std::error_code ignored;
    while (!std::filesystem::is_directory(ancestor, ignored) && ancestor.has_relative_path()) {
      below = ancestor;
      ancestor = ancestor.parent_path();
    }
    auto watch = inotify_->add(ancestor.string(), kCame | kSelf | IN_ONLYDIR, on_above);
    if (!watch) continue;
    watch_ = std::move(*watch);
    // It may have come before the watch was there.
    if (!std::filesystem::exists(below, ignored)) return false;
  }
  return false;
}

void DirectoryWatch::on_entry(const std::string& name, std::uint32_t mask) {
  if ((mask & (kSelf | IN_IGNORED | IN_UNMOUNT)) != 0) {
    lost();
  } else if ((mask & IN_Q_OVERFLOW) != 0) {
    events_.rescan();
  } else if (!name.empty()) {
    events_.changed(name, (mask & kCame) != 0);
  }
}

void DirectoryWatch::on_ancestor(std::uint32_t) {
  if (attach()) events_.rescan();
}

void DirectoryWatch::lost() {
  attach();
  events_.rescan();
}

}  // namespace gpulet::kubelet

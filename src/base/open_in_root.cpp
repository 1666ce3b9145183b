#include "base/open_in_root.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <deque>
#include <vector>

#include "base/file.h"
#include "base/text.h"

namespace gpulet {
namespace {

constexpr int kMostLinks = 40;     // as the kernel
constexpr int kMostAttempts = 17;  // at a path that something keeps renaming

// The components still to walk, and the folders that lead to where we are: the root first.
class Walk {
 public:
  Walk(int root, const std::string& path, int flags, std::uint64_t resolve)
      : root_(root), flags_(flags), resolve_(resolve) {
    prepend(path);
  }

  int open() {
    while (!left_.empty()) {
      const std::string part = left_.front();
      left_.pop_front();
      if (part == ".") continue;
      if (part == "..") {
        if (!passed_.empty()) passed_.pop_back();
      } else if (!step(part)) {
        return -1;
      }
    }
    return finish();
  }

 private:
  int here() const { return passed_.empty() ? root_ : passed_.back().get(); }

  // What comes before a "." or a slash at the end must be a folder, and a link there is followed: so a "."
  // stays.
  void prepend(const std::string& path) {
    if (path.ends_with("/")) left_.emplace_front(".");
    const auto parts = text::split(path, '/');
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (!part->empty()) left_.push_front(*part);
    }
  }

  bool step(const std::string& part) {
    FileDescriptor next(::openat(here(), part.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat status{};
    if (!next.valid() || ::fstat(next.get(), &status) != 0) return false;
    const bool last_kept = left_.empty() && (flags_ & O_NOFOLLOW) != 0;
    if (S_ISLNK(status.st_mode) && !last_kept) return follow(next.get());
    if (!left_.empty() && !S_ISDIR(status.st_mode)) {
      errno = ENOTDIR;
      return false;
    }
    passed_.push_back(std::move(next));
    return true;
  }

  bool follow(int link) {
    char target[PATH_MAX];
    if ((resolve_ & RESOLVE_NO_SYMLINKS) != 0 || ++links_ > kMostLinks) {
      errno = ELOOP;
      return false;
    }
    const ssize_t length = ::readlinkat(link, "", target, sizeof target);
    if (length < 0) return false;
    const std::string says(target, static_cast<std::size_t>(length));
    if (text::starts_with(says, "/")) passed_.clear();
    prepend(says);
    return true;
  }

  int finish() {
    struct stat status{};
    if (::fstat(here(), &status) != 0) return -1;
    if ((flags_ & O_DIRECTORY) != 0 && !S_ISDIR(status.st_mode)) {
      errno = ENOTDIR;
      return -1;
    }
    if ((flags_ & O_PATH) != 0) return ::fcntl(here(), F_DUPFD_CLOEXEC, 0);
    if (S_ISLNK(status.st_mode)) {
      errno = ELOOP;
      return -1;
    }
    const std::string again = "/proc/self/fd/" + std::to_string(here());
    return ::open(again.c_str(), (flags_ & ~O_NOFOLLOW) | O_CLOEXEC);
  }

  int root_;
  int flags_;
  std::uint64_t resolve_;
  int links_ = 0;
  std::deque<std::string> left_;
  std::vector<FileDescriptor> passed_;
};

}  // namespace

int open_in_root_by_steps(int root, const std::string& path, int flags, std::uint64_t more_resolve) {
  return Walk(root, path, flags, more_resolve).open();
}

int open_in_root(int root, const std::string& path, int flags, std::uint64_t more_resolve) {
  static std::atomic<bool> refused{false};
  if (refused) return open_in_root_by_steps(root, path, flags, more_resolve);
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | more_resolve;
  // EAGAIN: something was renamed while the kernel passed a ".." and so cannot vouch for the way.
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    const long fd = ::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how);
    if (fd >= 0 || (errno != EAGAIN && errno != ENOSYS && errno != EPERM)) return static_cast<int>(fd);
    if (errno == EAGAIN) continue;
    // An old seccomp profile says EPERM to a system call that it does not know.
    refused = errno == ENOSYS;
    return open_in_root_by_steps(root, path, flags, more_resolve);
  }
  return -1;
}

}  // namespace gpulet

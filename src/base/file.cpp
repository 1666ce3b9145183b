#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "base/text.h"

namespace gpulet {
namespace {

constexpr int kMostLinks = 40;     // the kernel's limit
constexpr int kMostAttempts = 17;  // for a path that is renamed during the walk

// The components still to walk, and the open directories from the root to the current one.
class PathWalk {
 public:
  PathWalk(int root, const std::string& path, int flags, std::uint64_t resolve)
      : root_(root), flags_(flags), resolve_(resolve) {
    prepend(path);
  }

  int open_last() {
    while (!left_.empty()) {
      const std::string part = left_.front();
      left_.pop_front();
      if (part == ".") continue;
      if (part == "..") {
        if (!passed_.empty()) passed_.pop_back();
      } else if (!step_into(part)) {
        return -1;
      }
    }
    return open_final_component();
  }

 private:
  int here() const { return passed_.empty() ? root_ : passed_.back().get(); }

  // A path before a trailing "." or slash must be a directory, and a link there is followed: hence "." is
  // kept.
  void prepend(const std::string& path) {
    if (path.ends_with("/")) left_.emplace_front(".");
    const auto parts = text::split(path, '/');
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (!part->empty()) left_.push_front(*part);
    }
  }

  bool step_into(const std::string& part) {
    FileDescriptor next(::openat(here(), part.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat status{};
    if (!next.is_open() || ::fstat(next.get(), &status) != 0) return false;
    const bool last_kept = left_.empty() && (flags_ & O_NOFOLLOW) != 0;
    if (S_ISLNK(status.st_mode) && !last_kept) return follow_link(next.get());
    if (!left_.empty() && !S_ISDIR(status.st_mode)) {
      errno = ENOTDIR;
      return false;
    }
    passed_.push_back(std::move(next));
    return true;
  }

  bool follow_link(int link) {
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

  int open_final_component() {
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
  return PathWalk(root, path, flags, more_resolve).open_last();
}

int open_in_root(int root, const std::string& path, int flags, std::uint64_t more_resolve) {
  static std::atomic<bool> refused{false};
  if (refused) return open_in_root_by_steps(root, path, flags, more_resolve);
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | more_resolve;
  // EAGAIN: a rename while the kernel resolved a "..": it cannot prove that the path stayed inside the root.
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    const long fd = ::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how);
    if (fd >= 0 || (errno != EAGAIN && errno != ENOSYS && errno != EPERM)) return static_cast<int>(fd);
    if (errno == EAGAIN) continue;
    // An old seccomp profile returns EPERM for an unknown system call.
    refused = errno == ENOSYS;
    return open_in_root_by_steps(root, path, flags, more_resolve);
  }
  return -1;
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void FileDescriptor::reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Result<std::string> read_all(int fd, const std::string& about, std::size_t max_bytes) {
  std::string content;
  char buffer[65536];
  for (;;) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(errno_error("cannot read", errno, about));
    if (got == 0) return content;
    content.append(buffer, static_cast<std::size_t>(got));
    if (content.size() > max_bytes) {
      return fail(Code::kInvalidArgument, "larger than the limit of " + std::to_string(max_bytes) + " bytes",
                  about);
    }
  }
}

Result<std::string> read_prefix(const std::string& path, std::size_t bytes) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.is_open()) return fail(errno_error("cannot open", errno, path));
  std::string content(bytes, '\0');
  ssize_t got = -1;
  do got = ::read(fd.get(), content.data(), content.size());
  while (got < 0 && errno == EINTR);
  if (got < 0) return fail(errno_error("cannot read", errno, path));
  content.resize(static_cast<std::size_t>(got));
  return content;
}

Result<std::string> read_file(const std::string& path, std::size_t max_bytes) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.is_open()) return fail(errno_error("cannot open", errno, path));
  return read_all(fd.get(), path, max_bytes);
}

namespace {

Status write_all(int fd, std::string_view content, const std::string& about) {
  while (!content.empty()) {
    const ssize_t put = ::write(fd, content.data(), content.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return fail(errno_error("cannot write", errno, about));
    content.remove_prefix(static_cast<std::size_t>(put));
  }
  return {};
}

}  // namespace

Status make_directories(const std::string& path, mode_t mode) {
  for (std::size_t end = 1; end <= path.size(); ++end) {
    if (end != path.size() && path[end] != '/') continue;
    const std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), mode) != 0 && errno != EEXIST)
      return fail(errno_error("cannot create directory", errno, part));
  }
  return {};
}

Status write_file_atomic(const std::string& path, std::string_view content, mode_t mode) {
  const auto slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0) GPULET_TRY(make_directories(path.substr(0, slash)));
  static std::atomic<unsigned> counter{0};
  const std::string temporary = path + ".tmp." + std::to_string(::getpid()) + "." + std::to_string(counter++);
  FileDescriptor fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!fd.is_open()) return fail(errno_error("cannot create", errno, temporary));
  Status done = write_all(fd.get(), content, temporary);
  if (done && (::fchmod(fd.get(), mode) != 0 || ::fsync(fd.get()) != 0)) {
    done = fail(errno_error("cannot finish", errno, temporary));
  }
  if (done && ::rename(temporary.c_str(), path.c_str()) != 0)
    done = fail(errno_error("cannot replace", errno, path));
  if (!done) ::unlink(temporary.c_str());
  return done;
}

Result<RootDirectory> RootDirectory::open_root(const std::string& path) {
  FileDescriptor fd(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd.is_open()) return fail(errno_error("cannot open directory", errno, path));
  return RootDirectory(path, std::move(fd));
}

Result<FileDescriptor> RootDirectory::open_file(std::string_view path, int flags,
                                                std::uint64_t more_resolve) const {
  std::string relative(path);
  if (relative.empty()) relative = "/";
  FileDescriptor fd(open_in_root(fd_.get(), relative, flags, more_resolve));
  if (!fd.is_open())
    return fail(errno_error("cannot open", errno, path_ + (relative[0] == '/' ? "" : "/") + relative));
  return fd;
}

Result<std::string> RootDirectory::read_text_file(std::string_view path, std::size_t max_bytes) const {
  GPULET_TRY_ASSIGN(const FileDescriptor fd, open_file(path, O_RDONLY));
  return read_all(fd.get(), std::string(path), max_bytes);
}

bool RootDirectory::exists(std::string_view path) const { return open_file(path, O_PATH).has_value(); }

Result<std::vector<std::string>> RootDirectory::list_directory(std::string_view path) const {
  GPULET_TRY_ASSIGN(FileDescriptor fd, open_file(path, O_RDONLY | O_DIRECTORY));
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::fdopendir(fd.get()), ::closedir);
  if (!directory) return fail(errno_error("cannot list", errno, std::string(path)));
  static_cast<void>(fd.release());  // closedir closes it
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::string> RootDirectory::resolve(std::string_view path) const {
  GPULET_TRY_ASSIGN(const FileDescriptor fd, open_file(path, O_PATH));
  auto path_of = [](int descriptor) -> Result<std::string> {
    char target[PATH_MAX];
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    const ssize_t length = ::readlink(link.c_str(), target, sizeof target);
    if (length < 0) return fail(errno_error("cannot read link", errno, link));
    return std::string(target, static_cast<std::size_t>(length));
  };
  GPULET_TRY_ASSIGN(const std::string root, path_of(fd_.get()));
  GPULET_TRY_ASSIGN(std::string full, path_of(fd.get()));
  if (root == "/") return full;
  return full == root ? std::string("/") : full.substr(root.size());
}

Result<dev_t> RootDirectory::character_device(std::string_view path) const {
  GPULET_TRY_ASSIGN(const FileDescriptor fd, open_file(path, O_PATH));
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) return fail(errno_error("cannot stat", errno, std::string(path)));
  if (!S_ISCHR(status.st_mode))
    return fail(Code::kFailedPrecondition, "not a character device", std::string(path));
  return status.st_rdev;
}

Status RootDirectory::create_character_device(std::string_view path, dev_t device, mode_t mode) const {
  const auto slash = path.rfind('/');
  const std::string_view directory = slash == std::string_view::npos ? "" : path.substr(0, slash);
  const std::string name(slash == std::string_view::npos ? path : path.substr(slash + 1));
  constexpr int kDirectoryFlags = O_PATH | O_DIRECTORY;
  auto parent = open_file(directory, kDirectoryFlags, RESOLVE_NO_SYMLINKS);
  if (!parent && parent.error().code() == Code::kNotFound && directory.rfind('/') != std::string_view::npos) {
    const auto split = directory.rfind('/');
    GPULET_TRY_ASSIGN(const FileDescriptor above,
                      open_file(directory.substr(0, split), kDirectoryFlags, RESOLVE_NO_SYMLINKS));
    if (::mkdirat(above.get(), std::string(directory.substr(split + 1)).c_str(), 0755) != 0 &&
        errno != EEXIST)
      return fail(errno_error("cannot create directory", errno, std::string(directory)));
    parent = open_file(directory, kDirectoryFlags, RESOLVE_NO_SYMLINKS);
  }
  if (!parent) return fail(parent.error());
  if (::mknodat(parent->get(), name.c_str(), S_IFCHR | mode, device) != 0) {
    if (errno == EEXIST) return fail(Code::kFailedPrecondition, "exists already", std::string(path));
    return fail(errno_error("cannot create device node", errno, std::string(path)));
  }
  // The umask may have removed bits. Only the node itself, whoever replaced it meanwhile.
  const FileDescriptor node(::openat(parent->get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat status{};
  if (!node.is_open() || ::fstat(node.get(), &status) != 0 || !S_ISCHR(status.st_mode) ||
      status.st_rdev != device)
    return fail(Code::kIo, "was replaced while it was created", std::string(path));
  if (::chmod(("/proc/self/fd/" + std::to_string(node.get())).c_str(), mode) != 0)
    return fail(errno_error("cannot set the mode", errno, std::string(path)));
  return {};
}

namespace {

constexpr int kBacklog = 64;

Result<sockaddr_un> address_of(const std::string& path) {
  if (path.empty() || path.size() > kMaxSocketPath) {
    return fail(Code::kInvalidArgument,
                "a socket's path has 1 to " + std::to_string(kMaxSocketPath) + " bytes, this one has " +
                    std::to_string(path.size()),
                path);
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Result<FileDescriptor> make_socket(const std::string& path) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return fail(errno_error("socket", errno, path));
  return socket;
}

}  // namespace

std::optional<FileIdentity> file_identity(const std::string& path) {
  struct stat found{};
  if (::lstat(path.c_str(), &found) != 0) return std::nullopt;
  return FileIdentity{found.st_dev, found.st_ino,
                      found.st_mtim.tv_sec * 1'000'000'000 + found.st_mtim.tv_nsec};
}

Result<FileDescriptor> bind_unix_socket(const std::string& path) {
  GPULET_TRY_ASSIGN(const sockaddr_un address, address_of(path));
  struct stat found{};
  if (::lstat(path.c_str(), &found) == 0) {
    if (!S_ISSOCK(found.st_mode))
      return fail(Code::kFailedPrecondition, "something else than a socket is there", path);
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return fail(errno_error("unlink", errno, path));
  }
  GPULET_TRY_ASSIGN(FileDescriptor socket, make_socket(path));
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return fail(errno_error("bind", errno, path));
  }
  if (::chmod(path.c_str(), 0600) != 0) return fail(errno_error("chmod", errno, path));
  return socket;
}

Status start_listening(const FileDescriptor& socket, const std::string& path) {
  if (::listen(socket.get(), kBacklog) != 0) return fail(errno_error("listen", errno, path));
  return {};
}

Result<FileDescriptor> connect_unix_socket(const std::string& path) {
  GPULET_TRY_ASSIGN(const sockaddr_un address, address_of(path));
  GPULET_TRY_ASSIGN(FileDescriptor socket, make_socket(path));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EAGAIN) return fail(Code::kUnavailable, "connect: too many wait already", path);
    return fail(errno_error("connect", errno, path));
  }
  return socket;
}

}  // namespace gpulet

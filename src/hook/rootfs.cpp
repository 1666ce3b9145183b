#include "hook/rootfs.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <memory>
#include <utility>

namespace gpulet::hook {
namespace {

// The kernel fails if a part of the path is renamed meanwhile. This limit ends an endless race.
constexpr int kMaxRaces = 64;
constexpr int kMaxTemporaryNames = 16;
constexpr int kMaxDepth = 128;
constexpr std::uint64_t kInside = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;

// Turns an errno into an error, with the causes in hostile or unusual images.
Error path_error(std::string_view what, int error_number, std::string_view path) {
  const std::string about(path);
  switch (error_number) {
    case ENOSYS:
      return Error(Code::kUnsupported, "this kernel has no openat2: Linux 5.6 or newer is needed", about);
    case EXDEV:
      return Error(Code::kPermissionDenied,
                   std::string(what) + ": on another mount than the container's root", about);
    case ELOOP:
      return Error(Code::kFailedPrecondition, std::string(what) + ": a link loop, or a link out of the root",
                   about);
    case EISDIR:
    case ENOTEMPTY:
      return Error(Code::kFailedPrecondition, std::string(what) + ": a directory is in its place", about);
    case ENAMETOOLONG:
      return Error(Code::kInvalidArgument, std::string(what) + ": the name is too long", about);
    default:
      return errno_error(what, error_number, about);
  }
}

// Returns -errno on failure.
int open_at(int directory, const std::string& path, int flags, std::uint64_t resolve) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
  how.resolve = resolve;
  for (int races = 0;; ++races) {
    const long fd = ::syscall(SYS_openat2, directory, path.c_str(), &how, sizeof how);
    if (fd >= 0) return static_cast<int>(fd);
    if (errno != EINTR && (errno != EAGAIN || races >= kMaxRaces)) return -errno;
  }
}

Status check_text(std::string_view path) {
  if (path.empty() || path.size() >= PATH_MAX || path.find('\0') != std::string_view::npos)
    return fail(Code::kInvalidArgument, "not a path: empty, too long, or with a NUL in it");
  return {};
}

// Returns whether it is the container's own /dev: a tmpfs that is not the host's.
bool is_container_dev(int fd) {
  struct statfs system{};
  struct stat own{};
  struct stat host{};
  if (::fstatfs(fd, &system) != 0 || system.f_type != TMPFS_MAGIC || ::fstat(fd, &own) != 0) return false;
  return ::stat("/dev", &host) != 0 || host.st_dev != own.st_dev;
}

// Opens a directory for writing, see rootfs.h. Returns -errno on failure.
int open_to_write(int root, const std::string& path) {
  constexpr int kFlags = O_PATH | O_DIRECTORY;
  const int fd = open_at(root, path, kFlags, kInside | RESOLVE_NO_XDEV);
  if (fd != -EXDEV || (path != "/dev" && path.rfind("/dev/", 0) != 0)) return fd;
  const FileDescriptor dev(open_at(root, "/dev", kFlags, kInside));
  if (!dev.is_open() || !is_container_dev(dev.get())) return -EXDEV;
  return open_at(dev.get(), path == "/dev" ? "." : path.substr(5), kFlags, kInside | RESOLVE_NO_XDEV);
}

Status write_all(int fd, std::string_view content, std::string_view path) {
  while (!content.empty()) {
    const ssize_t put = ::write(fd, content.data(), content.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return fail(path_error("cannot write", errno, path));
    content.remove_prefix(static_cast<std::size_t>(put));
  }
  return {};
}

// Returns a unique name for a temporary file.
std::string temporary_name() {
  static unsigned counter = 0;
  return ".gpulet-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
}

// An entry that cannot be replaced or removed. A mount of the Pod in its place is like a read-only place:
// EBUSY for a file, EISDIR for a directory.
Error entry_error(std::string_view what, int error_number, int directory, const std::string& name,
                  std::string_view path) {
  const auto is_mount = [&] {
    const FileDescriptor entry(
        open_at(directory, name, O_PATH | O_NOFOLLOW, RESOLVE_BENEATH | RESOLVE_NO_XDEV));
    return entry.get() == -EXDEV;
  };
  if (error_number == EBUSY || (error_number == EISDIR && is_mount()))
    return Error(Code::kPermissionDenied, std::string(what) + ": a mount is in its place", std::string(path));
  return path_error(what, error_number, path);
}

// Renames `temporary` to `name`, or removes it.
Status rename_into_place(int directory, const std::string& temporary, const std::string& name,
                         std::string_view path) {
  if (::renameat(directory, temporary.c_str(), directory, name.c_str()) == 0) return {};
  const int why = errno;
  ::unlinkat(directory, temporary.c_str(), 0);
  return fail(entry_error("cannot replace", why, directory, name, path));
}

Result<FileDescriptor> make_directories_at(int root, std::string_view path, int depth) {
  GPULET_TRY(check_text(path));
  FileDescriptor found(open_to_write(root, std::string(path)));
  if (found.is_open()) return found;
  const int why = -found.release();
  if (why != ENOENT || depth >= kMaxDepth) return fail(path_error("cannot open directory", why, path));
  GPULET_TRY_ASSIGN(const SplitPath split, split_path(path));
  GPULET_TRY_ASSIGN(const FileDescriptor parent, make_directories_at(root, split.directory, depth + 1));
  if (::mkdirat(parent.get(), split.name.c_str(), 0755) != 0 && errno != EEXIST)
    return fail(path_error("cannot create directory", errno, path));
  // Accepts only a directory of this mount, whatever was put there meanwhile.
  FileDescriptor made(open_at(parent.get(), split.name, O_PATH | O_DIRECTORY | O_NOFOLLOW,
                              RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV));
  if (made.is_open()) return made;
  const int refused = -made.release();
  if (refused == ELOOP || refused == ENOTDIR)
    return fail(Code::kFailedPrecondition,
                "cannot create directory: a dangling link or a file is in its place", std::string(path));
  return fail(path_error("cannot open directory", refused, path));
}

}  // namespace

Result<SplitPath> split_path(std::string_view path) {
  GPULET_TRY(check_text(path));
  const auto slash = path.rfind('/');
  SplitPath split;
  split.name = std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
  const std::string_view directory =
      slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
  split.directory = directory.empty() ? "/" : std::string(directory);
  if (split.name.empty() || split.name == "." || split.name == ".." || split.name.size() > NAME_MAX)
    return fail(Code::kInvalidArgument, "not the path of a file", std::string(path));
  return split;
}

Result<Rootfs> Rootfs::open_root(const std::string& path) {
  GPULET_TRY(check_text(path));
  if (path[0] != '/')
    return fail(Code::kInvalidArgument, "the container's root is not an absolute path", path);
  FileDescriptor root(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root.is_open()) return fail(errno_error("cannot open the container's root", errno, path));
  struct stat own{};
  struct stat host{};
  if (::fstat(root.get(), &own) != 0 || ::stat("/", &host) != 0)
    return fail(errno_error("cannot examine the container's root", errno, path));
  if (own.st_dev == host.st_dev && own.st_ino == host.st_ino)
    return fail(Code::kInvalidArgument, "the container's root is the host's root", path);
  return Rootfs(std::move(root));
}

Result<FileDescriptor> Rootfs::open_inside(std::string_view path, int flags) const {
  GPULET_TRY(check_text(path));
  if ((flags & (O_CREAT | O_TRUNC)) != 0) return fail(Code::kInternal, "only write_file creates files");
  const int nonblocking = (flags & O_PATH) != 0 ? 0 : O_NONBLOCK | O_NOCTTY;
  const int fd = open_at(root_.get(), std::string(path), flags | nonblocking, kInside);
  if (fd < 0) return fail(path_error("cannot open", -fd, path));
  return FileDescriptor(fd);
}

Result<FileDescriptor> Rootfs::open_regular(std::string_view path, std::size_t max_bytes) const {
  // O_PATH first: opening a device may have side effects.
  GPULET_TRY_ASSIGN(const FileDescriptor place, open_inside(path, O_PATH));
  struct stat status{};
  struct statfs system{};
  if (::fstat(place.get(), &status) != 0 || ::fstatfs(place.get(), &system) != 0)
    return fail(path_error("cannot examine", errno, path));
  if (!S_ISREG(status.st_mode) || system.f_type == PROC_SUPER_MAGIC || system.f_type == SYSFS_MAGIC)
    return fail(Code::kFailedPrecondition, "not a regular file", std::string(path));
  if (static_cast<std::uint64_t>(status.st_size) > max_bytes)
    return fail(Code::kInvalidArgument, "larger than the limit of " + std::to_string(max_bytes) + " bytes",
                std::string(path));
  // Reopen the examined inode through the hook's own /proc link.
  const std::string own = "/proc/self/fd/" + std::to_string(place.get());
  FileDescriptor fd(::open(own.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd.is_open()) return fail(path_error("cannot open", errno, path));
  return fd;
}

Result<std::string> Rootfs::read_file(std::string_view path, std::size_t max_bytes) const {
  GPULET_TRY_ASSIGN(const FileDescriptor fd, open_regular(path, max_bytes));
  return read_all(fd.get(), std::string(path), max_bytes);
}

bool Rootfs::is_directory(std::string_view path) const {
  return open_inside(path, O_PATH | O_DIRECTORY).has_value();
}

Result<std::vector<std::string>> Rootfs::list_directory(std::string_view path,
                                                        std::size_t max_entries) const {
  GPULET_TRY_ASSIGN(FileDescriptor fd, open_inside(path, O_RDONLY | O_DIRECTORY));
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::fdopendir(fd.get()), ::closedir);
  if (!directory) return fail(path_error("cannot list", errno, path));
  static_cast<void>(fd.release());  // closedir closes it
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (names.size() == max_entries)
      return fail(Code::kInvalidArgument, "holds more than " + std::to_string(max_entries) + " files",
                  std::string(path));
    names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::string> Rootfs::read_link(std::string_view path) const {
  GPULET_TRY_ASSIGN(const FileDescriptor fd, open_inside(path, O_PATH | O_NOFOLLOW));
  char target[PATH_MAX];
  const ssize_t length = ::readlinkat(fd.get(), "", target, sizeof target);
  if (length < 0) return fail(Code::kFailedPrecondition, "not a link", std::string(path));
  return std::string(target, static_cast<std::size_t>(length));
}

Result<FileDescriptor> Rootfs::make_directories(std::string_view path) const {
  return make_directories_at(root_.get(), path, 0);
}

Status Rootfs::write_file(std::string_view path, std::string_view content, mode_t mode) const {
  GPULET_TRY_ASSIGN(const SplitPath split, split_path(path));
  GPULET_TRY_ASSIGN(const FileDescriptor directory, make_directories(split.directory));
  for (int attempt = 0; attempt < kMaxTemporaryNames; ++attempt) {
    const std::string temporary = temporary_name();
    const FileDescriptor fd(::openat(directory.get(), temporary.c_str(),
                                     O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
    if (!fd.is_open() && errno == EEXIST) continue;
    if (!fd.is_open()) return fail(path_error("cannot create", errno, path));
    Status done = write_all(fd.get(), content, path);
    if (done && ::fchmod(fd.get(), mode) != 0) done = fail(path_error("cannot finish", errno, path));
    if (!done) {
      ::unlinkat(directory.get(), temporary.c_str(), 0);
      return done;
    }
    return rename_into_place(directory.get(), temporary, split.name, path);
  }
  return fail(Code::kFailedPrecondition, "cannot create: every temporary name exists", std::string(path));
}

Status Rootfs::make_symlink(std::string_view target, std::string_view path) const {
  GPULET_TRY(check_text(target));
  GPULET_TRY_ASSIGN(const SplitPath split, split_path(path));
  GPULET_TRY_ASSIGN(const FileDescriptor directory, make_directories(split.directory));
  char now[PATH_MAX];
  const ssize_t length = ::readlinkat(directory.get(), split.name.c_str(), now, sizeof now);
  if (length >= 0 && std::string_view(now, static_cast<std::size_t>(length)) == target) return {};
  for (int attempt = 0; attempt < kMaxTemporaryNames; ++attempt) {
    const std::string temporary = temporary_name();
    if (::symlinkat(std::string(target).c_str(), directory.get(), temporary.c_str()) != 0) {
      if (errno == EEXIST) continue;
      return fail(path_error("cannot create link", errno, path));
    }
    return rename_into_place(directory.get(), temporary, split.name, path);
  }
  return fail(Code::kFailedPrecondition, "cannot create link: every temporary name exists",
              std::string(path));
}

Status Rootfs::remove_file(std::string_view path) const {
  GPULET_TRY_ASSIGN(const SplitPath split, split_path(path));
  const FileDescriptor directory(open_to_write(root_.get(), split.directory));
  if (!directory.is_open() && directory.get() == -ENOENT) return {};
  if (!directory.is_open()) return fail(path_error("cannot open directory", -directory.get(), path));
  // Check first: a read-only file system refuses to remove even a missing file.
  struct stat status{};
  if (::fstatat(directory.get(), split.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT)
    return {};
  if (::unlinkat(directory.get(), split.name.c_str(), 0) != 0 && errno != ENOENT)
    return fail(entry_error("cannot remove", errno, directory.get(), split.name, path));
  return {};
}

}  // namespace gpulet::hook

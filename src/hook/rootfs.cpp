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

// The kernel gives up on a path while others rename what is on it; an image that races us for ever ends here.
constexpr int kMaxRaces = 64;
constexpr int kMaxTemporaryNames = 16;
constexpr int kMaxDepth = 128;
constexpr std::uint64_t kInside = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;

// An errno's error, with what a hostile or unusual image makes of it.
Error path_error(std::string_view what, int error_number, std::string_view path) {
  const std::string about(path);
  switch (error_number) {
    case ENOSYS:
      return Error(Code::kUnsupported, "this kernel has no openat2: Linux 5.6 or newer is needed", about);
    case EXDEV:
      return Error(Code::kPermissionDenied,
                   std::string(what) + ": it is on another mount than the container's root", about);
    case ELOOP:
      return Error(Code::kFailedPrecondition, std::string(what) + ": a loop of links, or a link out of it",
                   about);
    case EISDIR:
    case ENOTEMPTY:
      return Error(Code::kFailedPrecondition, std::string(what) + ": a folder is in its place", about);
    case ENAMETOOLONG:
      return Error(Code::kInvalidArgument, std::string(what) + ": its name is too long", about);
    default:
      return errno_error(what, error_number, about);
  }
}

// -errno when it fails.
int open_at(int folder, const std::string& path, int flags, std::uint64_t resolve) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
  how.resolve = resolve;
  for (int races = 0;; ++races) {
    const long fd = ::syscall(SYS_openat2, folder, path.c_str(), &how, sizeof how);
    if (fd >= 0) return static_cast<int>(fd);
    if (errno != EINTR && (errno != EAGAIN || races >= kMaxRaces)) return -errno;
  }
}

Status check_text(std::string_view path) {
  if (path.empty() || path.size() >= PATH_MAX || path.find('\0') != std::string_view::npos)
    return fail(Code::kInvalidArgument, "not a path: empty, too long, or with a NUL in it");
  return {};
}

// The container's own /dev: a tmpfs that is not the host's.
bool is_own_dev(int fd) {
  struct statfs system{};
  struct stat own{};
  struct stat host{};
  if (::fstatfs(fd, &system) != 0 || system.f_type != TMPFS_MAGIC || ::fstat(fd, &own) != 0) return false;
  return ::stat("/dev", &host) != 0 || host.st_dev != own.st_dev;
}

// A folder to write in, as rootfs.h says. -errno when it fails.
int open_to_write(int root, const std::string& path) {
  constexpr int kFlags = O_PATH | O_DIRECTORY;
  const int fd = open_at(root, path, kFlags, kInside | RESOLVE_NO_XDEV);
  if (fd != -EXDEV || (path != "/dev" && path.rfind("/dev/", 0) != 0)) return fd;
  const FileDescriptor dev(open_at(root, "/dev", kFlags, kInside));
  if (!dev.valid() || !is_own_dev(dev.get())) return -EXDEV;
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

// A name for a temporary file that nobody else in this process or run uses.
std::string temporary_name() {
  static unsigned counter = 0;
  return ".gpulet-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
}

// Puts `temporary` in the place of `name`, or takes it away again.
Status put_in_place(int folder, const std::string& temporary, const std::string& name,
                    std::string_view path) {
  if (::renameat(folder, temporary.c_str(), folder, name.c_str()) == 0) return {};
  const int why = errno;
  ::unlinkat(folder, temporary.c_str(), 0);
  return fail(path_error("cannot replace", why, path));
}

Result<FileDescriptor> make_folders_at(int root, std::string_view path, int depth) {
  GPULET_TRY(check_text(path));
  FileDescriptor found(open_to_write(root, std::string(path)));
  if (found.valid()) return found;
  const int why = -found.release();
  if (why != ENOENT || depth >= kMaxDepth) return fail(path_error("cannot open folder", why, path));
  GPULET_TRY_ASSIGN(const SplitPath split, split_path(path));
  GPULET_TRY_ASSIGN(const FileDescriptor parent, make_folders_at(root, split.folder, depth + 1));
  if (::mkdirat(parent.get(), split.name.c_str(), 0755) != 0 && errno != EEXIST)
    return fail(path_error("cannot create folder", errno, path));
  // Whatever a rival put there meanwhile: only a folder of this very mount is taken.
  FileDescriptor made(open_at(parent.get(), split.name, O_PATH | O_DIRECTORY | O_NOFOLLOW,
                              RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV));
  if (made.valid()) return made;
  const int refused = -made.release();
  if (refused == ELOOP || refused == ENOTDIR)
    return fail(Code::kFailedPrecondition,
                "cannot create folder: a link to nothing or a file is in its place", std::string(path));
  return fail(path_error("cannot open folder", refused, path));
}

}  // namespace

Result<SplitPath> split_path(std::string_view path) {
  GPULET_TRY(check_text(path));
  const auto slash = path.rfind('/');
  SplitPath split;
  split.name = std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
  const std::string_view folder =
      slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
  split.folder = folder.empty() ? "/" : std::string(folder);
  if (split.name.empty() || split.name == "." || split.name == ".." || split.name.size() > NAME_MAX)
    return fail(Code::kInvalidArgument, "not the path of a file", std::string(path));
  return split;
}

Result<Rootfs> Rootfs::open(const std::string& path) {
  GPULET_TRY(check_text(path));
  if (path[0] != '/')
    return fail(Code::kInvalidArgument, "the container's root is not an absolute path", path);
  FileDescriptor root(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root.valid()) return fail(errno_error("cannot open the container's root", errno, path));
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
  if ((flags & (O_CREAT | O_TRUNC)) != 0) return fail(Code::kInternal, "files are made by write_file alone");
  const int nonblocking = (flags & O_PATH) != 0 ? 0 : O_NONBLOCK | O_NOCTTY;
  const int fd = open_at(root_.get(), std::string(path), flags | nonblocking, kInside);
  if (fd < 0) return fail(path_error("cannot open", -fd, path));
  return FileDescriptor(fd);
}

Result<FileDescriptor> Rootfs::open_regular(std::string_view path, std::size_t max_bytes) const {
  // O_PATH first: to open a device, even to look at it, may already do something.
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
  // The very inode that was examined, by the one magic link that is ours.
  const std::string own = "/proc/self/fd/" + std::to_string(place.get());
  FileDescriptor fd(::open(own.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd.valid()) return fail(path_error("cannot open", errno, path));
  return fd;
}

Result<std::string> Rootfs::read(std::string_view path, std::size_t max_bytes) const {
  GPULET_TRY_ASSIGN(const FileDescriptor fd, open_regular(path, max_bytes));
  return read_all(fd.get(), std::string(path), max_bytes);
}

bool Rootfs::is_folder(std::string_view path) const {
  return open_inside(path, O_PATH | O_DIRECTORY).has_value();
}

Result<std::vector<std::string>> Rootfs::list(std::string_view path, std::size_t max_entries) const {
  GPULET_TRY_ASSIGN(FileDescriptor fd, open_inside(path, O_RDONLY | O_DIRECTORY));
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::fdopendir(fd.get()), ::closedir);
  if (!folder) return fail(path_error("cannot list", errno, path));
  static_cast<void>(fd.release());  // closedir closes it
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(folder.get())) {
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

Result<FileDescriptor> Rootfs::make_folders(std::string_view path) const {
  return make_folders_at(root_.get(), path, 0);
}

Status Rootfs::write_file(std::string_view path, std::string_view content, mode_t mode) const {
  GPULET_TRY_ASSIGN(const SplitPath split, split_path(path));
  GPULET_TRY_ASSIGN(const FileDescriptor folder, make_folders(split.folder));
  for (int attempt = 0; attempt < kMaxTemporaryNames; ++attempt) {
    const std::string temporary = temporary_name();
    const FileDescriptor fd(::openat(folder.get(), temporary.c_str(),
                                     O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
    if (!fd.valid() && errno == EEXIST) continue;
    if (!fd.valid()) return fail(path_error("cannot create", errno, path));
    Status done = write_all(fd.get(), content, path);
    if (done && ::fchmod(fd.get(), mode) != 0) done = fail(path_error("cannot finish", errno, path));
    if (!done) {
      ::unlinkat(folder.get(), temporary.c_str(), 0);
      return done;
    }
    return put_in_place(folder.get(), temporary, split.name, path);
  }
  return fail(Code::kFailedPrecondition, "cannot create: others take every name", std::string(path));
}

Status Rootfs::make_link(std::string_view target, std::string_view path) const {
  GPULET_TRY(check_text(target));
  GPULET_TRY_ASSIGN(const SplitPath split, split_path(path));
  GPULET_TRY_ASSIGN(const FileDescriptor folder, make_folders(split.folder));
  char now[PATH_MAX];
  const ssize_t length = ::readlinkat(folder.get(), split.name.c_str(), now, sizeof now);
  if (length >= 0 && std::string_view(now, static_cast<std::size_t>(length)) == target) return {};
  for (int attempt = 0; attempt < kMaxTemporaryNames; ++attempt) {
    const std::string temporary = temporary_name();
    if (::symlinkat(std::string(target).c_str(), folder.get(), temporary.c_str()) != 0) {
      if (errno == EEXIST) continue;
      return fail(path_error("cannot create link", errno, path));
    }
    return put_in_place(folder.get(), temporary, split.name, path);
  }
  return fail(Code::kFailedPrecondition, "cannot create link: others take every name", std::string(path));
}

Status Rootfs::remove_file(std::string_view path) const {
  GPULET_TRY_ASSIGN(const SplitPath split, split_path(path));
  const FileDescriptor folder(open_to_write(root_.get(), split.folder));
  if (!folder.valid() && folder.get() == -ENOENT) return {};
  if (!folder.valid()) return fail(path_error("cannot open folder", -folder.get(), path));
  // Asked first: a read-only file system refuses to remove even what is not there.
  struct stat status{};
  if (::fstatat(folder.get(), split.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT)
    return {};
  if (::unlinkat(folder.get(), split.name.c_str(), 0) != 0 && errno != ENOENT)
    return fail(path_error("cannot remove", errno, path));
  return {};
}

}  // namespace gpulet::hook

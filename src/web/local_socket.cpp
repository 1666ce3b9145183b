#include "web/local_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/unix_socket.h"

namespace gpulet::web {
namespace {

constexpr int kLocalBacklog = 64;  // connections that wait while the child is started anew
constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

// What an open descriptor is called, for the calls that take nothing but a path.
std::string path_of(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

Result<FileDescriptor> open_folder(const std::string& folder) {
  GPULET_TRY(make_directories(folder));
  FileDescriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid() && (errno == ELOOP || errno == ENOTDIR)) {
    return fail(Code::kFailedPrecondition, "not a folder, and a link is not followed", folder);
  }
  if (!fd.valid()) return fail(errno_error("cannot be opened", errno, folder));
  struct stat found{};
  if (::fstat(fd.get(), &found) != 0) return fail(errno_error("cannot be looked at", errno, folder));
  if ((found.st_uid != 0 && found.st_uid != ::geteuid()) || (found.st_mode & kOthersWrite) != 0) {
    return fail(Code::kFailedPrecondition,
                "others may write in this folder, and so put their own socket there; it must be root's and "
                "writable by nobody else (chmod 755)",
                folder);
  }
  return fd;
}

// What is there now may be replaced.
Status check_place(int folder, const std::string& name, const std::string& path) {
  struct stat found{};
  if (::fstatat(folder, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return {};
    return fail(errno_error("cannot be looked at", errno, path));
  }
  if (S_ISSOCK(found.st_mode)) return {};
  return fail(Code::kFailedPrecondition, "something else than a socket is there", path);
}

}  // namespace

Result<std::unique_ptr<LocalSocket>> LocalSocket::listen(const std::string& path, mode_t mode) {
  const auto slash = path.rfind('/');
  if (path.empty() || path.front() != '/' || slash + 1 == path.size() || path.size() > kMaxSocketPath) {
    return fail(Code::kInvalidArgument,
                "not a path for a socket; it must be absolute and of at most " +
                    std::to_string(kMaxSocketPath) + " bytes",
                path);
  }
  std::unique_ptr<LocalSocket> made(new LocalSocket(path, mode));
  made->name_ = path.substr(slash + 1);
  GPULET_TRY_ASSIGN(made->folder_, open_folder(path.substr(0, std::max<std::size_t>(slash, 1))));
  const int folder = made->folder_.get();
  GPULET_TRY(check_place(folder, made->name_, path));

  made->socket_ = FileDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int socket = made->socket_.get();
  if (socket < 0) return fail(errno_error("cannot make a socket", errno, path));
  // Under another name first: it appears with its mode, and listening.
  const std::string before = ".gpulet-" + std::to_string(::getpid());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string place = path_of(folder) + "/" + before;
  std::memcpy(address.sun_path, place.data(), place.size());
  ::unlinkat(folder, before.c_str(), 0);
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return fail(errno_error("cannot be bound", errno, path));
  }
  const auto finish = [&]() -> Status {
    // By a descriptor, so that it is this file and no other whose mode changes.
    const FileDescriptor file(::openat(folder, before.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat found{};
    if (!file.valid() || ::fstat(file.get(), &found) != 0) {
      return fail(errno_error("cannot be looked at", errno, path));
    }
    made->device_ = found.st_dev;
    made->inode_ = found.st_ino;
    if (::chmod(path_of(file.get()).c_str(), mode) != 0) {
      return fail(errno_error("cannot be given its mode", errno, path));
    }
    if (::listen(socket, kLocalBacklog) != 0) return fail(errno_error("cannot listen", errno, path));
    if (::renameat(folder, before.c_str(), folder, made->name_.c_str()) != 0) {
      return fail(errno_error("cannot be put in place", errno, path));
    }
    return {};
  };
  if (auto finished = finish(); !finished) {
    ::unlinkat(folder, before.c_str(), 0);
    return fail(std::move(finished.error()));
  }
  return made;
}

LocalSocket::~LocalSocket() {
  struct stat found{};
  if (!folder_.valid() || ::fstatat(folder_.get(), name_.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) return;
  if (found.st_dev == device_ && found.st_ino == inode_) ::unlinkat(folder_.get(), name_.c_str(), 0);
}

}  // namespace gpulet::web

#include "base/unix_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace gpulet {
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
  if (!socket.valid()) return fail(errno_error("socket", errno, path));
  return socket;
}

}  // namespace

std::optional<FileIdentity> identify(const std::string& path) {
  struct stat found{};
  if (::lstat(path.c_str(), &found) != 0) return std::nullopt;
  return FileIdentity{found.st_dev, found.st_ino, found.st_mtim.tv_sec * 1'000'000'000 + found.st_mtim.tv_nsec};
}

Result<FileDescriptor> bind_unix(const std::string& path) {
  GPULET_TRY_ASSIGN(const sockaddr_un address, address_of(path));
  struct stat found{};
  if (::lstat(path.c_str(), &found) == 0) {
    if (!S_ISSOCK(found.st_mode)) return fail(Code::kFailedPrecondition, "something else than a socket is there", path);
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

Result<FileDescriptor> connect_unix(const std::string& path) {
  GPULET_TRY_ASSIGN(const sockaddr_un address, address_of(path));
  GPULET_TRY_ASSIGN(FileDescriptor socket, make_socket(path));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno == EAGAIN) return fail(Code::kUnavailable, "connect: too many wait already", path);
    return fail(errno_error("connect", errno, path));
  }
  return socket;
}

}  // namespace gpulet

#include "base/presence.h"

#include <fcntl.h>

#include <cerrno>

namespace gpulet {
namespace {

struct flock whole_file() {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

// Locks of the open file, not of the process: those would be lost as soon as anything in this process opens
// and closes the same file.
Result<Presence> Presence::hold(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0) GPULET_TRY(make_directories(path.substr(0, slash)));
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!fd.valid()) return fail(errno_error("cannot open", errno, path));
  auto lock = whole_file();
  if (::fcntl(fd.get(), F_OFD_SETLK, &lock) == 0) return Presence(std::move(fd));
  if (errno == EAGAIN || errno == EACCES)
    return fail(Code::kFailedPrecondition, "another process holds it", path);
  return fail(errno_error("cannot lock", errno, path));
}

Result<bool> Presence::held(const std::string& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() && errno == ENOENT) return false;
  if (!fd.valid()) return fail(errno_error("cannot open", errno, path));
  auto lock = whole_file();
  if (::fcntl(fd.get(), F_OFD_GETLK, &lock) != 0) return fail(errno_error("cannot ask", errno, path));
  return lock.l_type != F_UNLCK;
}

}  // namespace gpulet

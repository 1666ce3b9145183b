#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <memory>

#include "base/open_in_root.h"

namespace gpulet {

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

Result<std::string> read_file(const std::string& path, std::size_t max_bytes) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return fail(errno_error("cannot open", errno, path));
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
      return fail(errno_error("cannot create folder", errno, part));
  }
  return {};
}

Status write_file_atomic(const std::string& path, std::string_view content, mode_t mode) {
  const auto slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0) GPULET_TRY(make_directories(path.substr(0, slash)));
  static std::atomic<unsigned> counter{0};
  const std::string temporary = path + ".tmp." + std::to_string(::getpid()) + "." + std::to_string(counter++);
  FileDescriptor fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!fd.valid()) return fail(errno_error("cannot create", errno, temporary));
  Status done = write_all(fd.get(), content, temporary);
  if (done && (::fchmod(fd.get(), mode) != 0 || ::fsync(fd.get()) != 0)) {
    done = fail(errno_error("cannot finish", errno, temporary));
  }
  if (done && ::rename(temporary.c_str(), path.c_str()) != 0)
    done = fail(errno_error("cannot replace", errno, path));
  if (!done) ::unlink(temporary.c_str());
  return done;
}

Result<RootDirectory> RootDirectory::open(const std::string& path) {
  FileDescriptor fd(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return fail(errno_error("cannot open folder", errno, path));
  return RootDirectory(path, std::move(fd));
}

Result<FileDescriptor> RootDirectory::open_file(std::string_view path, int flags,
                                                std::uint64_t more_resolve) const {
  std::string relative(path);
  if (relative.empty()) relative = "/";
  FileDescriptor fd(open_in_root(fd_.get(), relative, flags, more_resolve));
  if (!fd.valid())
    return fail(errno_error("cannot open", errno, path_ + (relative[0] == '/' ? "" : "/") + relative));
  return fd;
}

Result<std::string> RootDirectory::read(std::string_view path, std::size_t max_bytes) const {
  GPULET_TRY_ASSIGN(const FileDescriptor fd, open_file(path, O_RDONLY));
  return read_all(fd.get(), std::string(path), max_bytes);
}

bool RootDirectory::exists(std::string_view path) const { return open_file(path, O_PATH).has_value(); }

Result<std::vector<std::string>> RootDirectory::list(std::string_view path) const {
  GPULET_TRY_ASSIGN(FileDescriptor fd, open_file(path, O_RDONLY | O_DIRECTORY));
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::fdopendir(fd.get()), ::closedir);
  if (!folder) return fail(errno_error("cannot list", errno, std::string(path)));
  static_cast<void>(fd.release());  // closedir closes it
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(folder.get())) {
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

}  // namespace gpulet

// Files and descriptors: RAII, whole reads with a limit, atomic writes, and paths resolved inside a root.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet {

// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { reset(); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

// No file that the agent reads whole is larger (a config, a /proc file, an ELF's head).
inline constexpr std::size_t kMaxFileBytes = 16u << 20;

// The whole content of `path`. Errors: as errno_error says; kInvalidArgument when it holds more than
// `max_bytes`.
Result<std::string> read_file(const std::string& path, std::size_t max_bytes = kMaxFileBytes);
// From an open descriptor, from its offset on.
Result<std::string> read_all(int fd, const std::string& about, std::size_t max_bytes = kMaxFileBytes);

// Writes `content` to `path` so that a reader sees the old or the new file, never a part: temporary file
// beside it, fsync, rename. Creates missing parent folders (0755).
Status write_file_atomic(const std::string& path, std::string_view content, mode_t mode = 0644);

// Creates `path` and its parents; no error where they exist.
Status make_directories(const std::string& path, mode_t mode = 0755);

// A directory that stands for "/": every path is resolved inside it by the kernel (openat2, RESOLVE_IN_ROOT),
// absolute links and ".." too, so that neither a driver container's links nor a hostile image lead out of it.
class RootDirectory {
 public:
  // Errors: kNotFound, kPermissionDenied.
  static Result<RootDirectory> open(const std::string& path);

  const std::string& path() const { return path_; }

  // Opens `path` (taken from the root, whether or not it begins with '/') with open(2) flags; O_CLOEXEC is
  // added. `more_resolve` adds openat2's RESOLVE_ flags, RESOLVE_NO_SYMLINKS say.
  Result<FileDescriptor> open_file(std::string_view path, int flags, std::uint64_t more_resolve = 0) const;
  Result<std::string> read(std::string_view path, std::size_t max_bytes = kMaxFileBytes) const;
  bool exists(std::string_view path) const;
  // Names in a folder without "." and "..", sorted. kNotFound when there is no such folder.
  Result<std::vector<std::string>> list(std::string_view path) const;
  // The path inside the root that `path` leads to once every link is followed ("/usr/lib/x.so.535.1").
  Result<std::string> resolve(std::string_view path) const;
  // For a character device: major and minor number. kFailedPrecondition when it is something else.
  Result<dev_t> character_device(std::string_view path) const;

 private:
  RootDirectory(std::string path, FileDescriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string path_;
  FileDescriptor fd_;
};

}  // namespace gpulet

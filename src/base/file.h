// Files and descriptors: RAII, whole reads with a limit, atomic writes, paths resolved inside a root, Unix
// sockets.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
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
  bool is_open() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset();

 private:
  int fd_ = -1;
};

// The largest file that the agent reads whole: a config, a /proc file, an ELF header.
inline constexpr std::size_t kMaxFileBytes = 16u << 20;

// The whole content of `path`. Errors: errno_error's; kInvalidArgument if it is larger than `max_bytes`.
Result<std::string> read_file(const std::string& path, std::size_t max_bytes = kMaxFileBytes);
// The first `bytes` bytes of `path`, fewer if it is shorter, in one read(2): for files of which each byte
// costs, such as a device's PCI configuration space. Errors: errno_error's.
Result<std::string> read_prefix(const std::string& path, std::size_t bytes);
// From an open descriptor, from its offset on.
Result<std::string> read_all(int fd, const std::string& about, std::size_t max_bytes = kMaxFileBytes);

// Writes `content` to `path` atomically: temporary file beside it, fsync, rename. Creates missing parent
// directories (0755).
Status write_file_atomic(const std::string& path, std::string_view content, mode_t mode = 0644);

// Creates `path` and its parents; no error where they exist.
Status make_directories(const std::string& path, mode_t mode = 0755);

// A directory in place of "/": the kernel resolves every path inside it (openat2, RESOLVE_IN_ROOT), absolute
// links and ".." included, so that neither the links of a driver container nor a hostile image lead out of
// it.
class RootDirectory {
 public:
  // Errors: kNotFound, kPermissionDenied.
  static Result<RootDirectory> open_root(const std::string& path);

  const std::string& root_path() const { return path_; }

  // Opens `path`, relative to the root with or without a leading '/', with open(2) flags and O_CLOEXEC.
  // `more_resolve` adds RESOLVE_ flags of openat2, such as RESOLVE_NO_SYMLINKS.
  Result<FileDescriptor> open_file(std::string_view path, int flags, std::uint64_t more_resolve = 0) const;
  Result<std::string> read_text_file(std::string_view path, std::size_t max_bytes = kMaxFileBytes) const;
  bool exists(std::string_view path) const;
  // The sorted names in a directory without "." and "..". kNotFound if there is no such directory.
  Result<std::vector<std::string>> list_directory(std::string_view path) const;
  // The path inside the root that `path` resolves to, with every link followed ("/usr/lib/x.so.535.1").
  Result<std::string> resolve(std::string_view path) const;
  // The major and minor number of a character device. kFailedPrecondition if it is anything else.
  Result<dev_t> character_device(std::string_view path) const;
  // Creates a character device with exactly this mode, and its directory (0755) if only that is missing.
  // Follows no link below the root. Errors: kFailedPrecondition if the path exists; kNotFound without the
  // parents of the directory; kPermissionDenied without CAP_MKNOD or on a read-only file system; kIo.
  Status create_character_device(std::string_view path, dev_t device, mode_t mode) const;

 private:
  RootDirectory(std::string path, FileDescriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string path_;
  FileDescriptor fd_;
};

// RootDirectory::open_file as a call: openat2 with RESOLVE_IN_ROOT where the kernel has it (5.6) and seccomp
// permits it, else open_in_root_by_steps (RHEL 8, Ubuntu 20.04's first kernel, old seccomp profiles).

// `more_resolve`: RESOLVE_ flags in addition to RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS. Returns the
// descriptor, or -1 with errno.
int open_in_root(int root, const std::string& path, int flags, std::uint64_t more_resolve);

// Without openat2: opens each component from the one before it with O_NOFOLLOW and resolves links by their
// text. Honours RESOLVE_NO_SYMLINKS. Magic links of /proc are resolved by their text, inside the root.
int open_in_root_by_steps(int root, const std::string& path, int flags, std::uint64_t more_resolve);

// The longest path in a sockaddr_un, without the closing zero.
inline constexpr std::size_t kMaxSocketPath = 107;

// Identifies what a path leads to: a removed, replaced or recreated file has another identity.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  std::int64_t modified_ns = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};
// nullopt if there is no file.
std::optional<FileIdentity> file_identity(const std::string& path);

// Binds a socket to `path` (mode 0600) and replaces any socket there. Connections are refused until
// start_listening. The descriptor is non-blocking and closed on exec. Errors: kInvalidArgument if the path is
// too long, kFailedPrecondition if the path is not a socket, errno_error's.
Result<FileDescriptor> bind_unix_socket(const std::string& path);
Status start_listening(const FileDescriptor& socket, const std::string& path);

// Connects without waiting. Errors: kNotFound if there is no file, kUnavailable if nobody listens or the
// backlog is full, kPermissionDenied.
Result<FileDescriptor> connect_unix_socket(const std::string& path);

}  // namespace gpulet

// The root directory of a container with an untrusted image. The kernel resolves every path below one
// descriptor (openat2: RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS), so that no link, "..", or link swapped
// meanwhile leads out of it. No path is joined to the root's as text.
//
// Writes stay on the root's own mount (RESOLVE_NO_XDEV): a link of the image into a volume of the Pod, /proc
// or /sys is refused. Exception: below /dev, a fresh tmpfs of the runtime, paths are resolved inside that
// mount.
//
// Needs Linux 5.6 (openat2). Errors: kNotFound, kPermissionDenied (also a read-only root, EROFS, and a mount
// in place of what is written, EBUSY), kFailedPrecondition (another file type, or another mount),
// kInvalidArgument (larger than the limit), kUnsupported (the kernel), kIo.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"

namespace gpulet::hook {

class Rootfs {
 public:
  // Opens a root. Refuses "", a relative path, and the host's own "/" by any name.
  static Result<Rootfs> open_root(const std::string& path);

  // O_PATH descriptor of the root directory; valid as long as this object.
  int descriptor() const { return root_.get(); }

  // Opens `path` with open(2) flags; mounts may be crossed. Adds O_CLOEXEC, and O_NONBLOCK so that a FIFO
  // does not block; refuses O_CREAT.
  Result<FileDescriptor> open_inside(std::string_view path, int flags) const;
  // Opens a regular file of at most `max_bytes` for reading. Another file type is kFailedPrecondition.
  Result<FileDescriptor> open_regular(std::string_view path, std::size_t max_bytes) const;
  Result<std::string> read_file(std::string_view path, std::size_t max_bytes) const;
  bool is_directory(std::string_view path) const;
  // Lists a directory, sorted, without "." and "..". kInvalidArgument if it has more than `max_entries`.
  Result<std::vector<std::string>> list_directory(std::string_view path, std::size_t max_entries) const;
  // Reads the link at `path` without following it. kFailedPrecondition if it is not a link.
  Result<std::string> read_link(std::string_view path) const;

  // Opens a directory for writing (O_PATH) and creates missing parts (0755).
  Result<FileDescriptor> make_directories(std::string_view path) const;
  // Replaces `path` by a temporary file and a rename. Never follows or opens what is at `path`; a directory
  // there is kFailedPrecondition.
  Status write_file(std::string_view path, std::string_view content, mode_t mode = 0644) const;
  // Replaces `path` by a symbolic link in the same way. Leaves a link with this target alone.
  Status make_symlink(std::string_view target, std::string_view path) const;
  // Removes a file. No error if it does not exist.
  Status remove_file(std::string_view path) const;

 private:
  explicit Rootfs(FileDescriptor root) : root_(std::move(root)) {}

  FileDescriptor root_;
};

// Splits "/a/b/c" into {"/a/b", "c"}. kInvalidArgument for a last part of "", "." or "..", a NUL, or more
// than PATH_MAX.
struct SplitPath {
  std::string directory;
  std::string name;
};
Result<SplitPath> split_path(std::string_view path);

}  // namespace gpulet::hook

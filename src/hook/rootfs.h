// A container's root folder as a hostile image left it. Every path is resolved by the kernel below one
// descriptor (openat2: RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS), so that no link, "..", or swap of a link
// while we look leads out of it; no path is ever joined to the root's as text.
//
// What is written stays on the root's own mount (RESOLVE_NO_XDEV): a link of the image that leads into a
// volume of the Pod, into /proc or into /sys is refused. One exception: below /dev, which the runtime mounts
// as a fresh tmpfs, paths are resolved inside that mount.
//
// Needs Linux 5.6 (openat2). Errors: kNotFound, kPermissionDenied (a read-only root too: EROFS),
// kFailedPrecondition (what is there is of another kind, or on another mount), kInvalidArgument (larger than
// its limit), kUnsupported (the kernel), kIo.
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
  // Refuses "", what is not absolute, and the host's own "/" by whatever name.
  static Result<Rootfs> open(const std::string& path);

  // O_PATH of the root folder; valid as long as this object.
  int descriptor() const { return root_.get(); }

  // Opens `path` with open(2) flags (O_CLOEXEC is added, O_CREAT refused), whatever mounts it crosses.
  // O_NONBLOCK is added, so that a FIFO in a file's place does not stop us.
  Result<FileDescriptor> open_inside(std::string_view path, int flags) const;
  // A regular file of at most `max_bytes`, opened for reading; anything else there is kFailedPrecondition.
  Result<FileDescriptor> open_regular(std::string_view path, std::size_t max_bytes) const;
  Result<std::string> read(std::string_view path, std::size_t max_bytes) const;
  bool is_folder(std::string_view path) const;
  // Names in a folder without "." and "..", sorted. kInvalidArgument when there are more than `max_entries`.
  Result<std::vector<std::string>> list(std::string_view path, std::size_t max_entries) const;
  // What the link at `path` says; its last component is not followed. kFailedPrecondition when it is no link.
  Result<std::string> read_link(std::string_view path) const;

  // Opens the folder to write in (O_PATH), making what is missing of it (0755).
  Result<FileDescriptor> make_folders(std::string_view path) const;
  // Replaces `path` whole: a temporary file beside it, then rename. What is at `path` is never followed or
  // opened; a folder there is kFailedPrecondition.
  Status write_file(std::string_view path, std::string_view content, mode_t mode = 0644) const;
  // The same for a symbolic link. One that already says `target` is left alone.
  Status make_link(std::string_view target, std::string_view path) const;
  // No error when it is not there.
  Status remove_file(std::string_view path) const;

 private:
  explicit Rootfs(FileDescriptor root) : root_(std::move(root)) {}

  FileDescriptor root_;
};

// "/a/b/c" → {"/a/b", "c"}. kInvalidArgument for a last part that is empty, "." or "..", a NUL, or more than
// PATH_MAX.
struct SplitPath {
  std::string folder;
  std::string name;
};
Result<SplitPath> split_path(std::string_view path);

}  // namespace gpulet::hook

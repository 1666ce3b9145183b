// A directory that stands for "/": the driver's root, the one that holds dev/, /proc or /sys. Paths
// are relative to the root ("/usr/lib64/libcuda.so.1"). The kernel resolves them inside it,
// absolute links too, so Debian's alternatives work within a driver container and no link leads
// out.
//
// The same directory often has two names: the one that this process sees (a mount in the agent's
// container) and the one on the host, which a CDI spec must have: `host_path`.
//
// Only directories are opened, and regular files for reading. A FIFO or a device in a hostile root
// is recognised by its type and never opened. Listing a directory takes few system calls (open, two
// getdents, close); names are then matched in memory.
#pragma once

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/result.h"

namespace gpulet::cdi {

enum class FileType { kRegular, kDirectory, kLink, kCharacterDevice, kSocket, kOther };

struct FileStatus {
  FileType type = FileType::kOther;
  mode_t mode = 0;  // permission bits, 07777
  uid_t uid = 0;
  gid_t gid = 0;
  unsigned major = 0, minor = 0;  // of a character device
};

// Larger directories are an error. 2^17 is four times the IMEX channels of the largest
// configuration.
inline constexpr std::size_t kMaxDirectoryEntries = 1u << 17;

// A listed directory: its names in bytewise order, and a descriptor to examine entries.
class Directory {
 public:
  struct Entry {
    std::string_view name;             // valid as long as the directory
    FileType type = FileType::kOther;  // of the entry itself: a link is kLink
  };

  const std::string& resolved_path() const {
    return path_;
  }  // links resolved, relative to the root: "/usr/lib"
  std::size_t size() const { return entries_.size(); }
  Entry entry(std::size_t index) const;
  // Index range [first, last) of the names that begin with `prefix`.
  std::pair<std::size_t, std::size_t> with_prefix(std::string_view prefix) const;
  bool contains_entry(std::string_view name) const;
  // kOther also if there is no such name; see contains_entry.
  FileType type_of(std::string_view name) const;

  // Status of the entry itself, without following links. Errors: kNotFound, kIo.
  Result<FileStatus> entry_status(std::string_view name) const;
  // A link's target. Errors: kFailedPrecondition if the entry is not a link.
  Result<std::string> read_link(std::string_view name) const;

  // Reads the names. list_directory has already done so.
  Status read_entries();

 private:
  friend class Root;
  struct Name {
    std::uint32_t offset = 0, length = 0;
    FileType type = FileType::kOther;
  };
  Directory(std::string path, FileDescriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string_view entry_name(const Name& entry) const {
    return {names_.data() + entry.offset, entry.length};
  }
  std::vector<Name>::const_iterator find(std::string_view name) const;

  std::string path_;
  FileDescriptor fd_;
  std::string names_;  // all names, each followed by a zero
  std::vector<Name> entries_;
};

class Root {
 public:
  // `host_path` empty: the same as `path`. Errors: kNotFound, kPermissionDenied; kInvalidArgument
  // if either is not absolute.
  static Result<Root> open_root(const std::string& path, const std::string& host_path = {});

  const std::string& root_path() const { return directory_.root_path(); }
  const std::string& host_path() const { return host_path_; }
  // The host's path of a path in this root: "/run/nvidia/driver" + "/usr/bin/nvidia-smi".
  std::string on_host(std::string_view path) const;
  // The reverse: the path in this root of a host path; nullopt if that is outside.
  std::optional<std::string> from_host(std::string_view path) const;

  // Follows every link inside the root. Errors: kNotFound; kIo for a loop.
  Result<std::string> resolve_path(std::string_view path) const;
  bool exists(std::string_view path) const;
  Result<FileStatus> file_status(std::string_view path) const;  // links followed
  Result<FileStatus> link_status(std::string_view path) const;  // the last component is not followed
  Result<std::string> read_link(std::string_view path) const;
  // Resolved path and status with one open.
  struct Resolved {
    std::string path;
    FileStatus status;
  };
  Result<Resolved> resolve_with_status(std::string_view path) const;

  // Errors: kNotFound, kPermissionDenied; kInvalidArgument beyond kMaxDirectoryEntries.
  Result<Directory> list_directory(std::string_view directory) const;
  // Does not read the names yet, because the directory may be listed under another path.
  Result<Directory> open_directory(std::string_view directory) const;
  // The paths that match `pattern`, whose last component may contain `*`: "/dev/nvidia-fs*".
  // Bytewise order; empty if the directory does not exist.
  std::vector<std::string> glob(std::string_view pattern) const;

  // A regular file's content; kFailedPrecondition for anything else, which is not opened.
  Result<std::string> read_regular_file(std::string_view path, std::size_t max_bytes = kMaxFileBytes) const;

 private:
  Root(RootDirectory directory, std::string host_path)
      : directory_(std::move(directory)), host_path_(std::move(host_path)) {}
  struct Opened {
    FileDescriptor fd;
    std::string path;
  };
  Result<Opened> open_resolved(std::string_view path, int flags) const;
  Result<std::string> descriptor_path(int fd) const;

  RootDirectory directory_;
  std::string true_path_;  // the kernel's path of it, empty for "/": prefix of resolved paths
  std::string host_path_;  // without a trailing slash; "/" for the host's own root
};

// `*` matches any run of characters.
bool matches_glob(std::string_view pattern, std::string_view name);
// "/a//b/../c/" → "/a/c"; never above "/".
std::string normalize_path(std::string_view path);

// The roots of a node. `dev` is the directory that holds dev/ (nvidia-ctk's --dev-root); `proc` and
// `sys` are /proc and /sys themselves.
struct Roots {
  Root driver;
  Root dev;
  Root proc;
  Root sys;
};

struct RootPaths {
  std::string driver = "/";
  std::string driver_on_host = {};  // empty: as `driver`
  std::string dev = {};             // empty: as the driver's if that holds dev/nvidiactl, else "/"
  std::string dev_on_host = {};     // empty: as `dev`
  std::string proc = "/proc";
  std::string sys = "/sys";
};
// Errors: those of the first root that cannot be opened, with its name.
Result<Roots> open_roots(const RootPaths& paths);

// Converts what stat returns.

inline FileType type_of_mode(mode_t mode) {
  if (S_ISREG(mode)) return FileType::kRegular;
  if (S_ISDIR(mode)) return FileType::kDirectory;
  if (S_ISLNK(mode)) return FileType::kLink;
  if (S_ISCHR(mode)) return FileType::kCharacterDevice;
  if (S_ISSOCK(mode)) return FileType::kSocket;
  return FileType::kOther;
}

inline FileStatus status_from(const struct stat& status) {
  FileStatus result{type_of_mode(status.st_mode), status.st_mode & 07777, status.st_uid, status.st_gid};
  if (result.type == FileType::kCharacterDevice) {
    result.major = major(status.st_rdev);
    result.minor = minor(status.st_rdev);
  }
  return result;
}

// Lists each directory of a root at most once, whatever its names (/lib64 and /usr/lib64), and
// skips a path that an existing listing rules out.

class DirectoryCache {
 public:
  explicit DirectoryCache(const Root& root) : root_(&root) {}

  // nullptr if the directory is missing or cannot be listed; otherwise valid as long as this
  // object.
  const Directory* get(std::string_view path);
  // Existing directories that cannot be listed, one line each.
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  bool is_known_missing(std::string_view path) const;
  const Directory* open_and_list(const std::string& path);

  const Root* root_;
  std::map<std::string, std::unique_ptr<Directory>, std::less<>> by_path_;  // by resolved path
  std::map<std::string, const Directory*, std::less<>> by_name_;            // by the requested path
  std::vector<std::string> problems_;
};

}  // namespace gpulet::cdi

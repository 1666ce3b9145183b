// A directory that stands for "/": the driver's root, the one that holds dev/, /proc or /sys. Paths are told
// in terms of the root ("/usr/lib64/libcuda.so.1") and resolved inside it by the kernel, absolute links too,
// so that Debian's alternatives are followed within a driver container and no link leads out.
//
// The same directory often has two names: the one that this process sees (a mount in the agent's container)
// and the one that the container engine on the host sees, which is what a CDI spec must say: `host_path`.
//
// Nothing here opens a file that is not a folder or, to read it, a regular one: a FIFO or a device in a
// hostile root is seen by its type and never opened for reading. One folder is listed with few system calls
// (open, two getdents, close), and names are matched in memory afterwards.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/result.h"

namespace gpulet::cdi {

enum class FileType { kRegular, kFolder, kLink, kCharacterDevice, kSocket, kOther };

struct FileStatus {
  FileType type = FileType::kOther;
  mode_t mode = 0;  // permission bits, 07777
  uid_t uid = 0;
  gid_t gid = 0;
  unsigned major = 0, minor = 0;  // of a character device
};

// More names than this in one folder are an error: 2^17, four times the IMEX channels of the largest set-up.
inline constexpr std::size_t kMaxFolderEntries = 1u << 17;

// A folder as it was listed: its names in bytewise order, and the descriptor to look closer at one of them.
class Folder {
 public:
  struct Entry {
    std::string_view name;             // lives as long as the folder
    FileType type = FileType::kOther;  // of the entry itself: a link is kLink
  };

  const std::string& path() const { return path_; }  // links resolved, in terms of the root: "/usr/lib"
  std::size_t size() const { return entries_.size(); }
  Entry entry(std::size_t index) const;
  // Index range [first, last) of the names that begin with `prefix`.
  std::pair<std::size_t, std::size_t> with_prefix(std::string_view prefix) const;
  bool has(std::string_view name) const;
  // kOther where there is no such name; ask `has` to tell it from a block device.
  FileType type_of(std::string_view name) const;

  // Of the entry itself, links not followed. Errors: kNotFound, kIo.
  Result<FileStatus> status(std::string_view name) const;
  // What a link says. Errors: kFailedPrecondition when it is no link.
  Result<std::string> read_link(std::string_view name) const;

  // Fills in the names; Root::list has done so.
  Status read_entries();

 private:
  friend class Root;
  struct Name {
    std::uint32_t offset = 0, length = 0;
    FileType type = FileType::kOther;
  };
  Folder(std::string path, FileDescriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string_view name_of(const Name& entry) const { return {names_.data() + entry.offset, entry.length}; }
  std::vector<Name>::const_iterator find(std::string_view name) const;

  std::string path_;
  FileDescriptor fd_;
  std::string names_;  // all names, one behind the other with a zero each
  std::vector<Name> entries_;
};

class Root {
 public:
  // `host_path` empty: the same as `path`. Errors: kNotFound, kPermissionDenied, kInvalidArgument when either
  // is not absolute.
  static Result<Root> open(const std::string& path, const std::string& host_path = {});

  const std::string& path() const { return directory_.path(); }
  const std::string& host_path() const { return host_path_; }
  // The host's name of a path in this root: "/run/nvidia/driver" + "/usr/bin/nvidia-smi".
  std::string on_host(std::string_view path) const;
  // The other way: the path in this root of what the host calls `path`; nullopt when that is outside.
  std::optional<std::string> from_host(std::string_view path) const;

  // Every link followed inside the root: the path of what is there. Errors: kNotFound; kIo for a loop.
  Result<std::string> resolve(std::string_view path) const;
  bool exists(std::string_view path) const;
  Result<FileStatus> status(std::string_view path) const;       // links followed
  Result<FileStatus> link_status(std::string_view path) const;  // the last component not followed
  Result<std::string> read_link(std::string_view path) const;
  // Resolved path and status by one open.
  struct Resolved {
    std::string path;
    FileStatus status;
  };
  Result<Resolved> look(std::string_view path) const;

  // Errors: kNotFound, kPermissionDenied; kInvalidArgument beyond kMaxFolderEntries.
  Result<Folder> list(std::string_view folder) const;
  // Without its names yet: for who has perhaps listed it by another path.
  Result<Folder> open_folder(std::string_view folder) const;
  // The paths that match `pattern`, whose last component may hold `*`: "/dev/nvidia-fs*". Bytewise order;
  // empty when the folder is not there.
  std::vector<std::string> glob(std::string_view pattern) const;

  // A regular file's content; kFailedPrecondition for anything else, which is not opened for reading.
  Result<std::string> read(std::string_view path, std::size_t max_bytes = kMaxFileBytes) const;

 private:
  Root(RootDirectory directory, std::string host_path)
      : directory_(std::move(directory)), host_path_(std::move(host_path)) {}
  struct Opened {
    FileDescriptor fd;
    std::string path;
  };
  Result<Opened> open_resolved(std::string_view path, int flags) const;
  Result<std::string> path_of(int fd) const;

  RootDirectory directory_;
  std::string true_path_;  // what the kernel calls it, empty for "/": what resolved paths begin with
  std::string host_path_;  // without a slash at its end, "/" for the host's own root
};

// `*` stands for any run of characters, all else for itself.
bool matches(std::string_view pattern, std::string_view name);
// "/a//b/../c/" → "/a/c"; never above "/".
std::string normalised(std::string_view path);

// Where a node's things are. `dev` is the folder that holds dev/ (nvidia-ctk's --dev-root), `proc` and `sys`
// are /proc and /sys themselves.
struct Roots {
  Root driver;
  Root dev;
  Root proc;
  Root sys;
};

struct RootPaths {
  std::string driver = "/";
  std::string driver_on_host = {};  // empty: as `driver`
  std::string dev = {};             // empty: as the driver's, when that holds dev/nvidiactl, else "/"
  std::string dev_on_host = {};     // empty: as `dev`
  std::string proc = "/proc";
  std::string sys = "/sys";
};
// Errors: the first root that cannot be opened, named.
Result<Roots> open_roots(const RootPaths& paths);

}  // namespace gpulet::cdi

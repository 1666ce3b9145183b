// The edge of this room: the files and programs of the host, below a root that may be a mount in a container.
//
// Every path is resolved inside the root by the kernel, so that a link of the host's leads to the host's file
// and none leads out. A file that is replaced keeps its mode, owner and SELinux label; a reader sees the old
// or the new one.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "runtimes/engine.h"

namespace gpulet::runtimes {

// No engine's settings are larger.
inline constexpr std::size_t kMaxSettingsBytes = 1u << 20;

class Host {
 public:
  struct Options {
    std::string root = "/";
    bool inside = true;  // we run in this root ourselves: its programs are run as they are, else by chroot
  };
  // Errors: kNotFound, kPermissionDenied.
  static Result<Host> open(Options options);

  Reader reader() const;
  // What the engine's own libraries do not follow either: a link to nothing is an error, not a missing file.
  Result<std::optional<std::string>> read(const std::string& path) const;
  std::vector<std::string> glob(const std::string& pattern) const;
  bool exists(std::string_view path) const { return root_.exists(path); }

  // All of them, or on an error none: those made before are taken back.
  Status apply(const std::vector<Change>& changes) const;

  // Where a program is ("/usr/bin/containerd"), nullopt when it is in none of the usual folders.
  std::optional<std::string> program(std::string_view name) const;
  // What `program --version` says. Errors: as of starting it; kDeadlineExceeded; kInvalidArgument when there
  // is no version in it.
  Result<Version> version(const std::string& program) const;

  // `systemctl restart UNIT`. Errors: kFailedPrecondition with the command to run by hand where it cannot be
  // done from here; kUnavailable when systemd says no.
  Status restart(std::string_view unit) const;
  // That command, for a person on the node or in a privileged Pod.
  static std::string restart_command(std::string_view unit) {
    return "systemctl restart " + std::string(unit);
  }

 private:
  Host(Options options, RootDirectory root) : options_(std::move(options)), root_(std::move(root)) {}
  Status change(const Change& change) const;
  Status write(const std::string& path, const std::string& text) const;
  Status unlink(const std::string& path) const;
  Result<FileDescriptor> folder(const std::string& path, bool create) const;
  struct Ran {
    int code;
    std::string output;
  };
  Result<Ran> run(const std::string& program, std::vector<std::string> arguments, bool with_errors) const;

  Options options_;
  RootDirectory root_;
};

}  // namespace gpulet::runtimes

// The files and programs of the host, below a root that may be a mount in a container.
//
// The kernel resolves every path inside the root, so that links lead to the host's files and none escapes. A
// replaced file keeps its mode, owner and SELinux label; the replacement is atomic.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "runtimes/engine.h"

namespace gpulet::runtimes {

// Limit of a settings file.
inline constexpr std::size_t kMaxSettingsBytes = 1u << 20;

class Host {
 public:
  struct Options {
    std::string root = "/";
    bool is_own_root = true;  // this process runs in the root: programs are started directly, else by chroot
  };
  // Errors: kNotFound, kPermissionDenied.
  static Result<Host> open_host(Options options);

  Reader make_reader() const;
  // A dangling link is an error, as in the engines' own libraries, not a missing file.
  Result<std::optional<std::string>> read_settings(const std::string& path) const;
  std::vector<std::string> glob(const std::string& pattern) const;
  bool has_file(std::string_view path) const { return root_.exists(path); }

  // Applies all changes. On an error, undoes those already applied.
  Status apply_changes(const std::vector<Change>& changes) const;

  // Returns the path of a program ("/usr/bin/containerd"), nullopt if it is in none of the usual directories.
  std::optional<std::string> find_program(std::string_view name) const;
  // Runs `program --version`. Errors: those of starting it; kDeadlineExceeded; kInvalidArgument if its output
  // has no version.
  Result<EngineVersion> program_version(const std::string& program) const;

  // Runs `systemctl restart UNIT`. Errors: kFailedPrecondition with the command to run by hand if it is not
  // possible from here; kUnavailable if systemctl fails.
  Status restart_unit(std::string_view unit) const;
  // The same command, to run by hand on the node or in a privileged Pod.
  static std::string restart_command(std::string_view unit) {
    return "systemctl restart " + std::string(unit);
  }

 private:
  Host(Options options, RootDirectory root) : options_(std::move(options)), root_(std::move(root)) {}
  Status apply_change(const Change& change) const;
  Status replace_file(const std::string& path, const std::string& text) const;
  Status remove_file(const std::string& path) const;
  Result<FileDescriptor> open_directory(const std::string& path, bool create) const;
  struct ProgramResult {
    int code;
    std::string output;
  };
  Result<ProgramResult> run_program(const std::string& program, std::vector<std::string> arguments,
                                    bool with_errors) const;

  Options options_;
  RootDirectory root_;
};

}  // namespace gpulet::runtimes

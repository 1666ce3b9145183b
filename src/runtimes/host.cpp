#include "runtimes/host.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/process.h"
#include "base/text.h"

namespace gpulet::runtimes {
namespace {

using namespace std::chrono_literals;

constexpr Duration kVersionLimit = 5s;
constexpr Duration kRestartLimit = 120s;
constexpr const char* kLabel = "security.selinux";

std::string base_name(const std::string& path) { return std::string(text::base_name(path)); }

Status write_all(int fd, std::string_view text, const std::string& about) {
  while (!text.empty()) {
    const ssize_t put = ::write(fd, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return fail(errno_error("cannot write", errno, about));
    text.remove_prefix(static_cast<std::size_t>(put));
  }
  return {};
}

// Copies the mode, owner and label of the replaced file. A refused owner is an error: the owner could lose
// access.
Status copy_metadata(int from, int to, const std::string& about) {
  struct stat status{};
  if (::fstat(from, &status) != 0) return fail(errno_error("cannot stat", errno, about));
  if (::fchown(to, status.st_uid, status.st_gid) != 0) {
    return fail(errno_error("cannot keep the owner", errno, about));
  }
  if (::fchmod(to, status.st_mode & 07777) != 0)
    return fail(errno_error("cannot keep the mode", errno, about));
  std::array<char, 256> label;
  const ssize_t length = ::fgetxattr(from, kLabel, label.data(), label.size());
  if (length > 0) ::fsetxattr(to, kLabel, label.data(), static_cast<std::size_t>(length), 0);
  return {};
}

}  // namespace

Result<Host> Host::open_host(Options options) {
  GPULET_TRY_ASSIGN(RootDirectory root, RootDirectory::open_root(options.root));
  return Host(std::move(options), std::move(root));
}

Reader Host::make_reader() const {
  return {.read = [this](const std::string& path) { return read_settings(path); },
          .glob = [this](const std::string& pattern) { return glob(pattern); }};
}

Result<std::optional<std::string>> Host::read_settings(const std::string& path) const {
  const auto seen = root_.open_file(path, O_PATH);
  if (!seen) {
    if (seen.error().code() != Code::kNotFound) return fail(seen.error());
    if (root_.open_file(path, O_PATH | O_NOFOLLOW)) {
      return fail(Code::kFailedPrecondition, "dangling link", path);
    }
    return std::nullopt;
  }
  struct stat status{};
  if (::fstat(seen->get(), &status) != 0) return fail(errno_error("cannot stat", errno, path));
  if (!S_ISREG(status.st_mode)) return fail(Code::kFailedPrecondition, "not a regular file", path);
  GPULET_TRY_ASSIGN(const FileDescriptor fd, root_.open_file(path, O_RDONLY | O_NONBLOCK));
  GPULET_TRY_ASSIGN(std::string text, read_all(fd.get(), path, kMaxSettingsBytes));
  return text;
}

std::vector<std::string> Host::glob(const std::string& pattern) const {
  std::vector<std::string> found{""};
  for (const auto& part : text::split(pattern, '/')) {
    if (part.empty()) continue;
    std::vector<std::string> next;
    for (const auto& directory : found) {
      if (part.find_first_of("*?[") == std::string::npos) {
        next.push_back(directory + "/" + part);
        continue;
      }
      const auto names = root_.list_directory(directory.empty() ? "/" : directory);
      if (!names) continue;
      for (const auto& name : *names) {
        if (::fnmatch(part.c_str(), name.c_str(), 0) == 0) next.push_back(directory + "/" + name);
      }
    }
    found = std::move(next);
  }
  std::erase_if(found, [&](const auto& path) { return !root_.open_file(path, O_PATH | O_NOFOLLOW); });
  std::ranges::sort(found);
  return found;
}

Result<FileDescriptor> Host::open_directory(const std::string& path, bool create) const {
  auto opened = root_.open_file(path, O_RDONLY | O_DIRECTORY);
  if (opened || !create || opened.error().code() != Code::kNotFound || path == "/") return opened;
  GPULET_TRY_ASSIGN(const FileDescriptor above,
                    open_directory(std::string(text::parent_directory(path)), true));
  if (::mkdirat(above.get(), base_name(path).c_str(), 0755) != 0 && errno != EEXIST) {
    return fail(errno_error("cannot create the directory", errno, path));
  }
  return root_.open_file(path, O_RDONLY | O_DIRECTORY);
}

Status Host::replace_file(const std::string& path, const std::string& text) const {
  // Resolve a link inside the root; the path itself if nothing exists.
  const std::string target = root_.resolve(path).value_or(path);
  GPULET_TRY_ASSIGN(const FileDescriptor above,
                    open_directory(std::string(text::parent_directory(target)), true));
  // Engines ignore this name: their drop-ins end in .toml or .conf.
  const std::string name = "." + base_name(target) + ".gpulet-" + std::to_string(::getpid());
  const FileDescriptor fd(
      ::openat(above.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.is_open()) return fail(errno_error("cannot create a temporary file beside it", errno, target));
  const FileDescriptor old(
      ::openat(above.get(), base_name(target).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  Status done = write_all(fd.get(), text, target);
  if (done && old.is_open()) {
    done = copy_metadata(old.get(), fd.get(), target);
  } else if (done && ::fchmod(fd.get(), 0644) != 0) {
    done = fail(errno_error("cannot set the mode", errno, target));
  }
  if (done && ::fsync(fd.get()) != 0) done = fail(errno_error("cannot finish", errno, target));
  if (done && ::renameat(above.get(), name.c_str(), above.get(), base_name(target).c_str()) != 0) {
    done = fail(errno_error("cannot replace", errno, target));
  }
  if (!done) ::unlinkat(above.get(), name.c_str(), 0);
  if (done) ::fsync(above.get());
  return done;
}

Status Host::remove_file(const std::string& path) const {
  // Remove the link before its target: engines reject a dangling link.
  const auto target = root_.resolve(path);
  GPULET_TRY_ASSIGN(const std::string real_directory,
                    root_.resolve(std::string(text::parent_directory(path))));
  const std::string entry = (real_directory == "/" ? "" : real_directory) + "/" + base_name(path);
  for (const auto& each : {entry, target ? *target : entry}) {
    GPULET_TRY_ASSIGN(const FileDescriptor above,
                      open_directory(std::string(text::parent_directory(each)), false));
    if (::unlinkat(above.get(), base_name(each).c_str(), 0) != 0 && errno != ENOENT) {
      return fail(errno_error("cannot remove", errno, each));
    }
    ::fsync(above.get());
  }
  return {};
}

Status Host::apply_change(const Change& change) const {
  return change.text ? replace_file(change.path, *change.text) : remove_file(change.path);
}

Status Host::apply_changes(const std::vector<Change>& changes) const {
  std::vector<Change> undo;
  for (const auto& each : changes) {
    GPULET_TRY_ASSIGN(auto before, read_settings(each.path));
    const Status done = apply_change(each);
    if (!done) {
      // A failed undo has the same cause as the first error: a directory that is not writable.
      for (auto back = undo.rbegin(); back != undo.rend(); ++back) static_cast<void>(apply_change(*back));
      return fail(done.error());
    }
    undo.push_back({each.path, std::move(before)});
  }
  return {};
}

std::optional<std::string> Host::find_program(std::string_view name) const {
  for (const std::string_view directory :
       {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/opt/bin"}) {
    const std::string path = std::string(directory) + "/" + std::string(name);
    const auto fd = root_.open_file(path, O_PATH);
    struct stat status{};
    if (fd && ::fstat(fd->get(), &status) == 0 && S_ISREG(status.st_mode) && (status.st_mode & 0111) != 0)
      return path;
  }
  return std::nullopt;
}

Result<Host::ProgramResult> Host::run_program(const std::string& program, std::vector<std::string> arguments,
                                              bool with_errors) const {
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    return fail(errno_error("cannot make a pipe", errno, program));
  const FileDescriptor reader(ends[0]);
  FileDescriptor tells(ends[1]);
  // In the own root the host's path would work too, but a test's root is elsewhere.
  GPULET_TRY_ASSIGN(const std::string inside, root_.resolve(program));
  ProcessOptions options{
      .program = options_.is_own_root ? (options_.root == "/" ? "" : options_.root) + inside : inside,
      .arguments = std::move(arguments),
      .environment = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"},
      .descriptors = {{tells.get(), 1}},
      .root = options_.is_own_root ? "" : options_.root};
  if (with_errors) options.descriptors.emplace_back(tells.get(), 2);
  GPULET_TRY_ASSIGN(const auto process, Process::spawn(options));
  tells.reset();
  GPULET_TRY_ASSIGN(const ProcessExit exit,
                    process->wait_for_exit(with_errors ? kRestartLimit : kVersionLimit));
  // The output is in the pipe, which is larger than these programs' output; the rest is dropped.
  std::array<char, 4096> buffer;
  const ssize_t got = ::read(reader.get(), buffer.data(), buffer.size());
  return ProgramResult{exit.signal != 0 ? 128 + exit.signal : exit.code,
                       std::string(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)))};
}

Result<EngineVersion> Host::program_version(const std::string& program) const {
  GPULET_TRY_ASSIGN(const ProgramResult ran, run_program(program, {base_name(program), "--version"}, false));
  if (const auto version = parse_engine_version(ran.output); version && ran.code == 0) return *version;
  return fail(Code::kInvalidArgument, "prints no version", program);
}

Status Host::restart_unit(std::string_view unit) const {
  const std::string command = restart_command(unit);
  if (!options_.is_own_root) {
    return fail(Code::kFailedPrecondition,
                "the host's systemd is not reachable from here: run on the node `" + command +
                    "`, or in a privileged Pod with hostPID `nsenter --target 1 --mount -- " + command + "`",
                std::string(unit));
  }
  const auto systemctl = find_program("systemctl");
  if (!systemctl || !has_file("/run/systemd/system")) {
    return fail(Code::kFailedPrecondition,
                "systemd is not running here: restart the engine as it was started", std::string(unit));
  }
  GPULET_TRY_ASSIGN(const ProgramResult ran,
                    run_program(*systemctl, {"systemctl", "restart", std::string(unit)}, true));
  if (ran.code == 0) return {};
  std::string output(text::trim(ran.output));
  std::ranges::replace(output, '\n', ' ');
  return fail(Code::kUnavailable, "`" + command + "` failed: " + (output.empty() ? "no output" : output),
              std::string(unit));
}

}  // namespace gpulet::runtimes

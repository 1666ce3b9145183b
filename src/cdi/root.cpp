#include "cdi/root.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "base/text.h"
#include "cdi/file_status.h"

namespace gpulet::cdi {
namespace {

Result<FileStatus> status_of_open(int fd, std::string_view path) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) return fail(errno_error("cannot look at", errno, std::string(path)));
  return status_from(status);
}

std::string proc_name(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

Result<std::string> read_link_at(int fd, const std::string& name, const std::string& about) {
  char target[PATH_MAX];
  const ssize_t length = ::readlinkat(fd, name.c_str(), target, sizeof target);
  if (length >= 0) return std::string(target, static_cast<std::size_t>(length));
  if (errno == EINVAL) return fail(Code::kFailedPrecondition, "is not a link", about);
  return fail(errno_error("cannot read link", errno, about));
}

// A host path as others are put behind it: "/run/nvidia/driver/" → "/run/nvidia/driver".
Result<std::string> absolute(std::string_view path) {
  if (!text::starts_with(path, "/"))
    return fail(Code::kInvalidArgument, "a root is an absolute path, not \"" + std::string(path) + "\"");
  return normalised(path);
}

}  // namespace

std::string normalised(std::string_view path) {
  std::string result;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    begin = end + 1;
    if (part.empty() || part == ".") continue;
    if (part == "..") {
      result.erase(std::min(result.rfind('/'), result.size()));
    } else {
      result.append("/").append(part);
    }
  }
  return result.empty() ? "/" : result;
}

bool matches(std::string_view pattern, std::string_view name) {
  std::size_t at = 0, in_name = 0;
  std::size_t star = std::string_view::npos, tried = 0;  // the last *, and where its run of characters ends
  while (in_name < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      star = at++;
      tried = in_name;
    } else if (at < pattern.size() && pattern[at] == name[in_name]) {
      ++at;
      ++in_name;
    } else if (star != std::string_view::npos) {
      at = star + 1;
      in_name = ++tried;
    } else {
      return false;
    }
  }
  while (at < pattern.size() && pattern[at] == '*') ++at;
  return at == pattern.size();
}

Result<Root> Root::open(const std::string& path, const std::string& host_path) {
  GPULET_TRY_ASSIGN(const std::string here, absolute(path));
  GPULET_TRY_ASSIGN(std::string there, absolute(host_path.empty() ? path : host_path));
  GPULET_TRY_ASSIGN(RootDirectory directory, RootDirectory::open(here));
  Root root(std::move(directory), std::move(there));
  if (here == "/") return root;
  GPULET_TRY_ASSIGN(const FileDescriptor itself, root.directory_.open_file("/", O_PATH));
  GPULET_TRY_ASSIGN(root.true_path_, read_link_at(AT_FDCWD, proc_name(itself.get()), here));
  if (root.true_path_ == "/") root.true_path_.clear();
  return root;
}

std::string Root::on_host(std::string_view path) const {
  std::string inside = normalised(path);
  if (host_path_ == "/") return inside;
  return inside == "/" ? host_path_ : host_path_ + inside;
}

std::optional<std::string> Root::from_host(std::string_view path) const {
  std::string there = normalised(path);
  if (host_path_ == "/") return there;
  if (!text::starts_with(there, host_path_)) return std::nullopt;
  if (there.size() == host_path_.size()) return "/";
  return there[host_path_.size()] == '/' ? std::optional(there.substr(host_path_.size())) : std::nullopt;
}

Result<std::string> Root::path_of(int fd) const {
  GPULET_TRY_ASSIGN(const std::string full, read_link_at(AT_FDCWD, proc_name(fd), path()));
  if (full.ends_with(" (deleted)")) return fail(Code::kNotFound, "was removed meanwhile", full);
  if (full == true_path_) return "/";
  if (!text::starts_with(full, true_path_) || full[true_path_.size()] != '/')
    return fail(Code::kInternal, "is not below the root " + path(), full);
  return full.substr(true_path_.size());
}

// Nearly no path has a link on its way: then the path is its own resolution, and nothing more needs asking.
Result<Root::Opened> Root::open_resolved(std::string_view path, int flags) const {
  auto straight = directory_.open_file(path, flags, RESOLVE_NO_SYMLINKS);
  if (straight) return Opened{std::move(*straight), normalised(path)};
  if (straight.error().code() == Code::kNotFound) return fail(straight.error());
  GPULET_TRY_ASSIGN(FileDescriptor fd, directory_.open_file(path, flags));
  GPULET_TRY_ASSIGN(std::string resolved, path_of(fd.get()));
  return Opened{std::move(fd), std::move(resolved)};
}

Result<std::string> Root::resolve(std::string_view path) const {
  GPULET_TRY_ASSIGN(Opened opened, open_resolved(path, O_PATH));
  return std::move(opened.path);
}

bool Root::exists(std::string_view path) const { return directory_.open_file(path, O_PATH).has_value(); }

Result<FileStatus> Root::status(std::string_view path) const {
  GPULET_TRY_ASSIGN(const FileDescriptor fd, directory_.open_file(path, O_PATH));
  return status_of_open(fd.get(), path);
}

Result<FileStatus> Root::link_status(std::string_view path) const {
  GPULET_TRY_ASSIGN(const FileDescriptor fd, directory_.open_file(path, O_PATH | O_NOFOLLOW));
  return status_of_open(fd.get(), path);
}

Result<std::string> Root::read_link(std::string_view path) const {
  GPULET_TRY_ASSIGN(const FileDescriptor fd, directory_.open_file(path, O_PATH | O_NOFOLLOW));
  GPULET_TRY_ASSIGN(const FileStatus status, status_of_open(fd.get(), path));
  if (status.type != FileType::kLink)
    return fail(Code::kFailedPrecondition, "is not a link", std::string(path));
  return read_link_at(fd.get(), "", std::string(path));
}

Result<Root::Resolved> Root::look(std::string_view path) const {
  GPULET_TRY_ASSIGN(Opened opened, open_resolved(path, O_PATH));
  GPULET_TRY_ASSIGN(const FileStatus status, status_of_open(opened.fd.get(), path));
  return Resolved{std::move(opened.path), status};
}

Result<Folder> Root::open_folder(std::string_view folder) const {
  GPULET_TRY_ASSIGN(Opened opened, open_resolved(folder, O_RDONLY | O_DIRECTORY));
  return Folder(std::move(opened.path), std::move(opened.fd));
}

Result<Folder> Root::list(std::string_view folder) const {
  GPULET_TRY_ASSIGN(Folder result, open_folder(folder));
  GPULET_TRY(result.read_entries());
  return result;
}

std::vector<std::string> Root::glob(std::string_view pattern) const {
  const std::size_t slash = pattern.rfind('/');
  const std::string_view folder = slash == std::string_view::npos ? "" : pattern.substr(0, slash);
  const std::string_view last = slash == std::string_view::npos ? pattern : pattern.substr(slash + 1);
  std::vector<std::string> found;
  const auto listed = list(folder);
  if (!listed) return found;
  const auto [first, end] = listed->with_prefix(last.substr(0, last.find('*')));
  for (std::size_t index = first; index < end; ++index) {
    const std::string_view name = listed->entry(index).name;
    if (matches(last, name)) found.push_back(std::string(folder) + "/" + std::string(name));
  }
  return found;
}

Result<std::string> Root::read(std::string_view path, std::size_t max_bytes) const {
  GPULET_TRY_ASSIGN(const FileDescriptor seen, directory_.open_file(path, O_PATH));
  GPULET_TRY_ASSIGN(const FileStatus status, status_of_open(seen.get(), path));
  if (status.type != FileType::kRegular)
    return fail(Code::kFailedPrecondition, "is not a regular file", std::string(path));
  const FileDescriptor fd(::open(proc_name(seen.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return fail(errno_error("cannot open", errno, std::string(path)));
  return read_all(fd.get(), std::string(path), max_bytes);
}

Result<Roots> open_roots(const RootPaths& paths) {
  GPULET_TRY_ASSIGN(Root driver, Root::open(paths.driver, paths.driver_on_host));
  const bool driver_has_dev = paths.dev.empty() && driver.exists("/dev/nvidiactl");
  const std::string dev_path = driver_has_dev ? paths.driver : paths.dev.empty() ? "/" : paths.dev;
  const std::string& dev_on_host = driver_has_dev ? paths.driver_on_host : paths.dev_on_host;
  GPULET_TRY_ASSIGN(Root dev, Root::open(dev_path, dev_on_host));
  GPULET_TRY_ASSIGN(Root proc, Root::open(paths.proc));
  GPULET_TRY_ASSIGN(Root sys, Root::open(paths.sys));
  return Roots{std::move(driver), std::move(dev), std::move(proc), std::move(sys)};
}

}  // namespace gpulet::cdi

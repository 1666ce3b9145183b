#include "cdi/root.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>

#include "base/text.h"

namespace gpulet::cdi {
namespace {

Result<FileStatus> status_of_open(int fd, std::string_view path) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) return fail(errno_error("cannot stat", errno, std::string(path)));
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

// A host path without its trailing slash, to append others to: "/run/nvidia/driver/" →
// "/run/nvidia/driver".
Result<std::string> absolute(std::string_view path) {
  if (!text::starts_with(path, "/"))
    return fail(Code::kInvalidArgument, "a root must be an absolute path, not \"" + std::string(path) + "\"");
  return normalize_path(path);
}

}  // namespace

std::string normalize_path(std::string_view path) {
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

bool matches_glob(std::string_view pattern, std::string_view name) {
  std::size_t at = 0, in_name = 0;
  std::size_t star = std::string_view::npos, tried = 0;  // the last *, and the end of its run of characters
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

Result<Root> Root::open_root(const std::string& path, const std::string& host_path) {
  GPULET_TRY_ASSIGN(const std::string here, absolute(path));
  GPULET_TRY_ASSIGN(std::string host, absolute(host_path.empty() ? path : host_path));
  GPULET_TRY_ASSIGN(RootDirectory directory, RootDirectory::open_root(here));
  Root root(std::move(directory), std::move(host));
  if (here == "/") return root;
  GPULET_TRY_ASSIGN(const FileDescriptor itself, root.directory_.open_file("/", O_PATH));
  GPULET_TRY_ASSIGN(root.true_path_, read_link_at(AT_FDCWD, proc_name(itself.get()), here));
  if (root.true_path_ == "/") root.true_path_.clear();
  return root;
}

std::string Root::on_host(std::string_view path) const {
  std::string inside = normalize_path(path);
  if (host_path_ == "/") return inside;
  return inside == "/" ? host_path_ : host_path_ + inside;
}

std::optional<std::string> Root::from_host(std::string_view path) const {
  std::string host = normalize_path(path);
  if (host_path_ == "/") return host;
  if (!text::starts_with(host, host_path_)) return std::nullopt;
  if (host.size() == host_path_.size()) return "/";
  return host[host_path_.size()] == '/' ? std::optional(host.substr(host_path_.size())) : std::nullopt;
}

Result<std::string> Root::descriptor_path(int fd) const {
  GPULET_TRY_ASSIGN(const std::string full, read_link_at(AT_FDCWD, proc_name(fd), root_path()));
  if (full.ends_with(" (deleted)")) return fail(Code::kNotFound, "was removed meanwhile", full);
  if (full == true_path_) return "/";
  if (!text::starts_with(full, true_path_) || full[true_path_.size()] != '/')
    return fail(Code::kInternal, "is not below the root " + root_path(), full);
  return full.substr(true_path_.size());
}

// Almost no path contains a link: then it is its own resolution, and one call is enough.
Result<Root::Opened> Root::open_resolved(std::string_view path, int flags) const {
  auto straight = directory_.open_file(path, flags, RESOLVE_NO_SYMLINKS);
  if (straight) return Opened{std::move(*straight), normalize_path(path)};
  if (straight.error().code() == Code::kNotFound) return fail(straight.error());
  GPULET_TRY_ASSIGN(FileDescriptor fd, directory_.open_file(path, flags));
  GPULET_TRY_ASSIGN(std::string resolved, descriptor_path(fd.get()));
  return Opened{std::move(fd), std::move(resolved)};
}

Result<std::string> Root::resolve_path(std::string_view path) const {
  GPULET_TRY_ASSIGN(Opened opened, open_resolved(path, O_PATH));
  return std::move(opened.path);
}

bool Root::exists(std::string_view path) const { return directory_.open_file(path, O_PATH).has_value(); }

Result<FileStatus> Root::file_status(std::string_view path) const {
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

Result<Root::Resolved> Root::resolve_with_status(std::string_view path) const {
  GPULET_TRY_ASSIGN(Opened opened, open_resolved(path, O_PATH));
  GPULET_TRY_ASSIGN(const FileStatus status, status_of_open(opened.fd.get(), path));
  return Resolved{std::move(opened.path), status};
}

Result<Directory> Root::open_directory(std::string_view directory) const {
  GPULET_TRY_ASSIGN(Opened opened, open_resolved(directory, O_RDONLY | O_DIRECTORY));
  return Directory(std::move(opened.path), std::move(opened.fd));
}

Result<Directory> Root::list_directory(std::string_view directory) const {
  GPULET_TRY_ASSIGN(Directory result, open_directory(directory));
  GPULET_TRY(result.read_entries());
  return result;
}

std::vector<std::string> Root::glob(std::string_view pattern) const {
  const std::size_t slash = pattern.rfind('/');
  const std::string_view directory = slash == std::string_view::npos ? "" : pattern.substr(0, slash);
  const std::string_view last = slash == std::string_view::npos ? pattern : pattern.substr(slash + 1);
  std::vector<std::string> found;
  const auto listed = list_directory(directory);
  if (!listed) return found;
  const auto [first, end] = listed->with_prefix(last.substr(0, last.find('*')));
  for (std::size_t index = first; index < end; ++index) {
    const std::string_view name = listed->entry(index).name;
    if (matches_glob(last, name)) found.push_back(std::string(directory) + "/" + std::string(name));
  }
  return found;
}

Result<std::string> Root::read_regular_file(std::string_view path, std::size_t max_bytes) const {
  GPULET_TRY_ASSIGN(const FileDescriptor seen, directory_.open_file(path, O_PATH));
  GPULET_TRY_ASSIGN(const FileStatus status, status_of_open(seen.get(), path));
  if (status.type != FileType::kRegular)
    return fail(Code::kFailedPrecondition, "is not a regular file", std::string(path));
  const FileDescriptor fd(::open(proc_name(seen.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.is_open()) return fail(errno_error("cannot open", errno, std::string(path)));
  return read_all(fd.get(), std::string(path), max_bytes);
}

Result<Roots> open_roots(const RootPaths& paths) {
  GPULET_TRY_ASSIGN(Root driver, Root::open_root(paths.driver, paths.driver_on_host));
  const bool driver_has_dev = paths.dev.empty() && driver.exists("/dev/nvidiactl");
  const std::string dev_path = driver_has_dev ? paths.driver : paths.dev.empty() ? "/" : paths.dev;
  const std::string& dev_on_host = driver_has_dev ? paths.driver_on_host : paths.dev_on_host;
  GPULET_TRY_ASSIGN(Root dev, Root::open_root(dev_path, dev_on_host));
  GPULET_TRY_ASSIGN(Root proc, Root::open_root(paths.proc));
  GPULET_TRY_ASSIGN(Root sys, Root::open_root(paths.sys));
  return Roots{std::move(driver), std::move(dev), std::move(proc), std::move(sys)};
}

// Directory: the names are concatenated in one text and sorted by an index.

namespace {

constexpr std::size_t kListingBytes = 64u << 10;  // one getdents: some 1,500 names

// Some file systems do not report the type in the listing.
FileType type_of_entry(int directory, unsigned char listed, const char* name) {
  if (listed != DT_UNKNOWN) return type_of_mode(DTTOIF(listed));
  struct stat status{};
  if (::fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0) return FileType::kOther;
  return type_of_mode(status.st_mode);
}

}  // namespace

Status Directory::read_entries() {
  alignas(dirent64) char buffer[kListingBytes];
  for (;;) {
    const long got = ::syscall(SYS_getdents64, fd_.get(), buffer, sizeof buffer);
    if (got < 0) return fail(errno_error("cannot list", errno, path_));
    if (got == 0) break;
    for (long offset = 0; offset < got;) {
      const char* record = buffer + offset;
      unsigned short length = 0;
      std::memcpy(&length, record + offsetof(dirent64, d_reclen), sizeof length);
      const unsigned char type = static_cast<unsigned char>(record[offsetof(dirent64, d_type)]);
      const char* text = record + offsetof(dirent64, d_name);
      const std::string_view name(text);
      offset += length;
      if (name == "." || name == "..") continue;
      if (entries_.size() == kMaxDirectoryEntries)
        return fail(Code::kInvalidArgument,
                    "contains more than " + std::to_string(kMaxDirectoryEntries) + " files", path_);
      entries_.push_back({static_cast<std::uint32_t>(names_.size()), static_cast<std::uint32_t>(name.size()),
                          type_of_entry(fd_.get(), type, text)});
      names_.append(name).push_back('\0');
    }
  }
  std::ranges::sort(entries_, {}, [this](const Name& entry) { return entry_name(entry); });
  return {};
}

Directory::Entry Directory::entry(std::size_t index) const {
  return {entry_name(entries_[index]), entries_[index].type};
}

std::pair<std::size_t, std::size_t> Directory::with_prefix(std::string_view prefix) const {
  const auto first =
      std::ranges::lower_bound(entries_, prefix, {}, [this](const Name& entry) { return entry_name(entry); });
  const auto last = std::partition_point(
      first, entries_.end(), [&](const Name& entry) { return text::starts_with(entry_name(entry), prefix); });
  return {static_cast<std::size_t>(first - entries_.begin()),
          static_cast<std::size_t>(last - entries_.begin())};
}

std::vector<Directory::Name>::const_iterator Directory::find(std::string_view name) const {
  const auto found =
      std::ranges::lower_bound(entries_, name, {}, [this](const Name& entry) { return entry_name(entry); });
  return found != entries_.end() && entry_name(*found) == name ? found : entries_.end();
}

bool Directory::contains_entry(std::string_view name) const { return find(name) != entries_.end(); }

FileType Directory::type_of(std::string_view name) const {
  const auto found = find(name);
  return found == entries_.end() ? FileType::kOther : found->type;
}

Result<FileStatus> Directory::entry_status(std::string_view name) const {
  const std::string path(name);
  struct stat status{};
  if (::fstatat(fd_.get(), path.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
    return fail(errno_error("cannot stat", errno, path_ + "/" + path));
  return status_from(status);
}

Result<std::string> Directory::read_link(std::string_view name) const {
  char target[PATH_MAX];
  const std::string path(name);
  const ssize_t length = ::readlinkat(fd_.get(), path.c_str(), target, sizeof target);
  if (length >= 0) return std::string(target, static_cast<std::size_t>(length));
  if (errno == EINVAL) return fail(Code::kFailedPrecondition, "is not a link", path_ + "/" + path);
  return fail(errno_error("cannot read link", errno, path_ + "/" + path));
}

// A directory is missing if a parent is, or if the nearest listed parent has no such name.
bool DirectoryCache::is_known_missing(std::string_view path) const {
  for (std::size_t slash = path.rfind('/'); slash != std::string_view::npos && slash > 0;
       slash = path.rfind('/', slash - 1)) {
    const auto above = by_name_.find(path.substr(0, slash));
    if (above == by_name_.end()) continue;
    if (above->second == nullptr) return true;
    const std::string_view below = path.substr(slash + 1);
    return !above->second->contains_entry(below.substr(0, below.find('/')));
  }
  return false;
}

const Directory* DirectoryCache::open_and_list(const std::string& path) {
  if (is_known_missing(path)) return nullptr;
  auto opened = root_->open_directory(path);
  if (!opened) {
    if (opened.error().code() != Code::kNotFound) problems_.push_back(opened.error().full_message());
    return nullptr;
  }
  const auto known = by_path_.find(opened->resolved_path());
  if (known != by_path_.end()) return known->second.get();
  if (const auto read = opened->read_entries(); !read) {
    problems_.push_back(read.error().full_message());
    return nullptr;
  }
  auto directory = std::make_unique<Directory>(std::move(*opened));
  const std::string resolved = directory->resolved_path();
  return (by_path_[resolved] = std::move(directory)).get();
}

const Directory* DirectoryCache::get(std::string_view path) {
  const std::string normalized = normalize_path(path);
  if (const auto known = by_name_.find(normalized); known != by_name_.end()) return known->second;
  const Directory* directory = open_and_list(normalized);
  by_name_[normalized] = directory;
  return directory;
}

}  // namespace gpulet::cdi

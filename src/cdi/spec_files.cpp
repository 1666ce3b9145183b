#include "cdi/spec_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <utility>

#include "base/file.h"
#include "base/text.h"
#include "cdi/names.h"

namespace gpulet::cdi {
namespace {

constexpr std::string_view kTemporaryPrefix = ".gpulet-";
constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr mode_t kMode = 0644;
constexpr std::size_t kMaxListed = 1024;

// FNV-1a, 64 bits: to know our own bytes again, not against an attacker, who could write the list as well.
std::string checksum(std::string_view text) {
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

// File name and checksum; a name has two while it is replaced.
using List = std::set<std::pair<std::string, std::string>>;

// One folder, locked by this process until it goes out of scope.
class LockedFolder {
 public:
  static Result<LockedFolder> open(const std::string& path) {
    GPULET_TRY(make_directories(path));
    FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid()) return fail(errno_error("cannot open the folder", errno, path));
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return fail(errno_error("cannot lock the folder", errno, path));
      return fail(Code::kUnavailable, "another process is writing specs there", path);
    }
    return LockedFolder(path, std::move(fd));
  }

  std::string path_of(std::string_view name) const { return path_ + "/" + std::string(name); }

  // A regular file's content; no link is followed and no FIFO waited for.
  Result<std::string> read(const std::string& name) const {
    FileDescriptor fd(::openat(fd_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!fd.valid()) return fail(errno_error("cannot read", errno, path_of(name)));
    struct stat status{};
    if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
      return fail(Code::kFailedPrecondition, "is no regular file", path_of(name));
    }
    return read_all(fd.get(), path_of(name));
  }

  // Whole and with its mode before it has its name.
  Status replace(const std::string& name, std::string_view content) const {
    const std::string temporary = std::string(kTemporaryPrefix) + name + std::string(kTemporarySuffix);
    Status done = write_temporary(temporary, content);
    if (done && ::renameat(fd_.get(), temporary.c_str(), fd_.get(), name.c_str()) != 0) {
      done = fail(errno_error("cannot replace", errno, path_of(name)));
    }
    if (!done) ::unlinkat(fd_.get(), temporary.c_str(), 0);
    return done;
  }

  Status remove(const std::string& name) const {
    if (::unlinkat(fd_.get(), name.c_str(), 0) == 0 || errno == ENOENT) return {};
    return fail(errno_error("cannot remove", errno, path_of(name)));
  }

  // What a writer that was killed has left.
  void remove_temporaries() const {
    const int copy = ::openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (copy < 0) return;
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(::fdopendir(copy), ::closedir);
    if (!folder) {
      ::close(copy);
      return;
    }
    while (const dirent* entry = ::readdir(folder.get())) {
      const std::string_view name(entry->d_name);
      if (name.starts_with(kTemporaryPrefix) && name.ends_with(kTemporarySuffix)) {
        ::unlinkat(fd_.get(), entry->d_name, 0);
      }
    }
  }

 private:
  LockedFolder(std::string path, FileDescriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  Status write_temporary(const std::string& name, std::string_view content) const {
    FileDescriptor fd(
        ::openat(fd_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kMode));
    if (!fd.valid()) return fail(errno_error("cannot create", errno, path_of(name)));
    while (!content.empty()) {
      const ssize_t put = ::write(fd.get(), content.data(), content.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return fail(errno_error("cannot write", errno, path_of(name)));
      content.remove_prefix(static_cast<std::size_t>(put));
    }
    if (::fchmod(fd.get(), kMode) != 0 || ::fsync(fd.get()) != 0) {
      return fail(errno_error("cannot finish", errno, path_of(name)));
    }
    return {};
  }

  std::string path_;
  FileDescriptor fd_;
};

bool is_file_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string::npos;
}

List read_list(const LockedFolder& folder) {
  List list;
  const auto text = folder.read(kSpecList);
  if (!text) return list;
  for (const auto& line : text::split(*text, '\n')) {
    const auto fields = text::split(line, ' ');
    if (fields.size() == 2 && is_file_name(fields[0]) && list.size() < kMaxListed) {
      list.emplace(fields[0], fields[1]);
    }
  }
  return list;
}

Status write_list(const LockedFolder& folder, const List& list) {
  std::string text;
  for (const auto& [name, sum] : list) text += name + " " + sum + "\n";
  if (const auto there = folder.read(kSpecList); there && *there == text) return {};
  if (list.empty()) return folder.remove(kSpecList);
  return folder.replace(kSpecList, text);
}

// Removes what is listed, not wanted and has our bytes; another's file of that name is only forgotten.
void remove_stale(const LockedFolder& folder, List& list, const std::set<std::string>& wanted,
                  OnDisk& result) {
  for (auto entry = list.begin(); entry != list.end();) {
    const std::string name = entry->first;
    if (wanted.contains(name)) {
      ++entry;
      continue;
    }
    const auto content = folder.read(name);
    if (content && entry->second == checksum(*content)) {
      if (const auto gone = folder.remove(name); !gone) {
        result.errors.push_back(gone.error());
        ++entry;
        continue;
      }
      result.removed.push_back(name);
    }
    entry = list.erase(entry);
  }
}

std::vector<std::string> devices_of(const Spec& spec) {
  std::vector<std::string> devices;
  for (const auto& device : spec.devices) devices.push_back(qualified_name(spec.kind, device.name));
  return devices;
}

}  // namespace

bool OnDisk::has(const std::string& qualified_name) const {
  return std::ranges::binary_search(devices, qualified_name);
}

std::string spec_file_name(const Spec& spec) {
  std::string name = spec.kind;
  std::ranges::replace(name, '/', '-');
  return name + ".json";
}

Result<OnDisk> SpecFolder::write(const std::vector<Spec>& specs) {
  GPULET_TRY_ASSIGN(const auto folder, LockedFolder::open(folder_));
  folder.remove_temporaries();
  const List before = read_list(folder);

  std::map<std::string, Standing> wanted;
  for (const auto& spec : specs) wanted[spec_file_name(spec)] = {to_json(spec), devices_of(spec)};
  std::set<std::string> names;
  List listed = before;
  for (const auto& [name, file] : wanted) {
    names.insert(name);
    listed.emplace(name, checksum(file.content));
  }
  // Ours before it is there: a kill between the two leaves a name without a file, and never a file without a
  // name.
  GPULET_TRY(write_list(folder, listed));

  OnDisk result;
  List after = listed;
  for (auto& [name, file] : wanted) {
    const auto there = folder.read(name);
    if (!there || *there != file.content) {
      if (const auto done = folder.replace(name, file.content); !done) {
        result.errors.push_back(done.error());
        if (!there || *there != standing_[name].content) standing_.erase(name);
        continue;
      }
      result.written.push_back(name);
    }
    std::erase_if(after, [&](const auto& entry) {
      return entry.first == name && entry.second != checksum(file.content);
    });
    standing_[name] = std::move(file);
  }
  remove_stale(folder, after, names, result);
  std::erase_if(standing_, [&](const auto& entry) { return !names.contains(entry.first); });
  if (const auto done = write_list(folder, after); !done) result.errors.push_back(done.error());

  for (const auto& [name, file] : standing_) {
    result.devices.insert(result.devices.end(), file.devices.begin(), file.devices.end());
  }
  std::ranges::sort(result.devices);
  return result;
}

}  // namespace gpulet::cdi

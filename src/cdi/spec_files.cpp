#include "cdi/spec_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "base/file.h"
#include "base/text.h"
#include "cdi/spec.h"

namespace gpulet::cdi {
namespace {

constexpr std::string_view kTemporaryPrefix = ".gpulet-";
constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr mode_t kMode = 0644;
constexpr std::size_t kMaxListed = 1024;

// Recognises files that gpulet wrote. Not a protection: an attacker could write the list as well.
std::string checksum(std::string_view text) { return hex_text(fnv1a_64(text)); }

// File name and checksum; a name has two while its file is replaced.
using WrittenList = std::set<std::pair<std::string, std::string>>;

// A directory, locked by this process as long as the object exists.
class LockedDirectory {
 public:
  static Result<LockedDirectory> lock_directory(const std::string& path) {
    GPULET_TRY(make_directories(path));
    FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.is_open()) return fail(errno_error("cannot open the directory", errno, path));
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return fail(errno_error("cannot lock the directory", errno, path));
      return fail(Code::kUnavailable, "another process is writing specs there", path);
    }
    return LockedDirectory(path, std::move(fd));
  }

  std::string path_in(std::string_view name) const { return path_ + "/" + std::string(name); }

  // A regular file's content; follows no link and does not block on a FIFO.
  Result<std::string> read_entry(const std::string& name) const {
    FileDescriptor fd(::openat(fd_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!fd.is_open()) return fail(errno_error("cannot read", errno, path_in(name)));
    struct stat status{};
    if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
      return fail(Code::kFailedPrecondition, "is not a regular file", path_in(name));
    }
    return read_all(fd.get(), path_in(name));
  }

  // Complete and with its mode before the rename.
  Status replace_entry(const std::string& name, std::string_view content) const {
    const std::string temporary = std::string(kTemporaryPrefix) + name + std::string(kTemporarySuffix);
    Status done = write_temporary(temporary, content);
    if (done && ::renameat(fd_.get(), temporary.c_str(), fd_.get(), name.c_str()) != 0) {
      done = fail(errno_error("cannot replace", errno, path_in(name)));
    }
    if (!done) ::unlinkat(fd_.get(), temporary.c_str(), 0);
    return done;
  }

  Status remove_entry(const std::string& name) const {
    if (::unlinkat(fd_.get(), name.c_str(), 0) == 0 || errno == ENOENT) return {};
    return fail(errno_error("cannot remove", errno, path_in(name)));
  }

  // Removes what a killed writer left.
  void remove_temporaries() const {
    const int copy = ::openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (copy < 0) return;
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(::fdopendir(copy), ::closedir);
    if (!directory) {
      ::close(copy);
      return;
    }
    while (const dirent* entry = ::readdir(directory.get())) {
      const std::string_view name(entry->d_name);
      if (name.starts_with(kTemporaryPrefix) && name.ends_with(kTemporarySuffix)) {
        ::unlinkat(fd_.get(), entry->d_name, 0);
      }
    }
  }

 private:
  LockedDirectory(std::string path, FileDescriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  Status write_temporary(const std::string& name, std::string_view content) const {
    FileDescriptor fd(
        ::openat(fd_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kMode));
    if (!fd.is_open()) return fail(errno_error("cannot create", errno, path_in(name)));
    while (!content.empty()) {
      const ssize_t put = ::write(fd.get(), content.data(), content.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return fail(errno_error("cannot write", errno, path_in(name)));
      content.remove_prefix(static_cast<std::size_t>(put));
    }
    if (::fchmod(fd.get(), kMode) != 0 || ::fsync(fd.get()) != 0) {
      return fail(errno_error("cannot finish", errno, path_in(name)));
    }
    return {};
  }

  std::string path_;
  FileDescriptor fd_;
};

bool is_file_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string::npos;
}

WrittenList read_written_list(const LockedDirectory& directory) {
  WrittenList list;
  const auto text = directory.read_entry(kSpecList);
  if (!text) return list;
  for (const auto& line : text::split(*text, '\n')) {
    const auto fields = text::split(line, ' ');
    if (fields.size() == 2 && is_file_name(fields[0]) && list.size() < kMaxListed) {
      list.emplace(fields[0], fields[1]);
    }
  }
  return list;
}

Status write_written_list(const LockedDirectory& directory, const WrittenList& list) {
  std::string text;
  for (const auto& [name, sum] : list) text += name + " " + sum + "\n";
  if (const auto current = directory.read_entry(kSpecList); current && *current == text) return {};
  if (list.empty()) return directory.remove_entry(kSpecList);
  return directory.replace_entry(kSpecList, text);
}

// Removes listed files that are no longer needed and have the listed bytes; another writer's file
// of that name is only dropped from the list.
void remove_stale(const LockedDirectory& directory, WrittenList& list, const std::set<std::string>& desired,
                  WrittenSpecs& result) {
  for (auto entry = list.begin(); entry != list.end();) {
    const std::string name = entry->first;
    if (desired.contains(name)) {
      ++entry;
      continue;
    }
    const auto content = directory.read_entry(name);
    if (content && entry->second == checksum(*content)) {
      if (const auto gone = directory.remove_entry(name); !gone) {
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

bool WrittenSpecs::has_device(const std::string& qualified_name) const {
  return std::ranges::binary_search(devices, qualified_name);
}

std::string spec_file_name(const Spec& spec) {
  std::string name = spec.kind;
  std::ranges::replace(name, '/', '-');
  return name + ".json";
}

Result<WrittenSpecs> SpecDirectory::write_specs(const std::vector<Spec>& specs) {
  GPULET_TRY_ASSIGN(const auto directory, LockedDirectory::lock_directory(directory_));
  directory.remove_temporaries();
  const WrittenList before = read_written_list(directory);

  std::map<std::string, WrittenFile> desired;
  for (const auto& spec : specs) desired[spec_file_name(spec)] = {to_json(spec), devices_of(spec)};
  std::set<std::string> names;
  WrittenList listed = before;
  for (const auto& [name, file] : desired) {
    names.insert(name);
    listed.emplace(name, checksum(file.content));
  }
  // Listed before it is written: a crash in between leaves a name without a file, never a file
  // without a name.
  GPULET_TRY(write_written_list(directory, listed));

  WrittenSpecs result;
  WrittenList after = listed;
  for (auto& [name, file] : desired) {
    const auto current = directory.read_entry(name);
    if (!current || *current != file.content) {
      if (const auto done = directory.replace_entry(name, file.content); !done) {
        result.errors.push_back(done.error());
        if (!current || *current != written_files_[name].content) written_files_.erase(name);
        continue;
      }
      result.written.push_back(name);
    }
    std::erase_if(after, [&](const auto& entry) {
      return entry.first == name && entry.second != checksum(file.content);
    });
    written_files_[name] = std::move(file);
  }
  remove_stale(directory, after, names, result);
  std::erase_if(written_files_, [&](const auto& entry) { return !names.contains(entry.first); });
  if (const auto done = write_written_list(directory, after); !done) result.errors.push_back(done.error());

  for (const auto& [name, file] : written_files_) {
    result.devices.insert(result.devices.end(), file.devices.begin(), file.devices.end());
  }
  std::ranges::sort(result.devices);
  return result;
}

namespace {

std::vector<std::string> spec_files(const std::string& directory, std::vector<SpecProblem>& problems) {
  std::vector<std::string> paths;
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator(directory, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const auto extension = entry->path().extension();
    if (extension == ".json" || extension == ".yaml") paths.push_back(entry->path().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    problems.push_back({directory, {}, {}, "cannot be listed: " + error.message()});
  }
  std::ranges::sort(paths);
  return paths;
}

}  // namespace

ReadSpec read_spec_file(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (type != std::filesystem::file_type::regular) {
    const bool missing = type == std::filesystem::file_type::not_found;
    return {std::nullopt, {{path, {}, {}, missing ? "there is no such file" : "is not a regular file"}}};
  }
  const auto text = read_file(path, config::yaml::kMaxTextBytes);
  if (!text) return {std::nullopt, {{path, {}, {}, text.error().message()}}};
  return read_spec(*text, path);
}

SpecDirs read_spec_dirs(const std::vector<std::string>& directories) {
  SpecDirs result;
  std::map<std::string, std::string> owners;  // device → its file, or "" if it conflicts
  for (const auto& directory : directories) {
    std::map<std::string, std::string> here;
    for (const auto& path : spec_files(directory, result.problems)) {
      result.files.push_back(path);
      const auto read = read_spec_file(path);
      result.problems.insert(result.problems.end(), read.problems.begin(), read.problems.end());
      if (!read.spec) continue;
      for (const auto& device : read.spec->devices) {
        const auto name = qualified_name(read.spec->kind, device.name);
        const auto [other, is_new] = here.emplace(name, path);
        if (is_new) continue;
        if (!other->second.empty()) {
          result.problems.push_back(
              {path, {}, {}, name + " is in " + other->second + " too: no container gets it"});
        }
        other->second.clear();
      }
    }
    for (const auto& [name, path] : here) owners[name] = path;
  }
  for (const auto& [name, path] : owners) {
    if (!path.empty()) result.devices.push_back(name);
  }
  return result;
}

}  // namespace gpulet::cdi

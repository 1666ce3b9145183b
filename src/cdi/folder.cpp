// Folder: one listing, kept. The names lie one behind the other in one text, sorted by an index.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>

#include "base/text.h"
#include "cdi/file_status.h"
#include "cdi/root.h"

namespace gpulet::cdi {
namespace {

constexpr std::size_t kListingBytes = 64u << 10;  // what one getdents brings: some 1,500 names

// Some file systems do not say the type in the listing: then it is asked for.
FileType type_of_entry(int folder, unsigned char listed, const char* name) {
  if (listed != DT_UNKNOWN) return type_of_mode(DTTOIF(listed));
  struct stat status{};
  if (::fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) != 0) return FileType::kOther;
  return type_of_mode(status.st_mode);
}

}  // namespace

Status Folder::read_entries() {
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
      if (entries_.size() == kMaxFolderEntries)
        return fail(Code::kInvalidArgument, "holds more than " + std::to_string(kMaxFolderEntries) + " files",
                    path_);
      entries_.push_back({static_cast<std::uint32_t>(names_.size()), static_cast<std::uint32_t>(name.size()),
                          type_of_entry(fd_.get(), type, text)});
      names_.append(name).push_back('\0');
    }
  }
  std::ranges::sort(entries_, {}, [this](const Name& entry) { return name_of(entry); });
  return {};
}

Folder::Entry Folder::entry(std::size_t index) const {
  return {name_of(entries_[index]), entries_[index].type};
}

std::pair<std::size_t, std::size_t> Folder::with_prefix(std::string_view prefix) const {
  const auto first =
      std::ranges::lower_bound(entries_, prefix, {}, [this](const Name& entry) { return name_of(entry); });
  const auto last = std::partition_point(
      first, entries_.end(), [&](const Name& entry) { return text::starts_with(name_of(entry), prefix); });
  return {static_cast<std::size_t>(first - entries_.begin()),
          static_cast<std::size_t>(last - entries_.begin())};
}

std::vector<Folder::Name>::const_iterator Folder::find(std::string_view name) const {
  const auto found =
      std::ranges::lower_bound(entries_, name, {}, [this](const Name& entry) { return name_of(entry); });
  return found != entries_.end() && name_of(*found) == name ? found : entries_.end();
}

bool Folder::has(std::string_view name) const { return find(name) != entries_.end(); }

FileType Folder::type_of(std::string_view name) const {
  const auto found = find(name);
  return found == entries_.end() ? FileType::kOther : found->type;
}

Result<FileStatus> Folder::status(std::string_view name) const {
  const std::string path(name);
  struct stat status{};
  if (::fstatat(fd_.get(), path.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
    return fail(errno_error("cannot look at", errno, path_ + "/" + path));
  return status_from(status);
}

Result<std::string> Folder::read_link(std::string_view name) const {
  char target[PATH_MAX];
  const std::string path(name);
  const ssize_t length = ::readlinkat(fd_.get(), path.c_str(), target, sizeof target);
  if (length >= 0) return std::string(target, static_cast<std::size_t>(length));
  if (errno == EINVAL) return fail(Code::kFailedPrecondition, "is not a link", path_ + "/" + path);
  return fail(errno_error("cannot read link", errno, path_ + "/" + path));
}

}  // namespace gpulet::cdi

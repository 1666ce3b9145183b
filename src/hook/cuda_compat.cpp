#include "hook/cuda_compat.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "base/text.h"
#include "hook/version.h"

namespace gpulet::hook {
namespace {

constexpr std::string_view kLibraryPrefix = "libcuda.so.";
constexpr std::size_t kMaxCompatFiles = 1024;
constexpr std::size_t kMaxCompatBytes = 1u << 30;

ReadAt reader_of(int fd) {
  return [fd](std::uint64_t offset, std::span<char> out) {
    while (!out.empty()) {
      const ssize_t got = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      out = out.subspan(static_cast<std::size_t>(got));
      offset += static_cast<std::uint64_t>(got);
    }
    return true;
  };
}

// The version of the one "libcuda.so.<a>.<b>…" that is a file of its own; nullopt when there is none or more
// than one.
std::optional<std::string> only_library(const Rootfs& root, std::string_view folder,
                                        const std::vector<std::string>& names) {
  std::optional<std::string> found;
  for (const std::string& name : names) {
    if (!text::starts_with(name, kLibraryPrefix)) continue;
    const std::string version = name.substr(kLibraryPrefix.size());
    if (version.find('.') == std::string::npos || !parse_version(version)) continue;
    if (root.read_link(std::string(folder) + "/" + name)) continue;
    if (found) return std::nullopt;
    found = version;
  }
  return found;
}

// Whether the container's own library is to come first; false for all that is odd about it.
bool is_wanted(const Rootfs& root, std::string_view folder, const HostVersions& host) {
  const auto names = root.list(folder, kMaxCompatFiles);
  if (!names) return false;
  const auto version = only_library(root, folder, *names);
  if (!version) return false;
  const auto file =
      root.open_regular(std::string(folder) + "/" + std::string(kLibraryPrefix) + *version, kMaxCompatBytes);
  if (!file) return false;
  const auto note = read_compat_note(reader_of(file->get()));
  return note && compat_wanted(*note, *version, host);
}

}  // namespace

bool compat_wanted(const std::optional<CompatNote>& note, std::string_view library,
                   const HostVersions& host) {
  const auto host_driver = parse_version(host.driver);
  const auto host_cuda = parse_version(host.cuda);
  if (note && host_driver && !note->drivers.empty() &&
      std::find(note->drivers.begin(), note->drivers.end(), host_driver->major_part()) == note->drivers.end())
    return false;
  const auto its_cuda = note ? parse_version(note->cuda_version) : std::nullopt;
  if (its_cuda && host_cuda) return *its_cuda > *host_cuda;
  const auto its_driver = parse_version(library);
  return its_driver && host_driver && its_driver->major_part() > host_driver->major_part();
}

Status enable_cuda_compat(const Container& container, const HostVersions& host, std::string_view folder) {
  // The folder's name comes from the CDI spec and becomes a line of a file that ldconfig reads.
  if (folder.empty() || folder[0] != '/' || folder.find_first_of("\n\r# \t:,=") != std::string_view::npos)
    return fail(Code::kInvalidArgument, "not a folder that ld.so.conf can name", std::string(folder));
  if (is_wanted(container.root, folder, host))
    return container.root.write_file(kCompatConfigFile, std::string(folder) + "\n");
  return container.root.remove_file(kCompatConfigFile);
}

}  // namespace gpulet::hook

#include "hook/musl_path.h"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace gpulet::hook {
namespace {

#if defined(__x86_64__)
constexpr std::string_view kLoader = "/lib/ld-musl-x86_64.so.1";
constexpr std::string_view kPathFile = "/etc/ld-musl-x86_64.path";
#elif defined(__aarch64__)
constexpr std::string_view kLoader = "/lib/ld-musl-aarch64.so.1";
constexpr std::string_view kPathFile = "/etc/ld-musl-aarch64.path";
#else
#error "what is musl's loader called here?"
#endif

constexpr std::string_view kDefault = "/lib:/usr/local/lib:/usr/lib";
constexpr std::size_t kMaxPathFileBytes = 64u << 10;
constexpr std::size_t kMaxFolderEntries = 8192;
constexpr std::size_t kMaxLibraryBytes = 1ull << 40;

// True when it has libraries and none of them is of 64 bits.
bool is_of_32_bits(const Rootfs& root, const std::string& folder) {
  const auto names = root.list(folder, kMaxFolderEntries);
  if (!names) return false;
  bool found = false;
  for (const std::string& name : *names) {
    if (!text::starts_with(name, "lib") || name.find(".so") == std::string::npos) continue;
    const auto file = root.open_regular(folder + "/" + name, kMaxLibraryBytes);
    char head[EI_NIDENT];
    if (!file || ::pread(file->get(), head, sizeof head, 0) != static_cast<ssize_t>(sizeof head) ||
        std::memcmp(head, ELFMAG, SELFMAG) != 0)
      continue;
    if (head[EI_CLASS] == ELFCLASS64) return false;
    found = true;
  }
  return found;
}

}  // namespace

bool has_musl(const Rootfs& root) { return root.open_inside(kLoader, O_PATH).has_value(); }

std::string with_musl_folders(std::string_view now, const std::vector<std::string>& folders) {
  std::string base(now.empty() ? kDefault : now);
  std::replace(base.begin(), base.end(), '\n', ':');
  const std::vector<std::string> known = text::split(base, ':');
  std::vector<std::string> all;
  for (const std::string& folder : folders)
    if (std::find(known.begin(), known.end(), folder) == known.end() &&
        std::find(all.begin(), all.end(), folder) == all.end())
      all.push_back(folder);
  if (all.empty()) return {};
  for (const std::string& folder : known)
    if (!folder.empty()) all.push_back(folder);
  return text::join(all, ":") + "\n";
}

Status update_musl_path(const Rootfs& root, const std::vector<std::string>& folders) {
  const auto now = root.read(kPathFile, kMaxPathFileBytes);
  // One that the loader could not read either is as none; one that is too large is not ours to shorten.
  if (!now && now.error().code() == Code::kInvalidArgument) return fail(now.error());
  std::vector<std::string> wanted;
  for (const std::string& folder : folders)
    if (!is_of_32_bits(root, folder)) wanted.push_back(folder);
  const std::string content = with_musl_folders(now ? *now : std::string(), wanted);
  if (content.empty()) return {};
  return root.write_file(kPathFile, content);
}

}  // namespace gpulet::hook

#include "hook/ldcache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"
#include "hook/confinement.h"
#include "hook/ld_conf.h"
#include "hook/musl_path.h"
#include "hook/sealed_copy.h"

namespace gpulet::hook {
namespace {

#if defined(__x86_64__)
constexpr std::array<std::string_view, 2> kDebianFolders{"/lib/x86_64-linux-gnu",
                                                         "/usr/lib/x86_64-linux-gnu"};
constexpr std::string_view kGlibcLoader = "/lib64/ld-linux-x86-64.so.2";
#elif defined(__aarch64__)
constexpr std::array<std::string_view, 2> kDebianFolders{"/lib/aarch64-linux-gnu",
                                                         "/usr/lib/aarch64-linux-gnu"};
constexpr std::string_view kGlibcLoader = "/lib/ld-linux-aarch64.so.1";
#else
#error "what are Debian's folders called here?"
#endif
constexpr std::array<std::string_view, 2> kWideFolders{"/lib64", "/usr/lib64"};
constexpr std::array<std::string_view, 2> kPlainFolders{"/lib", "/usr/lib"};

constexpr std::string_view kIncludeAll = "include /etc/ld.so.conf.d/*.conf\n";
constexpr std::size_t kMaxArgumentBytes = 1u << 20;

// Goes on where the container does not let us write, and remembers the first such place.
class Writes {
 public:
  Status take(Status done) {
    if (done || done.error().code() != Code::kPermissionDenied) return done;
    if (!denied_) denied_ = done.error();
    return {};
  }
  Status result() const {
    if (denied_) return fail(denied_->with("programs may not find the driver's libraries"));
    return {};
  }

 private:
  std::optional<Error> denied_;
};

Status write_if_other(const Rootfs& root, std::string_view path, std::string_view content) {
  const auto now = root.read(path, content.size());
  if (now && *now == content) return {};
  return root.write_file(path, content);
}

// What the container's own loader searches without being told.
std::vector<std::string> system_folders(const Rootfs& root) {
  const bool debian = root.open_inside("/etc/debian_version", O_PATH).has_value();
  const auto& first = debian ? kDebianFolders : kWideFolders;
  std::vector<std::string> folders(first.begin(), first.end());
  folders.insert(folders.end(), kPlainFolders.begin(), kPlainFolders.end());
  return folders;
}

// What ldconfig would search without being told on any distribution: the host's need not be the container's.
std::vector<std::string> any_system_folders() {
  std::vector<std::string> folders(kDebianFolders.begin(), kDebianFolders.end());
  folders.insert(folders.end(), kWideFolders.begin(), kWideFolders.end());
  folders.insert(folders.end(), kPlainFolders.begin(), kPlainFolders.end());
  return folders;
}

bool contains(const std::vector<std::string>& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

// The driver's folders are in the configuration, for an ldconfig that runs in the container later.
Status write_config(const Rootfs& root, const std::vector<std::string>& folders, Writes& writes) {
  GPULET_TRY_ASSIGN(const std::vector<LdFolder> configured, read_ld_config(root));
  std::vector<std::string> known = system_folders(root);
  for (const LdFolder& folder : configured)
    if (folder.file != kLdConfigFile) known.push_back(folder.path);
  std::string content;
  for (const std::string& folder : folders) {
    if (contains(known, folder)) continue;
    known.push_back(folder);
    content += folder + "\n";
  }
  if (content.empty()) return writes.take(root.remove_file(kLdConfigFile));
  GPULET_TRY(writes.take(write_if_other(root, kLdConfigFile, content)));
  // A distroless image has none.
  const auto there = root.open_inside(kLdConfig, O_PATH | O_NOFOLLOW);
  if (!there && there.error().code() == Code::kNotFound)
    GPULET_TRY(writes.take(root.write_file(kLdConfig, kIncludeAll)));
  return {};
}

// Every folder that the cache is made from, the ones that count most first, each once and there.
Result<std::vector<std::string>> folders_to_search(const Rootfs& root,
                                                   const std::vector<std::string>& drivers) {
  GPULET_TRY_ASSIGN(const std::vector<LdFolder> configured, read_ld_config(root));
  std::vector<std::string> named;
  for (const LdFolder& folder : configured) named.push_back(folder.path);
  std::vector<std::string> all;
  std::size_t bytes = 0;
  const auto add = [&](const std::string& folder) {
    if (contains(all, folder) || !root.is_folder(folder)) return;
    bytes += folder.size() + 1;
    all.push_back(folder);
  };
  // Those that the configuration does not lead to: it could not be written, or includes nothing.
  for (const std::string& folder : drivers)
    if (!contains(named, folder) && !contains(system_folders(root), folder)) add(folder);
  for (const std::string& folder : named) add(folder);
  for (const std::string& folder : any_system_folders()) add(folder);
  if (bytes > kMaxArgumentBytes)
    return fail(Code::kInvalidArgument, "the names of its folders are too long", std::string(kLdConfig));
  return all;
}

// A folder of the root for ldconfig's tmpfs: one that has no libraries. The runtime mounts over the first
// ones, so every container has them.
Result<std::string> scratch_folder(const Rootfs& root) {
  for (const char* folder : {"/proc", "/sys", "/dev", "/mnt", "/tmp"})
    if (root.open_inside(folder, O_PATH | O_DIRECTORY | O_NOFOLLOW)) return std::string(folder);
  return fail(Code::kFailedPrecondition, "the container has no /proc to run ldconfig with");
}

// The cache that ldconfig made, checked for being one.
Result<std::string> made_cache(const FileDescriptor& scratch) {
  const FileDescriptor file(
      ::openat(scratch.get(), "ld.so.cache", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status{};
  if (!file.valid() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return fail(Code::kFailedPrecondition, "the host's ldconfig made no cache");
  GPULET_TRY_ASSIGN(std::string cache, read_all(file.get(), "ld.so.cache", kMaxConfinedFile));
  if (!text::starts_with(cache, "glibc-ld.so.cache1.") && !text::starts_with(cache, "ld.so-1.7.0"))
    return fail(Code::kFailedPrecondition, "what the host's ldconfig made is no ld cache");
  return cache;
}

using Identity = std::pair<dev_t, ino_t>;

std::optional<Identity> identity(const Rootfs& root, const std::string& path) {
  const auto fd = root.open_inside(path, O_PATH);
  struct stat status{};
  if (!fd || ::fstat(fd->get(), &status) != 0) return std::nullopt;
  return Identity{status.st_dev, status.st_ino};
}

// ldconfig's own rule: what is there and leads to the library, or is no link, is left alone.
bool is_missing(const Rootfs& root, const LibraryLink& link) {
  const std::string path = link.folder + "/" + link.name;
  const auto itself = root.open_inside(path, O_PATH | O_NOFOLLOW);
  struct stat status{};
  if (!itself) return itself.error().code() == Code::kNotFound;
  if (::fstat(itself->get(), &status) != 0 || !S_ISLNK(status.st_mode)) return false;
  const auto now = identity(root, path);
  return !now || now != identity(root, link.folder + "/" + link.target);
}

// Only in the driver's folders, whatever name ldconfig knows them by; the image's own links are its own
// affair.
Status make_library_links(const Rootfs& root, const std::vector<std::string>& folders,
                          const std::vector<LibraryLink>& links, Writes& writes) {
  std::set<Identity> drivers;
  for (const std::string& folder : folders)
    if (const auto found = identity(root, folder)) drivers.insert(*found);
  std::string last;
  bool is_drivers = false;
  for (const LibraryLink& link : links) {
    if (link.folder != std::exchange(last, link.folder)) {
      const auto found = identity(root, link.folder);
      is_drivers = found && drivers.count(*found) > 0;
    }
    if (!is_drivers || !is_missing(root, link)) continue;
    const Status done = writes.take(root.make_link(link.target, link.folder + "/" + link.name));
    // A folder in its place meanwhile, say: ldconfig leaves it there too.
    if (!done && done.error().code() != Code::kFailedPrecondition) return done;
  }
  return {};
}

bool is_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos;
}

}  // namespace

std::vector<LibraryLink> library_links(std::string_view output) {
  constexpr std::string_view kArrow = " -> ";
  std::vector<LibraryLink> links;
  std::string folder;
  while (!output.empty()) {
    const auto end = output.find('\n');
    std::string_view line = output.substr(0, end);
    output.remove_prefix(end == std::string_view::npos ? output.size() : end + 1);
    if (text::starts_with(line, "/")) {
      const auto from = line.find(": (");
      folder = line.substr(0, from == std::string_view::npos ? line.rfind(':') : from);
      continue;
    }
    const auto arrow = line.find(kArrow);
    if (!text::starts_with(line, "\t") || arrow == std::string_view::npos || folder.empty()) continue;
    const std::string_view name = line.substr(1, arrow - 1);
    const std::string_view target = line.substr(arrow + kArrow.size());
    if (is_file_name(name) && is_file_name(target) && name != target)
      links.push_back({folder, std::string(name), std::string(target)});
  }
  return links;
}

Status update_ldcache(const Container& container, const LdcacheOptions& options) {
  const Rootfs& root = container.root;
  for (const std::string& folder : options.folders)
    if (folder.empty() || folder[0] != '/' || folder.find_first_of("\n\r# \t:,=") != std::string::npos)
      return fail(Code::kInvalidArgument, "not a folder that ld.so.conf can name", folder);
  GPULET_TRY_ASSIGN(const FileDescriptor program, sealed_ldconfig(options.ldconfig_path));
  Writes writes;
  const bool musl = has_musl(root);
  // Of musl alone: its loader reads neither ld.so.conf nor the cache.
  const bool glibc = !musl || root.open_inside(kGlibcLoader, O_PATH).has_value();
  if (musl) GPULET_TRY(writes.take(update_musl_path(root, options.folders)));
  if (glibc) GPULET_TRY(write_config(root, options.folders, writes));
  GPULET_TRY_ASSIGN(const std::vector<std::string> folders, folders_to_search(root, options.folders));
  GPULET_TRY_ASSIGN(const std::string scratch, scratch_folder(root));
  // -X: no links; -i: no earlier run's findings, which are the image's word.
  ConfinedProgram confined;
  confined.program = program.get();
  confined.arguments = {
      "ldconfig", "-v", "-X", "-i", "-f", scratch + "/ld.so.conf", "-C", scratch + "/ld.so.cache"};
  confined.arguments.insert(confined.arguments.end(), folders.begin(), folders.end());
  confined.scratch = scratch;
  // It keeps notes for its next run there, and would wait for whoever reads a FIFO in their place.
  confined.hidden = {"/var/cache/ldconfig"};
  GPULET_TRY_ASSIGN(const ConfinedRun run, run_confined(root, confined));
  GPULET_TRY_ASSIGN(const std::string cache, made_cache(run.scratch));
  if (glibc) GPULET_TRY(writes.take(write_if_other(root, kLdCache, cache)));
  GPULET_TRY(make_library_links(root, options.folders, library_links(run.output), writes));
  return writes.result();
}

}  // namespace gpulet::hook

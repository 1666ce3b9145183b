#include "hook/ldcache.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"
#include "hook/confinement.h"

namespace gpulet::hook {
namespace {

#if defined(__x86_64__)
constexpr std::string_view kLoader = "/lib/ld-musl-x86_64.so.1";
constexpr std::string_view kPathFile = "/etc/ld-musl-x86_64.path";
#elif defined(__aarch64__)
constexpr std::string_view kLoader = "/lib/ld-musl-aarch64.so.1";
constexpr std::string_view kPathFile = "/etc/ld-musl-aarch64.path";
#else
#error "unknown architecture: add the name of musl's loader"
#endif

constexpr std::string_view kDefault = "/lib:/usr/local/lib:/usr/lib";
constexpr std::size_t kMaxPathFileBytes = 64u << 10;
constexpr std::size_t kMaxDirectoryEntries = 8192;
constexpr std::size_t kMaxLibraryBytes = 1ull << 40;

// Returns true if the directory has libraries and none is 64-bit.
bool is_of_32_bits(const Rootfs& root, const std::string& directory) {
  const auto names = root.list_directory(directory, kMaxDirectoryEntries);
  if (!names) return false;
  bool found = false;
  for (const std::string& name : *names) {
    if (!text::starts_with(name, "lib") || name.find(".so") == std::string::npos) continue;
    const auto file = root.open_regular(directory + "/" + name, kMaxLibraryBytes);
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

std::string with_musl_directories(const std::optional<std::string>& now,
                                  const std::vector<std::string>& directories) {
  std::string base = now ? now->substr(0, now->find('\0')) : std::string(kDefault);
  std::replace(base.begin(), base.end(), '\n', ':');
  const std::vector<std::string> known = text::split(base, ':');
  std::vector<std::string> all;
  for (const std::string& directory : directories)
    if (std::find(known.begin(), known.end(), directory) == known.end() &&
        std::find(all.begin(), all.end(), directory) == all.end())
      all.push_back(directory);
  if (all.empty()) return {};
  for (const std::string& directory : known)
    if (!directory.empty()) all.push_back(directory);
  return text::join(all, ":") + "\n";
}

Status update_musl_path(const Rootfs& root, const std::vector<std::string>& directories) {
  const auto now = root.read_file(kPathFile, kMaxPathFileBytes);
  // An unreadable file counts as missing, as for the loader. A file that is too large is left alone.
  if (!now && now.error().code() == Code::kInvalidArgument) return fail(now.error());
  std::vector<std::string> wanted;
  for (const std::string& directory : directories)
    if (!is_of_32_bits(root, directory)) wanted.push_back(directory);
  const std::string content = with_musl_directories(now ? std::optional(*now) : std::nullopt, wanted);
  if (content.empty()) return {};
  return root.write_file(kPathFile, content);
}

namespace {

#if defined(__x86_64__)
constexpr std::array<std::string_view, 2> kDebianDirectories{"/lib/x86_64-linux-gnu",
                                                             "/usr/lib/x86_64-linux-gnu"};
constexpr std::string_view kGlibcLoader = "/lib64/ld-linux-x86-64.so.2";
#elif defined(__aarch64__)
constexpr std::array<std::string_view, 2> kDebianDirectories{"/lib/aarch64-linux-gnu",
                                                             "/usr/lib/aarch64-linux-gnu"};
constexpr std::string_view kGlibcLoader = "/lib/ld-linux-aarch64.so.1";
#else
#error "unknown architecture: add Debian's library directories"
#endif
constexpr std::array<std::string_view, 2> kWideDirectories{"/lib64", "/usr/lib64"};
constexpr std::array<std::string_view, 2> kPlainDirectories{"/lib", "/usr/lib"};

constexpr std::string_view kIncludeAll = "include /etc/ld.so.conf.d/*.conf\n";
constexpr std::size_t kMaxArgumentBytes = 1u << 20;

// Continues after a place in the container that is not writable, and records the first one.
class WriteResults {
 public:
  Status record_result(Status done) {
    if (done || done.error().code() != Code::kPermissionDenied) return done;
    if (!denied_) denied_ = done.error();
    return {};
  }
  Status first_denied() const {
    if (denied_) return fail(denied_->with_context("programs may not find the driver's libraries"));
    return {};
  }

 private:
  std::optional<Error> denied_;
};

Status write_if_changed(const Rootfs& root, std::string_view path, std::string_view content) {
  const auto now = root.read_file(path, content.size());
  if (now && *now == content) return {};
  return root.write_file(path, content);
}

// Returns the built-in search directories of the container's own loader.
std::vector<std::string> system_directories(const Rootfs& root) {
  const bool debian = root.open_inside("/etc/debian_version", O_PATH).has_value();
  const auto& first = debian ? kDebianDirectories : kWideDirectories;
  std::vector<std::string> directories(first.begin(), first.end());
  directories.insert(directories.end(), kPlainDirectories.begin(), kPlainDirectories.end());
  return directories;
}

// Returns the built-in search directories of every distribution: the host's ldconfig may differ from the
// container's.
std::vector<std::string> any_system_directories() {
  std::vector<std::string> directories(kDebianDirectories.begin(), kDebianDirectories.end());
  directories.insert(directories.end(), kWideDirectories.begin(), kWideDirectories.end());
  directories.insert(directories.end(), kPlainDirectories.begin(), kPlainDirectories.end());
  return directories;
}

bool contains(const std::vector<std::string>& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

// Adds the driver's directories to the configuration, for an ldconfig that runs in the container later.
Status write_config(const Rootfs& root, const std::vector<std::string>& directories, WriteResults& writes) {
  GPULET_TRY_ASSIGN(const std::vector<LdDirectory> configured, read_ld_config(root));
  std::vector<std::string> known = system_directories(root);
  for (const LdDirectory& directory : configured)
    if (directory.file != kLdConfigFile) known.push_back(directory.path);
  std::string content;
  for (const std::string& directory : directories) {
    if (contains(known, directory)) continue;
    known.push_back(directory);
    content += directory + "\n";
  }
  if (content.empty()) return writes.record_result(root.remove_file(kLdConfigFile));
  GPULET_TRY(writes.record_result(write_if_changed(root, kLdConfigFile, content)));
  // A distroless image has no ld.so.conf.
  const auto there = root.open_inside(kLdConfig, O_PATH | O_NOFOLLOW);
  if (!there && there.error().code() == Code::kNotFound)
    GPULET_TRY(writes.record_result(root.write_file(kLdConfig, kIncludeAll)));
  return {};
}

// Returns the existing directories for the cache, in order of precedence, each once.
Result<std::vector<std::string>> directories_to_search(const Rootfs& root,
                                                       const std::vector<std::string>& drivers) {
  GPULET_TRY_ASSIGN(const std::vector<LdDirectory> configured, read_ld_config(root));
  std::vector<std::string> named;
  for (const LdDirectory& directory : configured) named.push_back(directory.path);
  std::vector<std::string> all;
  std::size_t bytes = 0;
  const auto add = [&](const std::string& directory) {
    if (contains(all, directory) || !root.is_directory(directory)) return;
    bytes += directory.size() + 1;
    all.push_back(directory);
  };
  // Directories missing from the configuration: it could not be written, or includes nothing.
  for (const std::string& directory : drivers)
    if (!contains(named, directory) && !contains(system_directories(root), directory)) add(directory);
  for (const std::string& directory : named) add(directory);
  for (const std::string& directory : any_system_directories()) add(directory);
  if (bytes > kMaxArgumentBytes)
    return fail(Code::kInvalidArgument, "the names of its directories are too long", std::string(kLdConfig));
  return all;
}

// Returns a directory without libraries for ldconfig's tmpfs. The runtime mounts the first ones, so every
// container has them.
Result<std::string> scratch_directory(const Rootfs& root) {
  for (const char* directory : {"/proc", "/sys", "/dev", "/mnt", "/tmp"})
    if (root.open_inside(directory, O_PATH | O_DIRECTORY | O_NOFOLLOW)) return std::string(directory);
  return fail(Code::kFailedPrecondition, "the container has no /proc to run ldconfig with");
}

// Reads the cache that ldconfig wrote and checks its header.
Result<std::string> read_new_cache(const FileDescriptor& scratch) {
  const FileDescriptor file(
      ::openat(scratch.get(), "ld.so.cache", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status{};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return fail(Code::kFailedPrecondition, "the host's ldconfig wrote no cache");
  GPULET_TRY_ASSIGN(std::string cache, read_all(file.get(), "ld.so.cache", kMaxConfinedFile));
  if (!text::starts_with(cache, "glibc-ld.so.cache1.") && !text::starts_with(cache, "ld.so-1.7.0"))
    return fail(Code::kFailedPrecondition, "the host's ldconfig wrote an invalid cache");
  return cache;
}

using Identity = std::pair<dev_t, ino_t>;

std::optional<Identity> file_identity(const Rootfs& root, const std::string& path) {
  const auto fd = root.open_inside(path, O_PATH);
  struct stat status{};
  if (!fd || ::fstat(fd->get(), &status) != 0) return std::nullopt;
  return Identity{status.st_dev, status.st_ino};
}

// As in ldconfig: a correct link, or a file that is not a link, is left alone.
bool is_missing(const Rootfs& root, const LibraryLink& link) {
  const std::string path = link.directory + "/" + link.name;
  const auto itself = root.open_inside(path, O_PATH | O_NOFOLLOW);
  struct stat status{};
  if (!itself) return itself.error().code() == Code::kNotFound;
  if (::fstat(itself->get(), &status) != 0 || !S_ISLNK(status.st_mode)) return false;
  const auto now = file_identity(root, path);
  return !now || now != file_identity(root, link.directory + "/" + link.target);
}

// Creates links only in the driver's directories, by whatever name ldconfig prints them. Links elsewhere
// belong to the image.
Status make_library_links(const Rootfs& root, const std::vector<std::string>& directories,
                          const std::vector<LibraryLink>& links, WriteResults& writes) {
  std::set<Identity> drivers;
  for (const std::string& directory : directories)
    if (const auto found = file_identity(root, directory)) drivers.insert(*found);
  std::string last;
  bool is_drivers = false;
  for (const LibraryLink& link : links) {
    if (link.directory != std::exchange(last, link.directory)) {
      const auto found = file_identity(root, link.directory);
      is_drivers = found && drivers.count(*found) > 0;
    }
    if (!is_drivers || !is_missing(root, link)) continue;
    const Status done =
        writes.record_result(root.make_symlink(link.target, link.directory + "/" + link.name));
    // For example a directory in its place: ldconfig leaves it there too.
    if (!done && done.error().code() != Code::kFailedPrecondition) return done;
  }
  return {};
}

bool is_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

}  // namespace

std::vector<LibraryLink> library_links(std::string_view output) {
  constexpr std::string_view kArrow = " -> ";
  std::vector<LibraryLink> links;
  std::string directory;
  while (!output.empty()) {
    const auto end = output.find('\n');
    std::string_view line = output.substr(0, end);
    output.remove_prefix(end == std::string_view::npos ? output.size() : end + 1);
    if (text::starts_with(line, "/")) {
      const auto from = line.find(": (");
      directory = line.substr(0, from == std::string_view::npos ? line.rfind(':') : from);
      if (directory.find('\0') != std::string::npos) directory.clear();  // no path
      continue;
    }
    const auto arrow = line.find(kArrow);
    if (!text::starts_with(line, "\t") || arrow == std::string_view::npos || directory.empty()) continue;
    const std::string_view name = line.substr(1, arrow - 1);
    const std::string_view target = line.substr(arrow + kArrow.size());
    if (is_file_name(name) && is_file_name(target) && name != target)
      links.push_back({directory, std::string(name), std::string(target)});
  }
  return links;
}

Status update_ldcache(const Container& container, const LdcacheOptions& options) {
  const Rootfs& root = container.root;
  for (const std::string& directory : options.directories)
    if (directory.empty() || directory[0] != '/' ||
        directory.find_first_of("\n\r# \t:,=") != std::string::npos)
      return fail(Code::kInvalidArgument, "ld.so.conf cannot express this directory", directory);
  GPULET_TRY_ASSIGN(const FileDescriptor program, sealed_ldconfig(options.ldconfig_path));
  WriteResults writes;
  const bool musl = has_musl(root);
  // A musl-only image: its loader reads neither ld.so.conf nor the cache.
  const bool glibc = !musl || root.open_inside(kGlibcLoader, O_PATH).has_value();
  if (musl) GPULET_TRY(writes.record_result(update_musl_path(root, options.directories)));
  if (glibc) GPULET_TRY(write_config(root, options.directories, writes));
  GPULET_TRY_ASSIGN(const std::vector<std::string> directories,
                    directories_to_search(root, options.directories));
  GPULET_TRY_ASSIGN(const std::string scratch, scratch_directory(root));
  // -X: no links; -i: ignore the auxiliary cache, which the image controls.
  ConfinedProgram confined;
  confined.program = program.get();
  confined.arguments = {
      "ldconfig", "-v", "-X", "-i", "-f", scratch + "/ld.so.conf", "-C", scratch + "/ld.so.cache"};
  confined.arguments.insert(confined.arguments.end(), directories.begin(), directories.end());
  confined.scratch = scratch;
  // ldconfig keeps its auxiliary cache there, and would block on a FIFO in its place.
  confined.hidden = {"/var/cache/ldconfig"};
  GPULET_TRY_ASSIGN(const ConfinedRun run, run_confined(root, confined));
  GPULET_TRY_ASSIGN(const std::string cache, read_new_cache(run.scratch));
  if (glibc) GPULET_TRY(writes.record_result(write_if_changed(root, kLdCache, cache)));
  GPULET_TRY(make_library_links(root, options.directories, library_links(run.output), writes));
  return writes.first_denied();
}

}  // namespace gpulet::hook

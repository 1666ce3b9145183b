#include "base/driver_root.h"

#include <elf.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "base/file.h"
#include "base/process.h"
#include "base/text.h"

namespace gpulet {
namespace {

constexpr std::string_view kLibraries[] = {
    "/usr/lib64",
    "/usr/lib/" GPULET_TRIPLET,
    "/usr/lib/" GPULET_TRIPLET "/nvidia/current",
    "/lib64",
    "/lib/" GPULET_TRIPLET,
    "/lib/" GPULET_TRIPLET "/nvidia/current",
    // kFirstVendorLibrary:
    "/home/kubernetes/bin/nvidia/lib64",  // GKE, Flatcar
    "/usr/local/nvidia/lib64",
    "/usr/local/glibc/usr/lib",  // Talos
    "/usr/local/glibc/lib",
    "/usr/local/glibc/lib64",
    "/usr/local/lib",
    "/run/opengl-driver/lib",  // NixOS
    "/usr/lib",
};
constexpr std::size_t kFirstVendorLibrary = 6;

constexpr std::string_view kPrograms[] = {
    "/usr/bin",
    "/usr/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/bin",
    "/sbin",
    "/opt/bin",
    "/usr/local/nvidia/bin",
    "/home/kubernetes/bin/nvidia/bin",  // GKE, Flatcar
    "/usr/local/glibc/usr/bin",         // Talos
    "/run/current-system/sw/bin",       // NixOS
};
// The loader of an ELF file lies behind its program headers, in its first page.
constexpr std::size_t kProgramPrefixBytes = 4096;
constexpr std::string_view kDriverLibrary = "libnvidia-ml.so.1";

std::string path_below(const std::string& root, std::string_view path) {
  return (root == "/" ? std::string() : root) + std::string(path);
}

template <class Part>
bool read_part(std::string_view bytes, std::uint64_t at, Part& part) {
  if (at > bytes.size() || bytes.size() - at < sizeof part) return false;
  std::memcpy(&part, bytes.data() + at, sizeof part);
  return true;
}

// Of LD_LIBRARY_PATH and --library-path.
std::string join_directories(const RootDirectory& root, const std::string& prefix, bool driver_only) {
  std::vector<std::string> directories;
  for (const auto directory : library_directories()) {
    const std::string path(directory);
    if (!root.exists(driver_only ? path + "/" + std::string(kDriverLibrary) : path)) continue;
    directories.push_back(path_below(prefix, path));
  }
  return text::join(directories, ":");
}

void set_environment(DriverProgram& found, const std::string& programs_root, const std::string& libraries) {
  std::vector<std::string> programs;
  for (const auto directory : program_directories()) programs.push_back(path_below(programs_root, directory));
  if (programs_root != "/") programs.insert(programs.end(), {"/usr/bin", "/bin"});
  found.environment = {"PATH=" + text::join(programs, ":")};
  if (!libraries.empty()) found.environment.push_back("LD_LIBRARY_PATH=" + libraries);
}

// A root that is not mounted as a running system's lacks what CUDA opens.
void add_missing_mounts(DriverProgram& found, const RootDirectory& root) {
  if (!has_capability(CAP_SYS_ADMIN)) return;
  const auto add = [&](const std::string& directory, const std::string& probe) {
    if (!root.exists(directory) || root.exists(directory + probe) ||
        ::access((directory + probe).c_str(), F_OK) != 0)
      return;
    if (const auto where = root.resolve(directory))
      found.bind_mounts.emplace_back(directory, path_below(root.root_path(), *where));
  };
  add("/proc", "/self");
  add("/dev", "/nvidiactl");
}

DriverProgram make_program(const RootDirectory& root, const std::string& inside, std::string_view name,
                           ChrootRule rule) {
  DriverProgram found;
  const std::string& root_path = root.root_path();
  found.path = found.program = path_below(root_path, inside);
  found.arguments = {std::string(name)};
  if (root_path == "/") {
    set_environment(found, "/", {});
    return found;
  }
  const auto bytes = read_prefix(found.path, kProgramPrefixBytes);
  const auto interpreter = bytes ? parse_interpreter(*bytes) : Result<std::string>(fail(bytes.error()));
  const bool has_loader = interpreter && !interpreter->empty() && root.exists(*interpreter);
  if (has_loader && rule == ChrootRule::kIfPermitted && has_capability(CAP_SYS_CHROOT)) {
    found.root = root_path;
    found.program = inside;
    set_environment(found, "/", join_directories(root, "/", true));
    add_missing_mounts(found, root);
    return found;
  }
  set_environment(found, root_path, join_directories(root, root_path, true));
  const auto loader = has_loader ? root.resolve(*interpreter) : Result<std::string>(std::string());
  if (has_loader && loader && bytes->starts_with(ELFMAG)) {
    found.program = path_below(root_path, *loader);
    // glibc lies beside its loader.
    const std::string libraries = path_below(root_path, text::parent_directory(*loader)) + ":" +
                                  join_directories(root, root_path, false);
    found.arguments = {std::string(text::base_name(*loader)), "--library-path", libraries, found.path};
  }
  return found;
}

}  // namespace

std::string path_below(const std::string& root, const std::string& path) {
  return root == "/" ? path : root + path;
}

std::span<const std::string_view> library_directories() { return kLibraries; }

std::span<const std::string_view> distribution_library_directories() {
  return library_directories().first(kFirstVendorLibrary);
}

std::span<const std::string_view> vendor_library_directories() {
  return library_directories().subspan(kFirstVendorLibrary);
}

std::span<const std::string_view> program_directories() { return kPrograms; }

Result<std::string> parse_interpreter(std::string_view bytes) {
  if (bytes.starts_with("#!")) {
    const auto line = text::trim(bytes.substr(2, bytes.find('\n') - 2));
    return std::string(line.substr(0, line.find_first_of(" \t")));
  }
  Elf64_Ehdr header;
  if (!bytes.starts_with(ELFMAG) || !read_part(bytes, 0, header) || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_phentsize != sizeof(Elf64_Phdr))
    return fail(Code::kInvalidArgument, "is neither a 64-bit ELF program nor a script");
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part;
    if (!read_part(bytes, header.e_phoff + i * sizeof part, part))
      return fail(Code::kInvalidArgument, "has program headers beyond its first page");
    if (part.p_type != PT_INTERP) continue;
    if (part.p_offset > bytes.size() || bytes.size() - part.p_offset < part.p_filesz)
      return fail(Code::kInvalidArgument, "names its loader beyond its first page");
    const auto name = bytes.substr(part.p_offset, part.p_filesz);
    return std::string(name.substr(0, name.find('\0')));
  }
  return std::string();
}

Result<DriverProgram> find_driver_program(const std::string& driver_root, std::string_view name,
                                          ChrootRule rule) {
  for (const auto& root_path : {driver_root, std::string("/")}) {
    const auto root = RootDirectory::open_root(root_path);
    if (!root) continue;
    for (const auto directory : program_directories()) {
      const auto inside = root->resolve(std::string(directory) + "/" + std::string(name));
      if (!inside || ::access(path_below(root_path, *inside).c_str(), X_OK) != 0) continue;
      return make_program(*root, *inside, name, rule);
    }
  }
  return fail(Code::kNotFound, "is in no bin directory below " + driver_root + " or /", std::string(name));
}

std::optional<std::string> find_path_in_root(const std::string& driver_root, const std::string& directory,
                                             std::span<const std::string> candidates) {
  const auto root = RootDirectory::open_root(driver_root);
  struct stat ours{};
  if (!root || ::stat(directory.c_str(), &ours) != 0) return std::nullopt;
  for (const auto& candidate : candidates) {
    const auto opened = root->open_file(candidate, O_PATH | O_DIRECTORY);
    struct stat theirs{};
    if (!opened || ::fstat(opened->get(), &theirs) != 0) continue;
    if (theirs.st_dev != ours.st_dev || theirs.st_ino != ours.st_ino) continue;
    // A root that is mounted read-only may hold the directory read-only too.
    if (::access(("/proc/self/fd/" + std::to_string(opened->get())).c_str(), W_OK) == 0) return candidate;
  }
  return std::nullopt;
}

}  // namespace gpulet

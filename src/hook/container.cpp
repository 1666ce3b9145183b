#include "hook/container.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>

#include "base/text.h"
#include "hook/json_reader.h"

namespace gpulet::hook {
namespace {

// Reads a member that is an object, or null, which Go writes for a missing one.
Status object_or_null(JsonReader& json, const std::function<Status(std::string_view)>& member) {
  return json.consume_null() ? Status{} : json.read_object(member);
}

Status read_process(JsonReader& json, BundleConfig& config) {
  return object_or_null(json, [&](std::string_view key) -> Status {
    if (key != "env" || json.consume_null()) return key == "env" ? Status{} : json.skip_value();
    config.environment.clear();
    return json.read_array([&]() -> Status {
      // The runtime rejects a variable with a NUL.
      GPULET_TRY_ASSIGN(std::string variable, json.read_string());
      config.environment.push_back(std::move(variable));
      return {};
    });
  });
}

Status read_root(JsonReader& json, BundleConfig& config) {
  return object_or_null(json, [&](std::string_view key) -> Status {
    if (key == "path") return json.read_string_into(config.root_path);
    if (key != "readonly") return json.skip_value();
    GPULET_TRY_ASSIGN(config.root_read_only, json.read_boolean());
    return {};
  });
}

Status read_namespaces(JsonReader& json, BundleConfig& config) {
  if (json.consume_null()) return {};
  return json.read_array([&] {
    return object_or_null(json, [&](std::string_view key) -> Status {
      if (key != "type") return json.skip_value();
      std::string type;
      GPULET_TRY(json.read_string_into(type));
      if (type == "user") config.user_namespace = true;
      return {};
    });
  });
}

// Reads the bundle's config.json: a trusted file, but still required to be regular and within the limit.
Result<BundleConfig> read_bundle(const std::string& bundle) {
  const std::string path = bundle + "/config.json";
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd.is_open()) return fail(errno_error("cannot open", errno, path));
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return fail(Code::kInvalidArgument, "not a regular file", path);
  GPULET_TRY_ASSIGN(const std::string content, read_all(fd.get(), path, kMaxConfigBytes));
  auto config = parse_bundle_config(content);
  if (!config) return fail(Error(config.error().code(), config.error().message(), path));
  return config;
}

}  // namespace

Result<OciState> parse_oci_state(std::string_view text) {
  JsonReader json(text);
  OciState state;
  GPULET_TRY(json.read_object([&](std::string_view key) -> Status {
    if (key == "id") return json.read_string_into(state.id);
    if (key == "bundle") return json.read_string_into(state.bundle);
    if (key == "root") return json.read_string_into(state.root);
    return json.skip_value();
  }));
  GPULET_TRY(json.expect_end());
  return state;
}

Result<BundleConfig> parse_bundle_config(std::string_view text) {
  JsonReader json(text);
  BundleConfig config;
  GPULET_TRY(json.read_object([&](std::string_view key) -> Status {
    if (key == "root") return read_root(json, config);
    if (key == "process") return read_process(json, config);
    if (key != "linux") return json.skip_value();
    return object_or_null(json, [&](std::string_view member) {
      return member == "namespaces" ? read_namespaces(json, config) : json.skip_value();
    });
  }));
  GPULET_TRY(json.expect_end());
  return config;
}

std::string_view Container::environment_value(std::string_view name) const {
  for (auto entry = environment.rbegin(); entry != environment.rend(); ++entry) {
    const std::string_view text = *entry;
    if (text.size() > name.size() && text.substr(0, name.size()) == name && text[name.size()] == '=')
      return text.substr(name.size() + 1);
  }
  return {};
}

Result<Container> read_container(int state_fd) {
  auto text = read_all(state_fd, "the container's state", kMaxStateBytes);
  if (!text) return fail(text.error());
  auto state = parse_oci_state(*text);
  if (!state) return fail(state.error().with_context("cannot parse the container's state (standard input)"));
  BundleConfig config;
  if (!state->bundle.empty()) {
    if (state->bundle[0] != '/')
      return fail(Code::kInvalidArgument, "the container's bundle is not an absolute path", state->bundle);
    auto read = read_bundle(state->bundle);
    if (!read && state->root.empty()) return fail(read.error());
    if (read) config = std::move(*read);
  }
  std::string path = state->root.empty() ? config.root_path : state->root;
  if (path.empty()) return fail(Code::kInvalidArgument, "the container's state names no root directory");
  if (path[0] != '/') path = state->bundle + "/" + path;
  GPULET_TRY_ASSIGN(Rootfs root, Rootfs::open_root(path));
  return Container{std::move(root), path, config.root_read_only, config.user_namespace,
                   std::move(config.environment)};
}

Result<Link> parse_link(std::string_view text) {
  const auto mark = text.find("::");
  if (mark == std::string_view::npos || mark == 0 || text.find("::", mark + 2) != std::string_view::npos)
    return fail(Code::kInvalidArgument, "not a link of the form target::path", std::string(text));
  Link link{std::string(text.substr(0, mark)), std::string(text.substr(mark + 2))};
  GPULET_TRY(split_path(link.path));
  return link;
}

Status make_links(const Container& container, const std::vector<Link>& links) {
  Status refused;
  for (const Link& link : links) {
    const Status made = container.root.make_symlink(link.target, link.path);
    if (!made && made.error().code() != Code::kPermissionDenied) return made;
    if (!made && refused) refused = made;
  }
  return refused;
}

namespace {

constexpr std::string_view kParams = "/proc/driver/nvidia/params";
constexpr std::string_view kDirectory = "/proc/driver/nvidia";
constexpr std::size_t kMaxParamsBytes = 64u << 10;
constexpr unsigned kAttributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;

tl::unexpected<Error> params_failed(std::string_view what) {
  return fail(errno_error(what, errno, std::string(kParams)));
}

// Creates a detached tmpfs with one file "params".
Result<FileDescriptor> make_tmpfs_with(std::string_view content) {
  const FileDescriptor context(::fsopen("tmpfs", FSOPEN_CLOEXEC));
  if (!context.is_open()) return params_failed("cannot make a tmpfs");
  for (const auto& [key, value] : {std::pair{"size", "128k"}, {"nr_inodes", "4"}, {"mode", "0555"}})
    if (::fsconfig(context.get(), FSCONFIG_SET_STRING, key, value, 0) != 0)
      return params_failed("cannot make a tmpfs");
  if (::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0)
    return params_failed("cannot make a tmpfs");
  FileDescriptor directory(::fsmount(context.get(), FSMOUNT_CLOEXEC, kAttributes));
  if (!directory.is_open()) return params_failed("cannot make a tmpfs");
  const FileDescriptor file(
      ::openat(directory.get(), "params", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444));
  if (!file.is_open()) return params_failed("cannot write a copy");
  if (::write(file.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size()) ||
      ::fchmod(file.get(), 0444) != 0)
    return params_failed("cannot write a copy");
  return directory;
}

Status attach_mount(int tree, int place) {
  if (::move_mount(tree, "", place, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) != 0)
    return params_failed("cannot mount over it");
  return {};
}

// A file can be bound only from a mounted file system: the tmpfs covers the directory for a moment.
Status bind_copy(std::string_view content, int directory, int file) {
  GPULET_TRY_ASSIGN(const FileDescriptor copy, make_tmpfs_with(content));
  GPULET_TRY(attach_mount(copy.get(), directory));
  FileDescriptor bound(::open_tree(copy.get(), "params", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  Status done;
  if (!bound.is_open()) done = params_failed("cannot bind the copy");
  // Unmount by the working directory: no path is certain to lead to it.
  if (::fchdir(copy.get()) != 0 || ::umount2(".", MNT_DETACH) != 0)
    return params_failed("cannot unmount the copy's directory");
  if (::chdir("/") != 0) return params_failed("cannot leave the copy's directory");
  if (!done) return done;
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_RDONLY | kAttributes;
  attributes.propagation = MS_PRIVATE;
  // Needs Linux 5.12; before that only the file's mode protects it.
  if (::mount_setattr(bound.get(), "", AT_EMPTY_PATH, &attributes, sizeof attributes) != 0 && errno != ENOSYS)
    return params_failed("cannot make the copy read-only");
  return attach_mount(bound.get(), file);
}

}  // namespace

std::optional<std::string> without_device_modification(std::string_view params) {
  constexpr std::string_view kKey = "ModifyDeviceFiles:";
  std::string out;
  bool changed = false;
  while (!params.empty()) {
    const auto end = params.find('\n');
    const std::string_view line = params.substr(0, end);
    params.remove_prefix(end == std::string_view::npos ? params.size() : end + 1);
    if (text::starts_with(line, kKey)) {
      if (text::trim(line.substr(kKey.size())) == "0") return std::nullopt;
      out += std::string(kKey) + " 0\n";
      changed = true;
    } else {
      out += std::string(line) + "\n";
    }
  }
  return changed ? std::optional<std::string>(out) : std::nullopt;
}

Status disable_device_modification(const Container& container, const std::string& host_proc) {
  const auto host = read_file(host_proc + "/driver/nvidia/params", kMaxParamsBytes);
  if (!host && host.error().code() == Code::kNotFound) return {};
  if (!host) return fail(host.error());
  const auto content = without_device_modification(*host);
  if (!content) return {};
  // Mount only over the runtime's /proc, never over a file of the image.
  const auto proc = container.root.open_inside("/proc", O_PATH | O_DIRECTORY | O_NOFOLLOW);
  struct statfs system{};
  if (!proc || ::fstatfs(proc->get(), &system) != 0 || system.f_type != PROC_SUPER_MAGIC) return {};
  const auto directory = container.root.open_inside(kDirectory, O_PATH | O_DIRECTORY | O_NOFOLLOW);
  const auto file = container.root.open_inside(kParams, O_PATH | O_NOFOLLOW);
  struct stat status{};
  if (!directory || !file || ::fstat(file->get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  return bind_copy(*content, directory->get(), file->get());
}

namespace {

constexpr std::size_t kMaxDevEntries = 16384;
constexpr unsigned kMaskBits = 64;

// Returns the bit of a device node "nvidia<n>", or 0.
std::uint64_t mask_bit(const Rootfs& root, const std::string& name) {
  constexpr std::string_view kPrefix = "nvidia";
  if (!text::starts_with(name, kPrefix) ||
      !text::parse_unsigned(std::string_view(name).substr(kPrefix.size())))
    return 0;
  const auto node = root.open_inside("/dev/" + name, O_PATH | O_NOFOLLOW);
  struct stat status{};
  if (!node || ::fstat(node->get(), &status) != 0 || !S_ISCHR(status.st_mode)) return 0;
  const unsigned number = minor(status.st_rdev);
  return number < kMaskBits ? std::uint64_t{1} << number : 0;
}

}  // namespace

std::string app_profile_text(std::uint64_t mask) {
  std::array<char, 17> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), mask, 16).ptr;
  return R"({"profiles":[{"name":"_container_","settings":["EGLVisibleDGPUDevices",0x)" +
         std::string(digits.data(), end) + R"(]}],"rules":[{"pattern":[],"profile":"_container_"}]})";
}

Status write_app_profile(const Container& container) {
  const auto names = container.root.list_directory("/dev", kMaxDevEntries);
  if (!names) return {};
  std::uint64_t mask = 0;
  for (const std::string& name : *names) mask |= mask_bit(container.root, name);
  if (mask == 0) return {};
  return container.root.write_file(kProfileFile, app_profile_text(mask), 0444);
}

}  // namespace gpulet::hook

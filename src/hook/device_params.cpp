#include "hook/device_params.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/text.h"

namespace gpulet::hook {
namespace {

constexpr std::string_view kParams = "/proc/driver/nvidia/params";
constexpr std::string_view kFolder = "/proc/driver/nvidia";
constexpr std::size_t kMaxParamsBytes = 64u << 10;
constexpr unsigned kAttributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;

tl::unexpected<Error> params_failed(std::string_view what) {
  return fail(errno_error(what, errno, std::string(kParams)));
}

// A tmpfs that nothing is attached to, with one file "params".
Result<FileDescriptor> make_folder_with(std::string_view content) {
  const FileDescriptor context(::fsopen("tmpfs", FSOPEN_CLOEXEC));
  if (!context.valid()) return params_failed("cannot make a tmpfs");
  for (const auto& [key, value] : {std::pair{"size", "128k"}, {"nr_inodes", "4"}, {"mode", "0555"}})
    if (::fsconfig(context.get(), FSCONFIG_SET_STRING, key, value, 0) != 0)
      return params_failed("cannot make a tmpfs");
  if (::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0)
    return params_failed("cannot make a tmpfs");
  FileDescriptor folder(::fsmount(context.get(), FSMOUNT_CLOEXEC, kAttributes));
  if (!folder.valid()) return params_failed("cannot make a tmpfs");
  const FileDescriptor file(::openat(folder.get(), "params", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444));
  if (!file.valid()) return params_failed("cannot write a copy");
  if (::write(file.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size()) ||
      ::fchmod(file.get(), 0444) != 0)
    return params_failed("cannot write a copy");
  return folder;
}

Status attach(int tree, int place) {
  if (::move_mount(tree, "", place, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) != 0)
    return params_failed("cannot mount over it");
  return {};
}

// A file can be bound from a mounted file system only: the tmpfs is in the folder's place for the moment that
// this takes.
Status bind_copy(std::string_view content, int folder, int file) {
  GPULET_TRY_ASSIGN(const FileDescriptor copy, make_folder_with(content));
  GPULET_TRY(attach(copy.get(), folder));
  FileDescriptor bound(::open_tree(copy.get(), "params", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  Status done;
  if (!bound.valid()) done = params_failed("cannot take the copy");
  // The mount is named by standing in it: no path leads to it for sure.
  if (::fchdir(copy.get()) != 0 || ::umount2(".", MNT_DETACH) != 0)
    return params_failed("cannot unmount the copy's folder");
  if (::chdir("/") != 0) return params_failed("cannot leave the copy's folder");
  if (!done) return done;
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_RDONLY | kAttributes;
  attributes.propagation = MS_PRIVATE;
  // Linux 5.12; before it the file's mode alone keeps it.
  if (::mount_setattr(bound.get(), "", AT_EMPTY_PATH, &attributes, sizeof attributes) != 0 && errno != ENOSYS)
    return params_failed("cannot make the copy read-only");
  return attach(bound.get(), file);
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
  // What is mounted over is the runtime's /proc and nothing that an image could have put there.
  const auto proc = container.root.open_inside("/proc", O_PATH | O_DIRECTORY | O_NOFOLLOW);
  struct statfs system{};
  if (!proc || ::fstatfs(proc->get(), &system) != 0 || system.f_type != PROC_SUPER_MAGIC) return {};
  const auto folder = container.root.open_inside(kFolder, O_PATH | O_DIRECTORY | O_NOFOLLOW);
  const auto file = container.root.open_inside(kParams, O_PATH | O_NOFOLLOW);
  struct stat status{};
  if (!folder || !file || ::fstat(file->get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  return bind_copy(*content, folder->get(), file->get());
}

}  // namespace gpulet::hook

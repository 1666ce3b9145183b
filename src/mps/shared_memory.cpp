#include "mps/shared_memory.h"

#include <sys/mount.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/file.h"
#include "base/text.h"
#include "mps/plan.h"

namespace gpulet::mps {
namespace {

constexpr unsigned kMaxMounts = 16;  // stacked mounts

}  // namespace

Result<std::string> shm_mount_options(std::string_view meminfo) {
  constexpr std::string_view kKey = "MemTotal:";
  for (const auto& line : text::split(meminfo, '\n')) {
    if (!line.starts_with(kKey) || !line.ends_with(" kB")) continue;
    const auto kibibytes = text::parse_unsigned(
        text::trim(std::string_view(line).substr(kKey.size(), line.size() - kKey.size() - 3)));
    if (kibibytes && *kibibytes > 1) return "size=" + std::to_string(*kibibytes / 2) + "k";
  }
  return fail(Code::kInvalidArgument, "has no MemTotal", "/proc/meminfo");
}

Status mount_shm(const std::string& directory) {
  GPULET_TRY_ASSIGN(const std::string meminfo, read_file("/proc/meminfo"));
  GPULET_TRY_ASSIGN(const std::string options, shm_mount_options(meminfo));
  GPULET_TRY(make_directories(directory));
  GPULET_TRY(unmount_shm(directory));
  const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RELATIME;
  if (::mount("shm", directory.c_str(), "tmpfs", flags, options.c_str()) != 0) {
    return fail(errno_error("cannot mount a tmpfs", errno, directory));
  }
  return {};
}

Status unmount_shm(const std::string& directory) {
  for (unsigned i = 0; i < kMaxMounts && shm_is_mounted(directory); ++i) {
    if (::umount2(directory.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0) {
      return fail(errno_error("cannot unmount", errno, directory));
    }
  }
  return {};
}

bool is_other_file_system(const std::string& directory, const std::string& above) {
  struct stat outer{};
  struct stat inner{};
  return ::stat(above.c_str(), &outer) == 0 && ::stat(directory.c_str(), &inner) == 0 &&
         outer.st_dev != inner.st_dev;
}

bool shm_is_mounted(const std::string& directory) {
  return is_other_file_system(directory, directory + "/..");
}

Status make_client_shm(const std::string& root, const std::string& name) {
  if (!is_claim_daemon(name)) return {};
  const auto directory = client_shm_directory(root, name);
  GPULET_TRY(make_directories(directory));
  constexpr mode_t kSharedMemoryMode = 01777;
  if (::chmod(directory.c_str(), kSharedMemoryMode) != 0)
    return fail(errno_error("cannot change the mode", errno, directory));
  return {};
}

}  // namespace gpulet::mps

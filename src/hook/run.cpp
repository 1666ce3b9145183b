// What a command does, step by step.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

#include "hook/app_profile.h"
#include "hook/command.h"
#include "hook/device_params.h"
#include "hook/ldcache.h"

namespace gpulet::hook {
namespace {

// The deprecated chmod hook, for folders only: what it was made for are /dev/dri and /dev/nvidia-caps.
Status change_modes(const Container& container, const Command& command) {
  for (const std::string& path : command.paths) {
    // No more than what a folder to write in may be: of the root's own mount, or of the container's own /dev.
    if (!container.root.is_folder(path)) continue;
    GPULET_TRY_ASSIGN(const FileDescriptor folder, container.root.make_folders(path));
    const std::string own = "/proc/self/fd/" + std::to_string(folder.get());
    if (::chmod(own.c_str(), command.mode) != 0)
      return fail(errno_error("cannot change its mode", errno, path));
  }
  return {};
}

Status run_step(Step step, const Command& command, const Container& container) {
  switch (step) {
    case Step::kCheckRequirements:
      return check_requirements(container.environment, command.host);
    case Step::kLinks:
      return make_links(container, command.links);
    case Step::kCudaCompat:
      return enable_cuda_compat(container, {command.host.driver, command.host.cuda}, command.compat_folder);
    case Step::kLdcache:
      return update_ldcache(container, LdcacheOptions{command.ldconfig_path, command.folders});
    case Step::kDeviceParams:
      return disable_device_modification(container, command.host_proc);
    case Step::kAppProfile:
      return write_app_profile(container);
    case Step::kChmod:
      return change_modes(container, command);
  }
  return {};
}

Result<Container> read_state(const std::string& path) {
  if (path.empty() || path == "-") return read_container(STDIN_FILENO);
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file.valid()) return fail(errno_error("cannot open", errno, path));
  return read_container(file.get());
}

}  // namespace

Status run_command(const Command& command, const std::function<void(const Error&)>& warn) {
  GPULET_TRY_ASSIGN(const Container container, read_state(command.state_path));
  for (const Step step : command.steps) {
    const Status done = run_step(step, command, container);
    if (done) continue;
    const Error error(done.error().code(), std::string(name(step)) + ": " + done.error().text());
    // A read-only root, a mount in the way, a root that we may not write: the container runs without this.
    if (done.error().code() != Code::kPermissionDenied || step == Step::kDeviceParams) return fail(error);
    warn(error);
  }
  return {};
}

}  // namespace gpulet::hook

// nvmlInit and nvmlShutdown, and how the library finds the machine: GPULET_SIM_STATE names the file; else it
// is run/gpulet-sim/state in the nearest folder above the library itself, which is the driver root, or "/" in
// a container.
#include "sim/driver/session.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <string>

namespace gpulet::sim {
namespace {

std::string state_above_library() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&nvmlInit_v2), &info) == 0 || info.dli_fname == nullptr) return {};
  char resolved[PATH_MAX];
  if (realpath(info.dli_fname, resolved) == nullptr) return {};
  std::string folder(resolved);
  while (true) {
    const auto slash = folder.rfind('/');
    if (slash == std::string::npos) return {};
    folder.resize(slash);
    std::string candidate = folder + "/" + std::string(kStatePathInRoot);
    if (access(candidate.c_str(), F_OK) == 0) return candidate;
  }
}

std::string state_path() {
  if (const char* named = std::getenv("GPULET_SIM_STATE"); named != nullptr && *named != '\0') return named;
  return state_above_library();
}

// Maps the machine's file unless that very file is mapped already. Precondition: the session's mutex is held.
StateFile* find_state(Session& current) {
  const std::string path = state_path();
  struct stat info{};
  if (path.empty() || stat(path.c_str(), &info) != 0) return nullptr;
  StateFile* mapped = current.state.load(std::memory_order_acquire);
  if (mapped != nullptr && current.device == info.st_dev && current.inode == info.st_ino) return mapped;
  auto opened = StateFile::open(path);
  if (!opened) return nullptr;
  current.mappings.push_back(std::make_unique<StateFile>(std::move(*opened)));
  StateFile* fresh = current.mappings.back().get();
  current.device = info.st_dev;
  current.inode = info.st_ino;
  current.state.store(fresh, std::memory_order_release);
  return fresh;
}

bool is_device(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 && S_ISCHR(info.st_mode);
}

// As the real library, which counts the GPUs that it can open. Only where the driver root is this process's
// own root: elsewhere /dev is another machine's.
std::uint64_t without_device_node(const StateFile& state) {
  if (state.path() != "/" + std::string(kStatePathInRoot) || !is_device("/dev/nvidiactl")) return 0;
  const ReadGuard machine = state.read();
  std::uint64_t hidden = 0;
  for (std::uint32_t i = 0; i < machine->gpu_count; ++i) {
    if (!is_device("/dev/nvidia" + std::to_string(machine->gpus[i].minor))) hidden |= std::uint64_t{1} << i;
  }
  return hidden;
}

void pass_hang_and_delay(const StateFile& state) {
  std::uint32_t delay_us = 0;
  while (true) {
    const std::uint32_t seen = state.changes();
    {
      const ReadGuard machine = state.read();
      if (machine->driver.hang == 0) {
        delay_us = machine->driver.delay_us;
        break;
      }
    }
    state.wait(seen, -1);
  }
  if (delay_us != 0) usleep(delay_us);
}

nvmlReturn_t initialise() {
  Session& current = session();
  const StateFile* state = nullptr;
  {
    const std::lock_guard lock(current.mutex);
    state = find_state(current);
  }
  if (state == nullptr) return NVML_ERROR_DRIVER_NOT_LOADED;
  pass_hang_and_delay(*state);
  const std::uint64_t hidden = without_device_node(*state);

  const std::lock_guard lock(current.mutex);
  const ReadGuard machine = state->read();
  if (machine->driver.loaded == 0) return NVML_ERROR_DRIVER_NOT_LOADED;
  if (machine->driver.init_error != 0) return static_cast<nvmlReturn_t>(machine->driver.init_error);
  const bool stale = current.generation.load() != machine->driver.generation;
  // Who initialised with a driver that has gone begins anew, as one user.
  current.users.store(stale ? 1 : current.users.load() + 1);
  current.generation.store(machine->driver.generation);
  current.hidden.store(hidden);
  return NVML_SUCCESS;
}

}  // namespace

Session& session() {
  static Session* const kSession = new Session;
  return *kSession;
}

std::uint32_t nth_visible(const Machine& machine, std::uint32_t n) {
  std::uint32_t gpu = 0;
  for (; gpu < machine.gpu_count; ++gpu) {
    if (!is_hidden(gpu) && n-- == 0) break;
  }
  return gpu;
}

nvmlReturn_t driver_ready(const Machine& machine) {
  if (machine.driver.loaded == 0) return NVML_ERROR_DRIVER_NOT_LOADED;
  if (session().users.load() == 0 || session().generation.load() != machine.driver.generation)
    return NVML_ERROR_UNINITIALIZED;
  return NVML_SUCCESS;
}

nvmlReturn_t pass_driver_faults() {
  const StateFile* state = session().state.load(std::memory_order_acquire);
  if (state == nullptr || session().users.load() == 0) return NVML_ERROR_UNINITIALIZED;
  pass_hang_and_delay(*state);
  return NVML_SUCCESS;
}

nvmlReturn_t enter_driver() {
  if (const nvmlReturn_t refused = pass_driver_faults(); refused != NVML_SUCCESS) return refused;
  return driver_ready(*session().state.load(std::memory_order_acquire)->read());
}

}  // namespace gpulet::sim

using namespace gpulet::sim;

nvmlReturn_t nvmlInit_v2(void) { return initialise(); }
nvmlReturn_t nvmlInit(void) { return initialise(); }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
  if ((flags & ~static_cast<unsigned>(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH)) != 0)
    return NVML_ERROR_INVALID_ARGUMENT;
  return initialise();
}

nvmlReturn_t nvmlShutdown(void) {
  const std::lock_guard lock(session().mutex);
  if (session().users.load() == 0) return NVML_ERROR_UNINITIALIZED;
  session().users.fetch_sub(1);
  return NVML_SUCCESS;
}

#include "sim/control/memory_accounting.h"

namespace gpulet::sim::control {
namespace {

constexpr std::uint64_t kTinyObjectsInPage = 16;  // of 4 KiB in 64 KiB

}  // namespace

Status set_memory_accounting(const StateFile& state, MemoryBackend mode, std::uint64_t misreported_mib) {
  const EditGuard machine = state.lock_for_edit();
  // The key takes effect when the driver is loaded: none of its limits remain.
  if (machine->memory.mode != mode) clear_memory_limits(*machine);
  machine->memory.mode = mode;
  machine->memory.misreported_hard = misreported_mib << 20;
  return {};
}

Result<std::vector<Cgroup>> find_load_cgroup(const std::string& directory, std::uint32_t pid) {
  if (directory.empty())
    return pid == 0 ? std::vector<Cgroup>{} : look_up_cgroup_of_process(std::to_string(pid)).chain;
  CgroupPath found = look_up_cgroup(directory);
  if (!found.exists || found.is_version_1 || found.chain.empty())
    return fail(Code::kNotFound, "no directory of a cgroup v2", directory);
  return std::move(found.chain);
}

std::uint64_t charged_bytes(Allocation allocation, std::uint64_t bytes) {
  if (allocation == Allocation::kOrdinary) return bytes;
  return allocation == Allocation::kTinyObjects ? bytes / kTinyObjectsInPage : 0;
}

}  // namespace gpulet::sim::control

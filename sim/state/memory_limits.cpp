#include "sim/state/memory_limits.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "base/file.h"
#include "base/unified_cgroup.h"
#include "sim/state/driver_branch.h"
#include "sim/state/state.h"

namespace gpulet::sim {
namespace {

constexpr const char* kCgroupMount = "/sys/fs/cgroup";

std::string parent_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
}

std::optional<struct stat> stat_of(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  return info;
}

std::uint64_t inode_of(const std::string& path) {
  struct statfs system{};
  const auto info = stat_of(path);
  const bool is_real = info && ::statfs(path.c_str(), &system) == 0 && system.f_type == CGROUP2_SUPER_MAGIC;
  return is_real ? info->st_ino : 0;
}

// The mount point of the file system with `path`, of which the last part may not exist.
std::string mount_point_of(std::string path) {
  while (!stat_of(path) && path != "/") path = parent_of(path);
  const auto device = stat_of(path) ? stat_of(path)->st_dev : 0;
  while (path != "/") {
    const std::string parent = parent_of(path);
    const auto info = stat_of(parent);
    if (!info || info->st_dev != device) break;
    path = parent;
  }
  return path;
}

// Only on misc the name of a cgroup stands for one that has another inode.
bool is_same_cgroup(MemoryBackend backend, const MemoryLimit& limit, const Cgroup& cgroup) {
  const bool have_inodes = limit.inode != 0 && cgroup.inode != 0;
  if (have_inodes && limit.inode == cgroup.inode) return true;
  return limit.cgroup == cgroup.name && (!have_inodes || backend == MemoryBackend::kMisc);
}

template <class Accounting>
auto find_limit(Accounting& accounting, MemoryBackend backend, std::uint32_t gpu, const Cgroup& cgroup) {
  auto* const found = std::ranges::find_if(accounting.limits, [&](const MemoryLimit& limit) {
    return limit.cgroup[0] != '\0' && limit.gpu == gpu && is_same_cgroup(backend, limit, cgroup);
  });
  return found == std::end(accounting.limits) ? nullptr : found;
}

bool is_at_or_below(std::string_view cgroup, std::string_view ancestor) {
  if (ancestor == "/" || cgroup == ancestor) return true;
  return cgroup.starts_with(ancestor) && cgroup[ancestor.size()] == '/';
}

// Of misc, charges have the name of the limited cgroup; of dmem that of the process, and count for each
// ancestor.
std::uint64_t charged_bytes(const MemoryAccounting& accounting, MemoryBackend backend, std::uint32_t gpu,
                            std::string_view cgroup) {
  std::uint64_t bytes = 0;
  for (const MemoryCharge& charge : accounting.charges) {
    if (charge.pid == 0 || charge.gpu != gpu) continue;
    const bool counts = backend == MemoryBackend::kDmem ? is_at_or_below(charge.cgroup, cgroup)
                                                        : std::string_view(charge.cgroup) == cgroup;
    if (counts) bytes += charge.bytes;
  }
  return bytes;
}

Status check_room(const MemoryAccounting& accounting, MemoryBackend backend, const MemoryLimit& limit,
                  std::uint64_t bytes) {
  const std::uint64_t used = charged_bytes(accounting, backend, limit.gpu, limit.cgroup);
  const std::uint64_t room = limit.hard - std::min(limit.hard, used);
  if (bytes <= room) return {};
  return fail(Code::kInvalidArgument,
              "only " + std::to_string(room >> 20) + " MiB are free below the cgroup's memory limit",
              limit.cgroup);
}

}  // namespace

CgroupPath look_up_cgroup(const std::string& directory) {
  CgroupPath found;
  std::error_code failure;
  std::string path = std::filesystem::weakly_canonical(directory, failure).string();
  if (failure || path.empty() || path.front() != '/') return found;
  if (path.size() > 1 && path.back() == '/') path.pop_back();
  const auto info = stat_of(path);
  found.exists = info && S_ISDIR(info->st_mode);
  found.is_version_1 = stat_of(path + "/tasks").has_value();  // version 2 has none
  const std::string mount = mount_point_of(path);
  const std::size_t prefix = mount == "/" ? 0 : mount.size();
  for (;; path = parent_of(path)) {
    const std::string name = path.size() > prefix ? path.substr(prefix) : "/";
    if (name.size() >= kMaxCgroupName) return {};
    found.chain.push_back({name, inode_of(path)});
    if (name == "/") return found;
  }
}

CgroupPath look_up_cgroup_of_process(const std::string& pid) {
  const auto text = read_file("/proc/" + pid + "/cgroup");
  const auto own = unified_cgroup(text.value_or(""));
  return own.empty() ? CgroupPath() : look_up_cgroup(kCgroupMount + own);
}

MemoryBackend memory_backend(const Machine& machine) {
  if (driver_branch(machine) < kBranch615) return MemoryBackend::kOff;
  return machine.memory.mode == MemoryBackend::kAuto ? MemoryBackend::kMisc : machine.memory.mode;
}

LimitOutcome set_memory_limit(Machine& machine, std::uint32_t gpu, const Cgroup& cgroup, std::uint64_t soft,
                              std::uint64_t hard) {
  const MemoryBackend backend = memory_backend(machine);
  if (backend == MemoryBackend::kOff) return LimitOutcome::kNotSupported;
  const std::uint64_t total = machine.gpus[gpu].memory_total;
  if (soft > hard || soft > total || (hard != kUnlimitedMemory && hard > total))
    return LimitOutcome::kInvalidArgument;
  MemoryAccounting& accounting = machine.memory;
  if (backend == MemoryBackend::kDmem) {
    // Of an earlier cgroup of that name.
    for (MemoryLimit& limit : accounting.limits) {
      if (limit.cgroup == cgroup.name && !is_same_cgroup(backend, limit, cgroup)) limit = {};
    }
  }
  MemoryLimit* limit = find_limit(accounting, backend, gpu, cgroup);
  if (soft == 0 && hard == kUnlimitedMemory) {
    if (limit != nullptr) *limit = {};
    return limit == nullptr && backend == MemoryBackend::kMisc ? LimitOutcome::kNotFound : LimitOutcome::kOk;
  }
  if (backend == MemoryBackend::kMisc && hard < charged_bytes(accounting, backend, gpu, cgroup.name))
    return LimitOutcome::kInvalidArgument;
  if (limit == nullptr) {
    limit = std::ranges::find_if(accounting.limits, [](const MemoryLimit& l) { return l.cgroup[0] == '\0'; });
    if (limit == std::end(accounting.limits)) return LimitOutcome::kTableFull;
  }
  *limit = {};
  set_text(limit->cgroup, cgroup.name);
  limit->inode = cgroup.inode;
  limit->soft = soft;
  limit->hard = hard;
  limit->gpu = gpu;
  return LimitOutcome::kOk;
}

std::optional<MemoryLimitReading> find_memory_limit(const Machine& machine, std::uint32_t gpu,
                                                    const Cgroup& cgroup) {
  const MemoryBackend backend = memory_backend(machine);
  if (backend == MemoryBackend::kOff) return std::nullopt;
  const MemoryLimit* limit = find_limit(machine.memory, backend, gpu, cgroup);
  if (limit == nullptr) return std::nullopt;
  return MemoryLimitReading{limit->soft, limit->hard,
                            charged_bytes(machine.memory, backend, gpu, limit->cgroup)};
}

LimitOutcome read_memory_limit(const Machine& machine, std::uint32_t gpu, const Cgroup& cgroup,
                               MemoryLimitReading& reading) {
  const MemoryBackend backend = memory_backend(machine);
  if (backend == MemoryBackend::kOff) return LimitOutcome::kNotSupported;
  const MemoryAccounting& accounting = machine.memory;
  const auto found = find_memory_limit(machine, gpu, cgroup);
  if (!found && backend == MemoryBackend::kMisc) {
    const bool has_entries = std::ranges::any_of(
        accounting.limits, [gpu](const MemoryLimit& l) { return l.cgroup[0] != '\0' && l.gpu == gpu; });
    return has_entries ? LimitOutcome::kNotFound : LimitOutcome::kNotSupported;
  }
  reading = found.value_or(
      MemoryLimitReading{0, kUnlimitedMemory, charged_bytes(accounting, backend, gpu, cgroup.name)});
  if (found && accounting.misreported_hard != 0) reading.hard = accounting.misreported_hard;
  return LimitOutcome::kOk;
}

bool has_memory_limits(const Machine& machine) {
  return std::ranges::any_of(machine.memory.limits, [](const MemoryLimit& l) { return l.cgroup[0] != '\0'; });
}

void remove_cgroup_limits(Machine& machine, const std::string& name) {
  if (memory_backend(machine) != MemoryBackend::kDmem) return;
  for (MemoryLimit& limit : machine.memory.limits) {
    if (limit.cgroup == name) limit = {};
  }
}

namespace {

// The cgroup that an allocation is charged to; empty: none. Errors: kInvalidArgument beyond a limit.
Result<std::string> find_charged_cgroup(const Machine& machine, std::uint32_t gpu,
                                        const std::vector<Cgroup>& chain, std::uint64_t bytes) {
  const MemoryBackend backend = memory_backend(machine);
  if (backend == MemoryBackend::kOff || chain.empty()) return std::string();
  for (const Cgroup& cgroup : chain) {
    const MemoryLimit* limit = find_limit(machine.memory, backend, gpu, cgroup);
    if (limit == nullptr) continue;
    GPULET_TRY(check_room(machine.memory, backend, *limit, bytes));
    if (backend == MemoryBackend::kMisc) return std::string(limit->cgroup);
  }
  if (backend != MemoryBackend::kDmem) return std::string();
  const MemoryLimit* own = find_limit(machine.memory, backend, gpu, chain.front());
  if (own == nullptr || own->cgroup == chain.front().name) return chain.front().name;
  // In a cgroup namespace, a process does not see its cgroup's ancestors: they count all the same.
  for (const MemoryLimit& limit : machine.memory.limits) {
    if (limit.cgroup[0] != '\0' && limit.gpu == gpu && is_at_or_below(own->cgroup, limit.cgroup))
      GPULET_TRY(check_room(machine.memory, backend, limit, bytes));
  }
  return std::string(own->cgroup);
}

Result<MemoryCharge*> add_charge(MemoryAccounting& accounting, const std::string& cgroup) {
  auto* const charge = std::ranges::find(accounting.charges, 0U, &MemoryCharge::pid);
  if (charge == std::end(accounting.charges))
    return fail(Code::kFailedPrecondition, "too many processes with memory in cgroups");
  *charge = {};
  set_text(charge->cgroup, cgroup);
  return charge;
}

MemoryCharge* find_client_charge(MemoryAccounting& accounting, ClientOfGpu client,
                                 const std::string& cgroup) {
  auto* const found = std::ranges::find_if(accounting.charges, [&](const MemoryCharge& charge) {
    return charge.pid != 0 && charge.cuda_client == client.cuda_client && charge.gpu == client.gpu &&
           charge.cgroup == cgroup;
  });
  return found == std::end(accounting.charges) ? nullptr : found;
}

}  // namespace

Status charge_memory(Machine& machine, std::uint32_t gpu, std::uint32_t pid, const std::vector<Cgroup>& chain,
                     std::uint64_t bytes) {
  GPULET_TRY_ASSIGN(const std::string charged, find_charged_cgroup(machine, gpu, chain, bytes));
  if (charged.empty()) return {};
  GPULET_TRY_ASSIGN(MemoryCharge* const charge, add_charge(machine.memory, charged));
  charge->bytes = bytes;
  charge->gpu = gpu;
  charge->pid = pid;
  return {};
}

void release_memory(Machine& machine, std::uint32_t gpu, std::uint32_t pid) {
  for (MemoryCharge& charge : machine.memory.charges) {
    if (charge.cuda_client == 0 && charge.pid == pid && charge.gpu == gpu) charge = {};
  }
}

Result<std::string> charge_client(Machine& machine, ClientOfGpu client, const std::vector<Cgroup>& chain,
                                  std::uint64_t bytes) {
  GPULET_TRY_ASSIGN(std::string charged, find_charged_cgroup(machine, client.gpu, chain, bytes));
  if (charged.empty()) return charged;
  MemoryCharge* charge = find_client_charge(machine.memory, client, charged);
  if (charge == nullptr) {
    GPULET_TRY_ASSIGN(charge, add_charge(machine.memory, charged));
    charge->gpu = client.gpu;
    charge->pid = kHiddenPid;
    charge->cuda_client = client.cuda_client;
  }
  charge->bytes += bytes;
  return charged;
}

void release_client(Machine& machine, ClientOfGpu client, const std::string& cgroup, std::uint64_t bytes) {
  MemoryCharge* const charge = find_client_charge(machine.memory, client, cgroup);
  if (charge == nullptr) return;  // the limits are gone, and their charges with them
  charge->bytes -= std::min(charge->bytes, bytes);
  if (charge->bytes == 0) *charge = {};
}

void release_all_of_client(Machine& machine, std::uint32_t cuda_client) {
  for (MemoryCharge& charge : machine.memory.charges) {
    if (charge.pid != 0 && charge.cuda_client == cuda_client) charge = {};
  }
}

void clear_memory_limits(Machine& machine, std::optional<std::uint32_t> gpu) {
  for (MemoryLimit& limit : machine.memory.limits) {
    if (!gpu || limit.gpu == *gpu) limit = {};
  }
  for (MemoryCharge& charge : machine.memory.charges) {
    if (!gpu || charge.gpu == *gpu) charge = {};
  }
}

}  // namespace gpulet::sim

#include "agent/node/capabilities.h"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

// By number: <linux/capability.h>, Linux 5.9 to 6.18.
constexpr std::string_view kNames[] = {
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
};
static_assert(std::size(kNames) == CAP_CHECKPOINT_RESTORE + 1);
constexpr std::string_view kPrefix = "CAP_";

// What the kernel has beyond kNames is given up too.
constexpr int kCapabilitySlots = 64;

void drop_bounding_set(const std::set<int>& kept) {
  // This fails without CAP_SETPCAP, and no_new_privs makes the set ineffective anyway.
  for (int capability = 0; capability < kCapabilitySlots; ++capability) {
    if (!kept.contains(capability)) ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
  }
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
}

}  // namespace

Result<int> parse_capability(std::string_view name) {
  const auto bare = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
  const auto* found = std::ranges::find(kNames, bare);
  if (found == std::end(kNames)) {
    return fail(Code::kInvalidArgument, "unknown capability; expected for example SYS_ADMIN",
                std::string(name));
  }
  return static_cast<int>(found - std::begin(kNames));
}

Result<std::set<int>> parse_capabilities(std::string_view list) {
  std::set<int> numbers;
  for (const auto& entry : text::split(list, ',')) {
    const auto name = text::trim(entry);
    if (name.empty()) continue;
    GPULET_TRY_ASSIGN(const int number, parse_capability(name));
    numbers.insert(number);
  }
  return numbers;
}

Status keep_capabilities(const std::set<int>& kept) {
  drop_bounding_set(kept);
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return fail(errno_error("no_new_privs", errno));
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> sets{};
  if (::syscall(SYS_capget, &header, sets.data()) != 0) return fail(errno_error("capget", errno));
  std::array<__u32, _LINUX_CAPABILITY_U32S_3> masks{};
  for (const int capability : kept) masks[CAP_TO_INDEX(capability)] |= CAP_TO_MASK(capability);
  for (std::size_t word = 0; word < sets.size(); ++word) {
    sets[word].permitted &= masks[word];
    sets[word].effective &= masks[word];
    sets[word].inheritable &= masks[word];
  }
  if (::syscall(SYS_capset, &header, sets.data()) != 0) return fail(errno_error("capset", errno));
  return {};
}

}  // namespace gpulet::agent

#include "sim/state/clients.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/text.h"

namespace gpulet::sim {
namespace {

// Beyond the file's end, where no other lock can be meant.
constexpr off_t kFirstLockedByte = static_cast<off_t>(1) << 40;

struct flock byte_of_entry(std::size_t entry) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = kFirstLockedByte + static_cast<off_t>(entry);
  lock.l_len = 1;
  return lock;
}

Result<FileDescriptor> open_state_file(const StateFile& state) {
  FileDescriptor fd(::open(state.file_path().c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.is_open()) return fail(errno_error("open", errno, state.file_path()));
  return fd;
}

bool is_locked_by_other(int descriptor, std::size_t entry) {
  auto lock = byte_of_entry(entry);
  return fcntl(descriptor, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

std::string process_name(const std::string& pid) {
  const auto name = read_file("/proc/" + pid + "/comm");
  return name ? std::string(text::trim(*name)) : std::string();
}

void add_holder(std::vector<std::string>& holders, std::uint32_t pid, std::string name) {
  if (pid == kHiddenPid) {
    holders.emplace_back("a process of another PID namespace");
    return;
  }
  if (name.empty()) name = process_name(std::to_string(pid));
  holders.push_back(std::to_string(pid) + (name.empty() ? "" : " " + name));
}

}  // namespace

Result<ClientEntry> ClientEntry::add_client(const StateFile& state, Machine& machine, std::uint64_t gpus) {
  GPULET_TRY_ASSIGN(auto fd, open_state_file(state));
  for (std::size_t i = 0; i < kMaxClients; ++i) {
    auto lock = byte_of_entry(i);
    if (fcntl(fd.get(), F_OFD_SETLK, &lock) != 0) {
      if (errno == EAGAIN || errno == EACCES) continue;
      return fail(errno_error("lock", errno, state.file_path()));
    }
    Client& client = machine.clients[i];
    client = {};
    client.pid = static_cast<std::uint32_t>(getpid());
    client.generation = machine.driver.generation;
    client.gpus = gpus;
    set_text(client.name, process_name("self"));
    return ClientEntry(std::move(fd));
  }
  return fail(Code::kFailedPrecondition, "too many clients of the simulated driver", state.file_path());
}

std::vector<std::string> holders_of(const Machine& machine, int descriptor,
                                    std::optional<std::uint32_t> gpu) {
  std::vector<std::string> holders;
  for (std::size_t i = 0; i < kMaxClients; ++i) {
    const Client& client = machine.clients[i];
    // A client of the driver before a reload holds nothing of this one.
    if (client.pid == 0 || client.generation != machine.driver.generation) continue;
    if (gpu && (client.gpus >> *gpu & 1) == 0) continue;
    if (is_locked_by_other(descriptor, i)) add_holder(holders, client.pid, client.name);
  }
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
    if (gpu && *gpu != i) continue;
    for (const Process& process : machine.gpus[i].processes) {
      if (process.pid != 0) add_holder(holders, process.pid, process.name);
    }
  }
  return holders;
}

Status check_unused(const Machine& machine, int descriptor, std::optional<std::uint32_t> gpu) {
  const auto holders = holders_of(machine, descriptor, gpu);
  if (holders.empty()) return {};
  return fail(Code::kFailedPrecondition, "in use by: " + text::join(holders, ", "),
              gpu && *gpu < machine.gpu_count ? machine.gpus[*gpu].uuid : std::string());
}

Status check_unused(const StateFile& state, const Machine& machine, std::optional<std::uint32_t> gpu) {
  GPULET_TRY_ASSIGN(const auto fd, open_state_file(state));
  return check_unused(machine, fd.get(), gpu);
}

}  // namespace gpulet::sim

#include "sim/state/cuda_clients.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <future>
#include <thread>
#include <utility>

#include "base/file.h"
#include "sim/state/state.h"

namespace gpulet::sim {
namespace {

// Beyond the locks of clients.h.
constexpr off_t kFirstCudaByte = (static_cast<off_t>(1) << 40) + 4096;
constexpr unsigned kUnshareTable = 1U << 1;  // CLOSE_RANGE_UNSHARE

struct flock byte_of_cuda_client(std::size_t entry) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = kFirstCudaByte + static_cast<off_t>(entry);
  lock.l_len = 1;
  return lock;
}

// With the locks in the calling thread's table of descriptors.
Result<std::uint32_t> take_entry(const StateFile& state, int fd) {
  const EditGuard machine = state.lock_for_edit();
  CudaClients& clients = machine->cuda;
  for (std::uint32_t i = 0; i < kMaxCudaClients; ++i) {
    if (clients.entries[i] != 0) continue;
    auto lock = byte_of_cuda_client(i);
    if (fcntl(fd, F_SETLK, &lock) != 0) {
      if (errno == EAGAIN || errno == EACCES) continue;
      return fail(errno_error("lock", errno, state.file_path()));
    }
    clients.entries[i] = 1;
    clients.generations[i] = machine->driver.generation;
    ++clients.count;
    return i + 1;
  }
  return fail(Code::kFailedPrecondition, "too many CUDA clients of the simulated driver", state.file_path());
}

Result<std::uint32_t> hold_entry(const StateFile& state, FileDescriptor& fd) {
  if (syscall(SYS_close_range, 0U, ~0U, kUnshareTable) != 0)
    return fail(errno_error("unshare the descriptors of a thread", errno));
  fd = FileDescriptor(::open(state.file_path().c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.is_open()) return fail(errno_error("open", errno, state.file_path()));
  return take_entry(state, fd.get());
}

void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

// `pid`: 0 of a client that has ended.
void set_client_pid(Machine& machine, std::uint32_t client, std::uint32_t pid) {
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
    for (Process& process : machine.gpus[i].processes) {
      if (process.pid == 0 || process.cuda_client != client) continue;
      if (pid == 0) {
        process = {};
      } else {
        process.pid = pid;
      }
    }
  }
}

}  // namespace

Result<std::uint32_t> add_cuda_client(const StateFile& state) {
  std::promise<Result<std::uint32_t>> promise;
  auto result = promise.get_future();
  std::thread([&state, promise = std::move(promise)]() mutable {
    block_signals();
    FileDescriptor fd;
    auto taken = hold_entry(state, fd);
    const bool holds = taken.has_value();
    promise.set_value(std::move(taken));
    while (holds) pause();
  }).detach();
  return result.get();
}

void update_cuda_clients(Machine& machine, const std::string& path) {
  CudaClients& clients = machine.cuda;
  if (clients.count == 0) return;
  const FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.is_open()) return;
  for (std::uint32_t i = 0; i < kMaxCudaClients; ++i) {
    if (clients.entries[i] == 0) continue;
    auto lock = byte_of_cuda_client(i);
    if (fcntl(fd.get(), F_GETLK, &lock) != 0) continue;
    const bool has_ended = lock.l_type == F_UNLCK;
    const auto pid = lock.l_pid > 0 ? static_cast<std::uint32_t>(lock.l_pid) : kHiddenPid;
    set_client_pid(machine, i + 1, has_ended ? 0 : pid);
    if (!has_ended) continue;
    release_all_of_client(machine, i + 1);
    clients.entries[i] = 0;
    --clients.count;
  }
}

void remove_cuda_processes(Machine& machine) {
  for (std::uint32_t i = 0; i < kMaxCudaClients; ++i) {
    if (machine.cuda.entries[i] != 0) set_client_pid(machine, i + 1, 0);
  }
}

}  // namespace gpulet::sim

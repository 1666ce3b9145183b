#include "hook/supervisor.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <new>

#include "base/file.h"

namespace gpulet::hook {
namespace {

using Clock = std::chrono::steady_clock;

// How long a killed child may take to die before it is left behind.
constexpr std::chrono::milliseconds kDyingTime{200};

// A number that the child writes and the parent reads, also after the child was killed.
class SharedNumber {
 public:
  SharedNumber()
      : memory_(::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                       -1, 0)) {
    if (memory_ != MAP_FAILED) number_ = new (memory_) std::atomic<int>(0);
  }
  ~SharedNumber() {
    if (number_ != nullptr) ::munmap(memory_, sizeof(std::atomic<int>));
  }
  SharedNumber(const SharedNumber&) = delete;
  bool is_mapped() const { return number_ != nullptr; }
  void store(int value) { number_->store(value); }
  int load() const { return number_->load(); }

 private:
  void* memory_;
  std::atomic<int>* number_ = nullptr;
};

// Returns whether the process ended before `end`.
bool wait_until(int process, Clock::time_point end) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd ended{process, POLLIN, 0};
    const int ready = ::poll(&ended, 1, left > 0 ? static_cast<int>(left) : 0);
    if (ready > 0) return true;
    if (left <= 0) return false;
  }
}

}  // namespace

Result<WorkerResult> run_supervised(
    std::chrono::milliseconds limit,
    const std::function<int(const std::function<void(int)>& reach_milestone)>& work) {
  const auto end = Clock::now() + limit;
  SharedNumber milestone;
  if (!milestone.is_mapped()) return fail(errno_error("cannot share memory with a process", errno));
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return fail(errno_error("cannot start a process", errno));
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(EXIT_FAILURE);
    std::exit(work([&](int value) { milestone.store(value); }));
  }
  const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  if (!process.is_open()) {
    const int why = errno;
    ::kill(child, SIGKILL);
    if (why == ENOSYS)
      return fail(Code::kUnsupported, "this kernel has no pidfd_open: Linux 5.6 or newer is needed");
    return fail(errno_error("cannot watch a process", why));
  }
  WorkerResult result;
  if (!wait_until(process.get(), end)) {
    ::kill(child, SIGKILL);
    wait_until(process.get(), Clock::now() + kDyingTime);
    result.end = WorkerResult::End::kTimedOut;
  }
  int status = 0;
  pid_t reaped = 0;
  while ((reaped = ::waitpid(child, &status, WNOHANG)) < 0 && errno == EINTR) {
  }
  result.milestone = milestone.load();
  if (result.end == WorkerResult::End::kTimedOut || reaped != child) return result;
  if (WIFSIGNALED(status)) result.end = WorkerResult::End::kSignalled;
  result.value = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

}  // namespace gpulet::hook

#include "agent/fraction/container_processes.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

Error kill_error(const char* what, int error_number, const std::string& about) {
  if (error_number == ESRCH) return {Code::kNotFound, "it has ended", about};
  return errno_error(what, error_number, about);
}

}  // namespace

bool sees_host_processes(const std::string& proc, unsigned own_pid) {
  if (own_pid == 0) own_pid = static_cast<unsigned>(::getpid());
  constexpr unsigned kFirstProcess = 1;
  constexpr std::size_t kMaxNameBytes = 64;
  if (own_pid == kFirstProcess) return false;
  // With shareProcessNamespace: /pause of containerd and CRI-O, from registry.k8s.io/pause.
  const auto first = read_file(proc + "/1/comm", kMaxNameBytes);
  return !first || text::trim(*first) != "pause";
}

std::vector<metrics::PodCgroup> read_pod_cgroups(unsigned pid, const std::string& proc) {
  const auto file = read_file(proc + "/" + std::to_string(pid) + "/cgroup", metrics::kMaxCgroupBytes);
  return file ? metrics::pod_cgroups(*file) : std::vector<metrics::PodCgroup>{};
}

Status kill_container_process(unsigned pid, const metrics::PodCgroup& expected, const std::string& proc) {
  const std::string about = "process " + std::to_string(pid);
  const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0u)));
  if (!process.is_open()) return fail(kill_error("cannot open it", errno, about));
  const auto cgroups = read_pod_cgroups(pid, proc);
  if (std::ranges::find(cgroups, expected) == cgroups.end())
    return fail(Code::kNotFound, "it has ended, or is of another container", about);
  if (::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0u) != 0)
    return fail(kill_error("cannot kill it", errno, about));
  return {};
}

}  // namespace gpulet::agent

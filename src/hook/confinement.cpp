#include "hook/confinement.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <utility>

#include "hook/command.h"
#include "hook/confined_child.h"

namespace gpulet::hook {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxComplaints = 4096;

tl::unexpected<Error> failed(std::string_view what) {
  if (errno == ENOSYS)
    return fail(Code::kUnsupported, std::string(what) + ": this kernel cannot (Linux 5.6 is needed)");
  return fail(errno_error(what, errno));
}

// The root with all that is mounted in it, attached nowhere, and nothing to be changed or started in it.
Result<FileDescriptor> clone_tree(int root) {
  FileDescriptor tree(
      ::open_tree(root, "", AT_EMPTY_PATH | AT_RECURSIVE | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  if (!tree.valid()) return failed("cannot clone the container's mounts");
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  // What is mounted below it from now on is nobody else's.
  attributes.propagation = MS_PRIVATE;
  if (::mount_setattr(tree.get(), "", AT_EMPTY_PATH | AT_RECURSIVE, &attributes, sizeof attributes) != 0 &&
      errno != ENOSYS)
    return failed("cannot make the container's mounts read-only");
  return tree;
}

Result<FileDescriptor> make_scratch() {
  const FileDescriptor context(::fsopen("tmpfs", FSOPEN_CLOEXEC));
  if (!context.valid()) return failed("cannot make a tmpfs");
  const std::string size = std::to_string(kMaxConfinedFile);
  for (const auto& [key, value] : {std::pair{"size", size.c_str()}, {"nr_inodes", "8"}, {"mode", "0700"}})
    if (::fsconfig(context.get(), FSCONFIG_SET_STRING, key, value, 0) != 0)
      return failed("cannot make a tmpfs");
  if (::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0)
    return failed("cannot make a tmpfs");
  FileDescriptor folder(
      ::fsmount(context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC));
  if (!folder.valid()) return failed("cannot make a tmpfs");
  return folder;
}

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};
Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return failed("cannot make a pipe");
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

// A started child; killed with all that it started, and waited for, when this goes.
class Process {
 public:
  Process(pid_t id, FileDescriptor descriptor) : id_(id), descriptor_(std::move(descriptor)) {}
  ~Process() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);  // the first process of its pid namespace: the others go with it
    wait();
  }
  Process(const Process&) = delete;

  int descriptor() const { return descriptor_.get(); }
  int wait() {
    int status = 0;
    while (::waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
    id_ = 0;
    return status;
  }

 private:
  pid_t id_;
  FileDescriptor descriptor_;
};

// As fork, into new namespaces. The child is alone: nothing but this thread was in the hook.
pid_t fork_confined(int& descriptor) {
  constexpr unsigned long kFlags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET |
                                   CLONE_PIDFD | static_cast<unsigned long>(SIGCHLD);
  return static_cast<pid_t>(::syscall(SYS_clone, kFlags, nullptr, &descriptor, nullptr, nullptr));
}

// Takes what there is; false at its end.
bool take(int fd, std::string& into, std::size_t most) {
  char buffer[16384];
  const ssize_t got = ::read(fd, buffer, sizeof buffer);
  if (got < 0) return errno == EINTR;
  if (got == 0) return false;
  into.append(buffer, std::min(static_cast<std::size_t>(got), most - std::min(most, into.size())));
  return true;
}

// Reads both until their ends, and waits for the process'.
Status listen(const Process& process, int output, int complaints, Clock::time_point end, ConfinedRun& run) {
  pollfd all[] = {{output, POLLIN, 0}, {complaints, POLLIN, 0}, {process.descriptor(), POLLIN, 0}};
  while (all[0].fd >= 0 || all[1].fd >= 0 || all[2].fd >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return fail(Code::kDeadlineExceeded, "the host's ldconfig took too long and was killed");
    const int ready = ::poll(all, std::size(all), static_cast<int>(left) + 1);
    if (ready < 0 && errno != EINTR) return failed("cannot wait for the host's ldconfig");
    if (ready <= 0) continue;
    if (all[0].revents != 0 && !take(output, run.output, kMaxConfinedOutput)) all[0].fd = -1;
    if (all[1].revents != 0 && !take(complaints, run.complaints, kMaxComplaints)) all[1].fd = -1;
    if (all[2].revents != 0) all[2].fd = -1;
    if (run.output.size() == kMaxConfinedOutput)
      return fail(Code::kInvalidArgument, "the host's ldconfig finds more than it may tell");
  }
  return {};
}

Status judge(int status, const std::string& complaints) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  constexpr std::size_t kMaxQuoted = 300;
  const std::string why = WIFSIGNALED(status)
                              ? std::string("was ended by signal ") + ::strsignal(WTERMSIG(status))
                              : "failed with status " + std::to_string(WEXITSTATUS(status));
  const std::string said = complaints.substr(0, complaints.find('\n'));
  return fail(Code::kFailedPrecondition,
              "the host's ldconfig " + why + (said.empty() ? "" : ": " + shown(said, kMaxQuoted)));
}

// What kept the child from starting the program, if anything did.
Status start_failure(int fd) {
  ChildFailure failure{};
  const ssize_t got = ::read(fd, &failure, sizeof failure);
  if (got != static_cast<ssize_t>(sizeof failure)) return {};
  const std::string what = std::string("the host's ldconfig: ") + failure.what;
  if (failure.error_number == 0) return fail(Code::kPermissionDenied, what);
  return fail(errno_error(what, failure.error_number));
}

}  // namespace

Result<ConfinedRun> run_confined(const Rootfs& root, const ConfinedProgram& program) {
  GPULET_TRY_ASSIGN(const FileDescriptor tree, clone_tree(root.descriptor()));
  GPULET_TRY_ASSIGN(FileDescriptor scratch, make_scratch());
  GPULET_TRY_ASSIGN(Pipe output, make_pipe());
  GPULET_TRY_ASSIGN(Pipe complaints, make_pipe());
  GPULET_TRY_ASSIGN(Pipe failure, make_pipe());
  const FileDescriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  ChildPlan plan;
  plan.tree = tree.get();
  plan.scratch = scratch.get();
  plan.scratch_name = program.scratch.substr(program.scratch.find_first_not_of('/'));
  plan.hidden = program.hidden;
  plan.program = program.program;
  plan.arguments = program.arguments;
  plan.null = null.get();
  plan.output = output.write.get();
  plan.complaints = complaints.write.get();
  plan.failure = failure.write.get();
  const auto end = Clock::now() + program.limit;
  int descriptor = -1;
  const pid_t child = fork_confined(descriptor);
  if (child == 0) run_child(plan);
  if (child < 0) return failed("cannot start a process in namespaces of its own");
  Process process(child, FileDescriptor(descriptor));
  output.write.reset();
  complaints.write.reset();
  failure.write.reset();
  ConfinedRun run;
  GPULET_TRY(listen(process, output.read.get(), complaints.read.get(), end, run));
  const int status = process.wait();
  GPULET_TRY(start_failure(failure.read.get()));
  GPULET_TRY(judge(status, run.complaints));
  run.scratch = std::move(scratch);
  return run;
}

}  // namespace gpulet::hook

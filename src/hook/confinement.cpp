#include "hook/confinement.h"

#include <elf.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
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

namespace gpulet::hook {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxErrorOutput = 4096;

tl::unexpected<Error> confinement_error(std::string_view what) {
  if (errno == ENOSYS)
    return fail(Code::kUnsupported,
                std::string(what) + ": not supported by this kernel (Linux 5.6 or newer is required)");
  return fail(errno_error(what, errno));
}

// Clones the root and its mounts, detached, read-only and not executable.
Result<FileDescriptor> clone_tree(int root) {
  FileDescriptor tree(
      ::open_tree(root, "", AT_EMPTY_PATH | AT_RECURSIVE | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  if (!tree.is_open()) return confinement_error("cannot clone the container's mounts");
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  // Later mounts below it do not propagate.
  attributes.propagation = MS_PRIVATE;
  if (::mount_setattr(tree.get(), "", AT_EMPTY_PATH | AT_RECURSIVE, &attributes, sizeof attributes) != 0 &&
      errno != ENOSYS)
    return confinement_error("cannot make the container's mounts read-only");
  return tree;
}

Result<FileDescriptor> make_scratch() {
  const FileDescriptor context(::fsopen("tmpfs", FSOPEN_CLOEXEC));
  if (!context.is_open()) return confinement_error("cannot make a tmpfs");
  const std::string size = std::to_string(kMaxConfinedFile);
  for (const auto& [key, value] : {std::pair{"size", size.c_str()}, {"nr_inodes", "8"}, {"mode", "0700"}})
    if (::fsconfig(context.get(), FSCONFIG_SET_STRING, key, value, 0) != 0)
      return confinement_error("cannot make a tmpfs");
  if (::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0)
    return confinement_error("cannot make a tmpfs");
  FileDescriptor directory(
      ::fsmount(context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC));
  if (!directory.is_open()) return confinement_error("cannot make a tmpfs");
  return directory;
}

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};
Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return confinement_error("cannot make a pipe");
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

// A child process. The destructor kills and reaps it with all its descendants.
class ConfinedProcess {
 public:
  ConfinedProcess(pid_t id, FileDescriptor descriptor) : id_(id), descriptor_(std::move(descriptor)) {}
  ~ConfinedProcess() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);  // it is the init of its pid namespace: the others die with it
    wait_for_exit();
  }
  ConfinedProcess(const ConfinedProcess&) = delete;

  int descriptor() const { return descriptor_.get(); }
  int wait_for_exit() {
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

// Forks into new namespaces. The hook has a single thread, so the child is consistent.
pid_t fork_confined(int& descriptor) {
  constexpr unsigned long kFlags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET |
                                   CLONE_PIDFD | static_cast<unsigned long>(SIGCHLD);
  return static_cast<pid_t>(::syscall(SYS_clone, kFlags, nullptr, &descriptor, nullptr, nullptr));
}

// Appends the available bytes. Returns false at the end of the stream.
bool append_available(int fd, std::string& into, std::size_t most) {
  char buffer[16384];
  const ssize_t got = ::read(fd, buffer, sizeof buffer);
  if (got < 0) return errno == EINTR;
  if (got == 0) return false;
  into.append(buffer, std::min(static_cast<std::size_t>(got), most - std::min(most, into.size())));
  return true;
}

// Reads both streams to their ends and waits for the process.
Status collect_output(const ConfinedProcess& process, int output, int complaints, Clock::time_point end,
                      ConfinedRun& run) {
  pollfd all[] = {{output, POLLIN, 0}, {complaints, POLLIN, 0}, {process.descriptor(), POLLIN, 0}};
  while (all[0].fd >= 0 || all[1].fd >= 0 || all[2].fd >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return fail(Code::kDeadlineExceeded, "the host's ldconfig took too long and was killed");
    const int ready = ::poll(all, std::size(all), static_cast<int>(left) + 1);
    if (ready < 0 && errno != EINTR) return confinement_error("cannot wait for the host's ldconfig");
    if (ready <= 0) continue;
    if (all[0].revents != 0 && !append_available(output, run.output, kMaxConfinedOutput)) all[0].fd = -1;
    if (all[1].revents != 0 && !append_available(complaints, run.error_output, kMaxErrorOutput))
      all[1].fd = -1;
    if (all[2].revents != 0) all[2].fd = -1;
    if (run.output.size() == kMaxConfinedOutput)
      return fail(Code::kInvalidArgument, "the host's ldconfig printed more than 4 MiB");
  }
  return {};
}

Status check_exit_status(int status, const std::string& complaints) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  constexpr std::size_t kMaxQuoted = 300;
  const std::string why = WIFSIGNALED(status)
                              ? std::string("was ended by signal ") + ::strsignal(WTERMSIG(status))
                              : "failed with status " + std::to_string(WEXITSTATUS(status));
  const std::string first_line = complaints.substr(0, complaints.find('\n'));
  return fail(Code::kFailedPrecondition,
              "the host's ldconfig " + why +
                  (first_line.empty() ? "" : ": " + printable_text(first_line, kMaxQuoted)));
}

// Returns why the child could not start the program, if so.
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
  plan.error_output = complaints.write.get();
  plan.failure = failure.write.get();
  const auto end = Clock::now() + program.time_limit;
  int descriptor = -1;
  const pid_t child = fork_confined(descriptor);
  if (child == 0) run_child(plan);
  if (child < 0) return confinement_error("cannot start a process in new namespaces");
  ConfinedProcess process(child, FileDescriptor(descriptor));
  output.write.reset();
  complaints.write.reset();
  failure.write.reset();
  ConfinedRun run;
  GPULET_TRY(collect_output(process, output.read.get(), complaints.read.get(), end, run));
  const int status = process.wait_for_exit();
  GPULET_TRY(start_failure(failure.read.get()));
  GPULET_TRY(check_exit_status(status, run.error_output));
  run.scratch = std::move(scratch);
  return run;
}

}  // namespace gpulet::hook

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

namespace gpulet::hook {
namespace {

#if defined(__x86_64__)
constexpr Elf64_Half kElfMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr Elf64_Half kElfMachine = EM_AARCH64;
#else
#error "unknown architecture: add its ELF machine"
#endif

Result<FileDescriptor> open_program(const std::string& path, std::size_t& size) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file.is_open()) return fail(errno_error("cannot open the host's ldconfig", errno, path));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0)
    return fail(errno_error("cannot examine the host's ldconfig", errno, path));
  if (!S_ISREG(status.st_mode))
    return fail(Code::kFailedPrecondition, "the host's ldconfig is not a regular file", path);
  size = static_cast<std::size_t>(status.st_size);
  if (size > kMaxProgramBytes)
    return fail(Code::kInvalidArgument, "the host's ldconfig is larger than 64 MiB", path);
  return file;
}

Result<FileDescriptor> new_memory() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  FileDescriptor memory(::memfd_create("ldconfig", kFlags | MFD_EXEC));
  // MFD_EXEC exists since Linux 6.3; before that every such file is executable.
  if (!memory.is_open() && errno == EINVAL) memory = FileDescriptor(::memfd_create("ldconfig", kFlags));
  if (memory.is_open()) return memory;
  return fail(Code::kUnsupported, std::string("cannot create a file in memory: ") + ::strerror(errno));
}

bool read_at(int fd, std::uint64_t offset, void* out, std::size_t size) {
  return ::pread(fd, out, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
}

// Checks the sealed copy, which cannot change.
Status check_static(int fd, const std::string& path) {
  constexpr std::size_t kMaxSegments = 64;
  Elf64_Ehdr header{};
  if (!read_at(fd, 0, &header, sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
    return fail(Code::kFailedPrecondition,
                "the host's ldconfig is not an ELF program (perhaps a script): name the real program with "
                "--ldconfig-path",
                path);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != kElfMachine ||
      header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum > kMaxSegments)
    return fail(Code::kFailedPrecondition, "the host's ldconfig is for another architecture", path);
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    if (!read_at(fd, header.e_phoff + i * sizeof segment, &segment, sizeof segment))
      return fail(Code::kFailedPrecondition, "the host's ldconfig is cut off", path);
    if (segment.p_type == PT_INTERP)
      return fail(Code::kFailedPrecondition,
                  "the host's ldconfig is dynamically linked: it would run the container's loader", path);
  }
  return {};
}

}  // namespace

Result<FileDescriptor> sealed_ldconfig(const std::string& path) {
  std::size_t size = 0;
  auto file = open_program(path + ".real", size);
  if (!file && file.error().code() == Code::kNotFound) file = open_program(path, size);
  if (!file) return fail(file.error());
  GPULET_TRY_ASSIGN(FileDescriptor copy, new_memory());
  off_t offset = 0;
  while (static_cast<std::size_t>(offset) < size) {
    const ssize_t sent =
        ::sendfile(copy.get(), file->get(), &offset, size - static_cast<std::size_t>(offset));
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return fail(errno_error("cannot copy the host's ldconfig", errno, path));
    if (sent == 0) break;  // it became shorter
  }
  constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  if (::fcntl(copy.get(), F_ADD_SEALS, kSeals) != 0)
    return fail(Code::kUnsupported, std::string("cannot seal a file in memory: ") + ::strerror(errno));
  GPULET_TRY(check_static(copy.get(), path));
  return copy;
}

}  // namespace gpulet::hook

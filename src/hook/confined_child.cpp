#include "hook/confined_child.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <linux/securebits.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "hook/confinement.h"
#include "hook/syscall_filter.h"

namespace gpulet::hook {
namespace {

constexpr std::size_t kMaxMountinfoBytes = 16u << 20;

class Child {
 public:
  // All that takes memory, before it is limited.
  explicit Child(const ChildPlan& plan) : plan_(plan), texts_(plan.arguments) {
    for (std::string& text : texts_) arguments_.push_back(text.data());
    arguments_.push_back(nullptr);
  }

  [[noreturn]] void run() {
    // Gone with the hook, from here on; the parent waits for what is written to it, so it is there now.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    enter_tree();
    attach_scratch();
    take_descriptors();
    limit();
    drop_rights();
    if (const auto filtered = filter_.install(); !filtered) stop(filtered.error().message(), 0);
    execute();
  }

 private:
  [[noreturn]] void stop(std::string_view what, int error_number) const {
    ChildFailure failure{};
    what.copy(failure.what, sizeof failure.what - 1);
    failure.error_number = error_number;
    if (::write(plan_.failure, &failure, sizeof failure) < 0) ::_exit(126);
    ::_exit(127);
  }
  void must(bool done, std::string_view what) const {
    if (!done) stop(what, errno);
  }

  void enter_tree() const {
    must(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "cannot make mounts private");
    const FileDescriptor old(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
    const FileDescriptor proc(::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!proc.valid()) stop("cannot see the host's /proc", 0);
    must(::move_mount(plan_.tree, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) == 0, "cannot mount its files");
    must(::fchdir(plan_.tree) == 0, "cannot enter its files");
    if (::syscall(SYS_pivot_root, ".", ".") == 0) {
      must(::fchdir(old.get()) == 0 && ::umount2(".", MNT_DETACH) == 0, "cannot leave the host's files");
    } else {
      // An initramfs is the one root that cannot be exchanged: the tree lies over it.
      must(errno == EINVAL && ::chroot(".") == 0, "cannot change its root");
    }
    must(::chdir("/") == 0, "cannot enter its root");
    take_procfs_out(proc.get());
  }

  // /proc/<pid>/root, cwd and fd of other processes are links out of any root.
  void take_procfs_out(int proc) const {
    constexpr int kMaxLayers = 16;
    for (int layer = 0; layer < kMaxLayers; ++layer) {
      const FileDescriptor file(::openat(proc, "self/mountinfo", O_RDONLY | O_CLOEXEC));
      const auto content = read_all(file.get(), "mountinfo", kMaxMountinfoBytes);
      if (!content) stop("cannot read its mounts", 0);
      std::vector<std::string> places;
      std::string_view rest = *content;
      while (!rest.empty()) {
        const auto end = rest.find('\n');
        const std::string_view line = rest.substr(0, end);
        rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
        if (line.find(" - proc ") != std::string_view::npos) places.push_back(mount_point(line));
      }
      if (places.empty()) return;
      // The inner ones first. What hides one from its path goes as well, and it itself in the next round.
      for (auto place = places.rbegin(); place != places.rend(); ++place)
        must(::umount2(place->c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0,
             "cannot take a procfs out of its files");
    }
    stop("cannot take every procfs out of its files", 0);
  }

  // The fifth field, in which blanks, newlines and backslashes are "\ooo".
  static std::string mount_point(std::string_view line) {
    for (int field = 0; field < 4; ++field) line.remove_prefix(std::min(line.find(' '), line.size() - 1) + 1);
    line = line.substr(0, line.find(' '));
    std::string out;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (line[i] != '\\' || i + 3 >= line.size()) {
        out += line[i];
        continue;
      }
      out += static_cast<char>((line[i + 1] - '0') * 64 + (line[i + 2] - '0') * 8 + (line[i + 3] - '0'));
      i += 3;
    }
    return out;
  }

  void attach_scratch() const {
    open_how how{};
    how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
    const FileDescriptor place(
        static_cast<int>(::syscall(SYS_openat2, plan_.tree, plan_.scratch_name.c_str(), &how, sizeof how)));
    must(place.valid(), "cannot find a folder to write in");
    must(::move_mount(plan_.scratch, "", place.get(), "",
                      MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) == 0,
         "cannot mount a folder to write in");
    for (const std::string& folder : plan_.hidden) hide(folder);
  }

  // Inside the new root, where every path is the container's. Nothing there needs no hiding.
  void hide(const std::string& folder) const {
    const FileDescriptor place(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!place.valid()) return;
    const FileDescriptor again(
        ::open_tree(plan_.scratch, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
    must(again.valid() && ::move_mount(again.get(), "", place.get(), "",
                                       MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) == 0,
         "cannot hide a folder");
  }

  // 0, 1 and 2; the rest closes itself when the program starts.
  void take_descriptors() const {
    must(::dup2(plan_.null, STDIN_FILENO) >= 0 && ::dup2(plan_.output, STDOUT_FILENO) >= 0 &&
             ::dup2(plan_.complaints, STDERR_FILENO) >= 0,
         "cannot give it its descriptors");
    constexpr unsigned kOnExec = 1u << 2;  // CLOSE_RANGE_CLOEXEC; every one of ours is so where it is unknown
    ::syscall(SYS_close_range, STDERR_FILENO + 1, ~0u, kOnExec);
  }

  void limit() const {
    // Memory of its own, not the libraries that it maps, of which a large one takes gigabytes.
    constexpr std::pair<__rlimit_resource, rlim_t> kLimits[] = {
        {RLIMIT_CPU, 10},          {RLIMIT_FSIZE, kMaxConfinedFile},
        {RLIMIT_DATA, 512u << 20}, {RLIMIT_AS, 32ull << 30},
        {RLIMIT_NOFILE, 64},       {RLIMIT_CORE, 0},
        {RLIMIT_MEMLOCK, 0},       {RLIMIT_STACK, 8u << 20},
    };
    for (const auto& [what, most] : kLimits) {
      rlimit now{};
      must(::getrlimit(what, &now) == 0, "cannot limit it");
      // A limit can be below ours already, and raising it takes a right that we need not have.
      const rlimit wanted{std::min(most, now.rlim_max), std::min(most, now.rlim_max)};
      must(::setrlimit(what, &wanted) == 0, "cannot limit it");
    }
    ::umask(022);
  }

  void drop_rights() const {
    // Libraries and folders that only their owner may read are the one thing that it takes a right for.
    constexpr unsigned kKept = 1u << CAP_DAC_READ_SEARCH;
    for (int capability = 0; ::prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; ++capability)
      if (capability != CAP_DAC_READ_SEARCH)
        must(::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0, "cannot drop capabilities");
    ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2]{};
    must(::syscall(SYS_capget, &header, data) == 0, "cannot drop capabilities");
    data[0] = {data[0].effective & kKept, data[0].permitted & kKept, 0};
    data[1] = {};
    must(::syscall(SYS_capset, &header, data) == 0, "cannot drop capabilities");
  }

  [[noreturn]] void execute() const {
    char* const environment[] = {nullptr};
    ::syscall(SYS_execveat, plan_.program, "", arguments_.data(), environment, AT_EMPTY_PATH);
    stop("cannot start it", errno);
  }

  const ChildPlan& plan_;
  std::vector<std::string> texts_;
  std::vector<char*> arguments_;
  SyscallFilter filter_;
};

}  // namespace

void run_child(const ChildPlan& plan) { Child(plan).run(); }

}  // namespace gpulet::hook

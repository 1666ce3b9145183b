#include "agent/resources/container_access.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "base/text.h"
#include "metrics/pods.h"

namespace gpulet::agent {
namespace {

constexpr std::size_t kMaxDevicesListBytes = 1 << 20;
constexpr const char* kCgroupMount = "/sys/fs/cgroup";

bool matches_number(std::string_view text, unsigned number) {
  return text == "*" || text::parse_unsigned(text) == number;
}

// The sorted names of the directories in one of cgroupfs, which says of each entry what it is: a cgroup has
// dozens of files.
std::vector<std::string> list_cgroups(const RootDirectory& mount, const std::string& path) {
  std::vector<std::string> names;
  auto opened = mount.open_file(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!opened) return names;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::fdopendir(opened->get()), ::closedir);
  if (!directory) return names;
  static_cast<void>(opened->release());  // closedir closes it
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    if (entry->d_type == DT_DIR && name != "." && name != "..") names.emplace_back(name);
  }
  std::ranges::sort(names);
  return names;
}

// A container's files are a Pod's to name below its own cgroup: what is found first, counts.
void add_containers(const RootDirectory& mount, const std::string& path, unsigned depth,
                    std::size_t& directories, DeviceCgroups& found) {
  if (depth > kMaxCgroupDepth) return;
  for (const auto& name : list_cgroups(mount, path)) {
    const std::string below = (path == "/" ? "/" : path + "/") + name;
    if (++directories > kMaxCgroupDirectories) return;
    const auto pods = metrics::pod_cgroups("0::" + below);
    if (!pods.empty() && !pods.front().container.empty()) {
      found.containers.emplace(pods.front().container, found.directory + below);
    } else {
      add_containers(mount, below, depth + 1, directories, found);
    }
  }
}

// In the child, after a fork of a process with threads: only calls that are safe in a signal handler.
[[noreturn]] void exit_with_refused_node(const std::vector<const char*>& nodes) {
  for (std::size_t at = 0; at < nodes.size(); ++at) {
    if (::faccessat(AT_FDCWD, nodes[at], R_OK | W_OK, 0) != 0 && errno == EPERM)
      ::_exit(static_cast<int>(at) + 1);
  }
  ::_exit(0);
}

}  // namespace

bool permits_device(std::string_view devices_list, unsigned major, unsigned minor) {
  return std::ranges::any_of(text::split(devices_list, '\n'), [&](const auto& line) {
    const auto words = text::split(line, ' ');
    if (words.size() != 3 || (words[0] != "a" && words[0] != "c")) return false;
    const auto numbers = text::split(words[1], ':');
    return numbers.size() == 2 && matches_number(numbers[0], major) && matches_number(numbers[1], minor) &&
           words[2].find('r') != std::string_view::npos && words[2].find('w') != std::string_view::npos;
  });
}

Result<DeviceCgroups> find_device_cgroups(const std::string& root) {
  const std::string mount = (root == "/" ? "" : root) + kCgroupMount;
  for (const bool is_unified : {false, true}) {
    DeviceCgroups found{.directory = is_unified ? mount : mount + "/devices", .is_unified = is_unified};
    const auto opened = RootDirectory::open_root(found.directory);
    if (!opened) continue;
    std::size_t directories = 0;
    add_containers(*opened, "/", 0, directories, found);
    if (!found.containers.empty()) return found;
  }
  return fail(Code::kNotFound, "no container of a Pod is below it", mount);
}

AccessCheck::AccessCheck(Loop& loop, const DeviceCgroups& cgroups, const std::string& cgroup_directory,
                         std::vector<std::string> nodes, Done done)
    : loop_(loop), nodes_(std::move(nodes)), done_(std::move(done)) {
  const auto answer_later = [this](Answer answer) {
    loop_.post([this, answer = std::move(answer), alive = lifetime_.watch()]() mutable {
      if (alive) answer_once(std::move(answer));
    });
  };
  if (nodes_.size() > kMaxCheckedNodes) {
    answer_later(
        fail(Code::kInvalidArgument, "more than " + std::to_string(kMaxCheckedNodes) + " device nodes"));
  } else if (!cgroups.is_unified) {
    answer_later(read_rules(cgroup_directory));
  } else if (const auto started = start_child(cgroup_directory); !started) {
    answer_later(fail(started.error()));
  }
}

AccessCheck::~AccessCheck() { kill_child(); }

AccessCheck::Answer AccessCheck::read_rules(const std::string& cgroup_directory) const {
  const auto rules = read_file(cgroup_directory + "/devices.list", kMaxDevicesListBytes);
  if (!rules) return fail(rules.error());
  for (const auto& node : nodes_) {
    struct stat facts{};
    if (::stat(node.c_str(), &facts) != 0 || !S_ISCHR(facts.st_mode)) continue;
    if (!permits_device(*rules, major(facts.st_rdev), minor(facts.st_rdev))) return node;
  }
  return std::nullopt;
}

Status AccessCheck::start_child(const std::string& cgroup_directory) {
  const FileDescriptor cgroup(::open(cgroup_directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!cgroup.is_open()) return fail(errno_error("cannot open the cgroup", errno, cgroup_directory));
  std::vector<const char*> paths;
  for (const auto& node : nodes_) paths.push_back(node.c_str());
  int process = -1;
  clone_args arguments{};
  arguments.flags = CLONE_PIDFD | CLONE_INTO_CGROUP;
  arguments.pidfd = reinterpret_cast<std::uintptr_t>(&process);
  arguments.exit_signal = SIGCHLD;
  arguments.cgroup = static_cast<std::uint64_t>(cgroup.get());
  const auto child = ::syscall(SYS_clone3, &arguments, sizeof(arguments));
  if (child == 0) exit_with_refused_node(paths);
  if (child < 0) {
    if (errno == EAGAIN)
      return fail(Code::kUnavailable, "the container is at its limit of processes", cgroup_directory);
    return fail(errno_error("cannot start a process in the cgroup", errno, cgroup_directory));
  }
  child_ = static_cast<pid_t>(child);
  process_ = FileDescriptor(process);
  exited_ = loop_.watch_descriptor(process_.get(), EPOLLIN,
                                   [this](std::uint32_t) { answer_once(wait_for_child()); });
  timeout_ = loop_.after(kAccessCheckTimeout, [this] {
    kill_child();
    answer_once(fail(Code::kDeadlineExceeded, "no answer from the container's cgroup: it is frozen"));
  });
  return {};
}

AccessCheck::Answer AccessCheck::wait_for_child() {
  int status = 0;
  const auto ended = ::waitpid(child_, &status, 0);
  child_ = -1;
  if (ended < 0) return fail(errno_error("cannot wait for the check", errno));
  if (!WIFEXITED(status))  // by the kernel's killer, at the container's memory limit, or with the container
    return fail(Code::kUnavailable, "the check was ended by signal " + std::to_string(WTERMSIG(status)));
  const auto code = static_cast<std::size_t>(WEXITSTATUS(status));
  if (code == 0) return std::nullopt;
  if (code > nodes_.size()) return fail(Code::kIo, "the check ended with " + std::to_string(code));
  return nodes_[code - 1];
}

void AccessCheck::kill_child() {
  if (child_ < 0) return;
  ::kill(child_, SIGKILL);
  // A frozen process is killed at once in cgroup v2.
  ::waitpid(std::exchange(child_, -1), nullptr, 0);
}

void AccessCheck::answer_once(Answer answer) {
  exited_.reset();
  timeout_.reset();
  // `done` may destroy this.
  const auto done = std::move(done_);
  done(std::move(answer));
}

}  // namespace gpulet::agent

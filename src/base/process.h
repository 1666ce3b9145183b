// Child processes: started with a clean environment and chosen descriptors, watched from the loop, killed
// with their parent. Also here: signals as events of the loop, and the lock that marks a running process.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/loop.h"
#include "base/result.h"

namespace gpulet {

struct ProcessOptions {
  std::string program;                     // a path; "/proc/self/exe" is this program
  std::vector<std::string> arguments;      // argv, with the program's name
  std::vector<std::string> environment{};  // "NAME=value"; nothing is inherited
  // {ours, the child's}. Every other descriptor is closed; 0, 1 and 2 default to /dev/null.
  std::vector<std::pair<int, int>> descriptors{};
  // {directory, where} as this process sees them: bind mounts, in this order, in a mount namespace of the
  // child's own. Need CAP_SYS_ADMIN.
  std::vector<std::pair<std::string, std::string>> bind_mounts{};
  std::string root{};               // chroot to this directory if set; needs CAP_SYS_CHROOT
  bool dies_with_parent = true;     // SIGKILL when the thread that started it ends
  std::string working_directory{};  // empty: inherited
  bool own_group = false;           // send_signal also reaches the child's children, as long as it runs
};

struct ProcessExit {
  int code = 0;    // exit status; meaningless if a signal ended it
  int signal = 0;  // 0 if it exited by itself
  bool succeeded() const { return code == 0 && signal == 0; }
  std::string exit_text() const;  // "exit code 1", "signal 9 (Killed)"
};

// Whether this thread has the capability in effect: CAP_SYS_CHROOT… of <linux/capability.h>.
bool has_capability(int capability);

// The directory of this program's file: "/usr/bin".
std::string program_directory();

class Process {
 public:
  // Starts the program with all signals unblocked and at their default action, and returns once exec has
  // succeeded. Errors: kNotFound, kPermissionDenied, kIo, about the program, its working directory or its
  // mounts. Any thread.
  static Result<std::unique_ptr<Process>> spawn(const ProcessOptions& options);

  // Kills the process if it still runs.
  ~Process();
  Process(const Process&) = delete;

  pid_t pid() const { return pid_; }
  // Ready to read once the process has ended.
  int descriptor() const { return pidfd_.get(); }

  // Calls `ended` once from the loop when the process has ended, unless this object is destroyed before.
  // Loop's thread only.
  void on_exit(Loop& loop, std::function<void(const ProcessExit&)> ended);

  // No effect after its end.
  void send_signal(int signal);

  // Blocks until the process ends, at most `limit`. Errors: kDeadlineExceeded.
  Result<ProcessExit> wait_for_exit(Duration limit);

 private:
  Process(pid_t id, FileDescriptor pidfd, bool group) : pid_(id), group_(group), pidfd_(std::move(pidfd)) {}
  std::optional<ProcessExit> reap();

  pid_t pid_;
  bool group_;
  FileDescriptor pidfd_;
  std::optional<ProcessExit> exit_;
  Subscription watching_;
};

// Closes every descriptor from `first` on.
void close_from(int first);

// Signals as events of the loop through signalfd; no handler interrupts the loop's thread.

class SignalWatcher {
 public:
  // Calls `received` from the loop for each of `signals` (SIGTERM…). Blocks them in this thread and those it
  // starts later: call it before any other thread exists. Errors: kIo.
  static Result<std::unique_ptr<SignalWatcher>> watch_signals(Loop& loop, std::initializer_list<int> signals,
                                                              std::function<void(int)> received);
  // Unblocks them.
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;

 private:
  SignalWatcher(FileDescriptor fd, sigset_t before) : fd_(std::move(fd)), before_(before) {}

  FileDescriptor fd_;
  sigset_t before_;
  Subscription reading_;
};

// Shows that a process runs by a file lock that it holds while it lives. The kernel releases it with the
// process, so a crash leaves nothing behind and no reused process id can mislead. The file stays, without
// content. A FileWatcher on it reports the end of the process, because the kernel closes the file then.

class ProcessLock {
 public:
  // Locks `path` until this object is destroyed; creates the file (0644) and its directories. Children do not
  // hold the lock (closed on exec). Errors: kFailedPrecondition if another process holds it; errno_error's.
  static Result<ProcessLock> acquire_lock(const std::string& path);

  // The same, but blocks for as long as another process holds it: for a thread of its own.
  static Result<ProcessLock> wait_for_lock(const std::string& path);

  // Whether any process holds the lock, this one included. Takes no lock. False if there is no file. Errors:
  // kPermissionDenied, kIo.
  static Result<bool> is_locked(const std::string& path);

 private:
  explicit ProcessLock(FileDescriptor fd) : fd_(std::move(fd)) {}
  static Result<ProcessLock> lock_file(const std::string& path, int command);
  FileDescriptor fd_;
};

}  // namespace gpulet

// A child process: started from a clean environment with chosen descriptors, seen to end on the loop, and
// gone when we are.
#pragma once

#include <sys/types.h>

#include <functional>
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
  std::string program;                     // a path; "/proc/self/exe" is this very program
  std::vector<std::string> arguments;      // argv, its first is the name that the program is called by
  std::vector<std::string> environment{};  // "NAME=value"; nothing else is inherited
  // {ours, its}. Every other descriptor is closed. 0, 1 and 2 are /dev/null unless named here.
  std::vector<std::pair<int, int>> descriptors{};
  std::string root{};  // when given, it has this for "/" (chroot, which takes CAP_SYS_CHROOT)
  bool dies_with_parent = true;  // SIGKILL when the thread that started it ends
  std::string folder{};          // its working directory; empty: ours
  bool own_group = false;        // signals reach what it has started too, as long as it runs itself
};

struct ProcessExit {
  int code = 0;    // its exit status; meaningless when a signal ended it
  int signal = 0;  // what ended it, 0 when it exited by itself
  bool ok() const { return code == 0 && signal == 0; }
  std::string text() const;  // "exit code 1", "signal 9 (Killed)"
};

// Where the file of this very program lies: "/usr/bin".
std::string program_folder();

class Process {
 public:
  // Starts it; signals are unblocked and have their default action in it. Returns once the program runs, so
  // that one that cannot be executed is an error here (kNotFound, kPermissionDenied, kIo), about the program or
  // its folder. Any thread.
  static Result<std::unique_ptr<Process>> start(const ProcessOptions& options);

  // Kills it if it still runs.
  ~Process();
  Process(const Process&) = delete;

  pid_t id() const { return id_; }
  // Ready to read once the process has ended.
  int descriptor() const { return pidfd_.get(); }

  // Calls `ended` from the loop, once, when it has ended; never when this object is gone before. Loop's thread only.
  void on_exit(Loop& loop, std::function<void(const ProcessExit&)> ended);

  // Does nothing when it has ended.
  void send_signal(int signal);

  // Waits at most `limit` for its end, without the loop. Errors: kDeadlineExceeded.
  Result<ProcessExit> wait(Duration limit);

 private:
  Process(pid_t id, FileDescriptor pidfd, bool group) : id_(id), group_(group), pidfd_(std::move(pidfd)) {}
  std::optional<ProcessExit> reap();

  pid_t id_;
  bool group_;
  FileDescriptor pidfd_;
  std::optional<ProcessExit> exit_;
  Subscription watching_;
};

// Closes every descriptor from `first` on.
void close_from(int first);

}  // namespace gpulet

// Finds and runs programs of the driver, above all nvidia-cuda-mps-control: commands go in, the
// output comes out, on the loop and within a time limit.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/loop.h"
#include "base/process.h"
#include "base/result.h"

namespace gpulet::mps {

inline constexpr std::string_view kControlProgram = "nvidia-cuda-mps-control";
inline constexpr std::size_t kMaxOutputBytes = 64u << 10;

// The path of a program of the driver: in the bin directories below `driver_root`, else in the
// system's own (where the container toolkit puts it). Links are resolved inside the root. Errors:
// kNotFound, with the directories searched.
Result<std::string> find_driver_program(const std::string& driver_root, std::string_view name);

// PATH and LD_LIBRARY_PATH for programs of the driver. Nothing else is inherited.
std::vector<std::string> driver_environment(const std::string& driver_root);

// One run of a program.
class ProgramCall {
 public:
  struct Request {
    std::string program;
    std::vector<std::string> arguments{};  // after the program's name
    std::vector<std::string> environment{};
    std::string input{};         // its complete standard input
    bool spawns_daemon = false;  // child processes survive this one
  };
  // `done` is called once from the loop with the program's output if it exits with 0. Destroying
  // this object kills the program, and `done` is not called. `done` may destroy this object.
  // Errors: kNotFound, kPermissionDenied and kIo, returned directly, if the program does not start;
  // kUnavailable with its output if it fails; kDeadlineExceeded after `limit`.
  static Result<std::unique_ptr<ProgramCall>> start_call(Loop& loop, const Request& request, Duration limit,
                                                         std::function<void(Result<std::string>)> done);
  ProgramCall(const ProgramCall&) = delete;

 private:
  ProgramCall() = default;
  void end(Result<std::string> result);
  void read_output();

  std::function<void(Result<std::string>)> done_;
  std::string name_;
  std::string output_text_;
  FileDescriptor output_;
  Subscription reading_, limit_;
  std::unique_ptr<Process> process_;
};

// The process of a control daemon that runs in the background: finds it by the pid file of its pipe
// directory, watches it and kills it. Containers can write to that directory, so the pid counts
// only if the process runs this program and was started for this directory.
class DaemonProcess {
 public:
  // Errors: kNotFound if there is no such process; otherwise the error of reading the file.
  static Result<std::unique_ptr<DaemonProcess>> find_daemon_process(const std::string& pipe_directory);

  pid_t id() const { return id_; }
  // Calls `ended` from the loop, once; it may destroy this object. A later call replaces an earlier
  // one.
  void on_end(Loop& loop, std::function<void()> ended);
  void kill();

 private:
  DaemonProcess(pid_t id, FileDescriptor pidfd) : id_(id), pidfd_(std::move(pidfd)) {}
  pid_t id_;
  FileDescriptor pidfd_;
  Subscription watching_;
};

}  // namespace gpulet::mps

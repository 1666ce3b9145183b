// Finds and runs programs of the driver, above all nvidia-cuda-mps-control: commands go in, the
// output comes out, on the loop and within a time limit.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/driver_root.h"
#include "base/file.h"
#include "base/loop.h"
#include "base/process.h"
#include "base/result.h"

namespace gpulet::mps {

inline constexpr std::string_view kControlProgram = "nvidia-cuda-mps-control";
inline constexpr std::size_t kMaxOutputBytes = 64u << 10;

// The question that every daemon answers, with one number: "50.0". Source: k8s-device-plugin v0.20.0,
// internal/plugin/mps.go, which asks it before it offers a share.
inline constexpr std::string_view kThreadPercentageCommand = "get_default_active_thread_percentage\n";
// The same of one with static SM partitioning, whose percentage does not count: a line for each partition.
inline constexpr std::string_view kListPartitionsCommand = "lspart\n";
// Whether the last line of a daemon's output is this percentage, 1 to 100, to a twentieth.
bool holds_thread_percentage(const std::string& output, unsigned percentage);
// The lines of a daemon's output without spaces around them; no empty ones.
std::vector<std::string> lines_of_output(const std::string& output);

// The control program of the daemons below one MPS root, and the path by which it knows that root.
struct ControlProgram {
  DriverProgram program;
  std::string root;  // in the environment of the program: "/run/nvidia/mps"
};
// A program that starts by chroot gets the MPS root at a path of the driver root that leads to the same
// directory, or a mount over such a path, and `shm` (client_shm_directory()) as its /dev/shm, where a tmpfs
// is mounted for it. Without such a path it starts by the driver root's loader. `root`: the MPS root as this
// process sees it; `host_root`: as the host does, may be empty. Errors: those of find_driver_program.
Result<ControlProgram> find_control_program(const std::string& driver_root, const std::string& root,
                                            const std::string& host_root, const std::string& shm);

// One run of a program.
class ProgramCall {
 public:
  struct Request {
    DriverProgram program;
    std::vector<std::string> arguments{};    // after the program's name
    std::vector<std::string> environment{};  // beside the program's own
    std::string input{};                     // its complete standard input
    bool spawns_daemon = false;              // child processes survive this one
  };
  // `done` is called once from the loop with the program's output if it exits with 0. Destroying
  // this object kills the program, and `done` is not called. `done` may destroy this object.
  // Errors: kNotFound, kPermissionDenied and kIo, returned directly, if the program does not start;
  // kUnavailable with its output if it fails; kIo if a signal ends it; kDeadlineExceeded after `limit`.
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

// When a process of this PID namespace started, in clock ticks since the boot: with its id the identity of a
// process, because ids are reused. nullopt if there is none. Source: proc_pid_stat(5), starttime.
std::optional<std::uint64_t> process_start_time(pid_t pid);

// The process of a control daemon that runs in the background: finds it by the pid file of its pipe
// directory, watches it and kills it. Containers can write to that directory, so the pid counts
// only if the process runs this program and was started for this directory.
class DaemonProcess {
 public:
  // `own_name`: the directory as the daemon knows it; empty: the same. Errors: kNotFound if there is no such
  // process; otherwise the error of reading the file.
  static Result<std::unique_ptr<DaemonProcess>> find_daemon_process(const std::string& pipe_directory,
                                                                    const std::string& own_name = {});

  pid_t id() const { return id_; }
  // "42 started 123456": its id, and when it started by process_start_time(). No other process has it before
  // the next boot.
  std::string identity() const { return std::to_string(id_) + " started " + std::to_string(start_time_); }
  // Calls `ended` from the loop, once; it may destroy this object. A later call replaces an earlier
  // one.
  void on_end(Loop& loop, std::function<void()> ended);
  void kill();

 private:
  DaemonProcess(pid_t id, std::uint64_t start_time, FileDescriptor pidfd)
      : id_(id), start_time_(start_time), pidfd_(std::move(pidfd)) {}
  pid_t id_;
  std::uint64_t start_time_;
  FileDescriptor pidfd_;
  Subscription watching_;
};

}  // namespace gpulet::mps

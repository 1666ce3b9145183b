// The simulated MPS control daemon as a process: its pipe directory, log, servers and connections of clients
// and of the control program. It uses the machine whose driver root contains the program. Also the calls of
// its peers, which find it by its pipe directory: commands, CUDA clients, and faults injected by gpulet-sim.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "sim/mps/control.h"
#include "sim/mps/namespaces.h"

namespace gpulet::sim::mps {

struct DaemonOptions {
  std::string pipe_directory = "/tmp/nvidia-mps";     // CUDA_MPS_PIPE_DIRECTORY
  std::string log_directory = "/var/log/nvidia-mps";  // CUDA_MPS_LOG_DIRECTORY
  std::string visible_devices;                        // CUDA_VISIBLE_DEVICES; empty: all
  std::string active_thread_percentage;               // CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; empty: 100
  std::string state;                                  // the simulated machine's state file
  bool log_to_output = false;                         // -f: also log to standard output
  unsigned protocol = 2;                              // -p: 3 is sim/mps/namespaces.h
  bool is_multi_user = false;                         // -m, of protocol 3
  bool has_sm_partitions = false;                     // -S, of protocol 2
};

// Returns the devices of `options.visible_devices` in its order, up to the first that does not exist: GPUs by
// index or UUID (or its prefix), MIG devices by UUID. A GPU in MIG mode is not one. Errors: kUnavailable
// without a driver or device.
Result<std::vector<VisibleDevice>> visible_devices(const DaemonOptions& options);

// Serves until `quit`. Calls `ready` once it listens. Errors: those of visible_devices; kFailedPrecondition,
// "An instance of this daemon is already running"; errors of its files and socket.
Status run_daemon(const DaemonOptions& options, const std::function<void()>& ready);

// File names in the pipe directory.
inline constexpr std::string_view kSocketName = "control";
inline constexpr std::string_view kLockName = "control_lock";
inline constexpr std::string_view kPidName = "nvidia-cuda-mps-control.pid";
inline constexpr std::string_view kDelayName = "simulated_delay_ms";  // written by gpulet-sim mps slow

inline constexpr std::string_view kClientHello = "CLIENT ";
// Before the arguments of the control program, which kArgumentEnd separates. The answer begins with the exit
// code and a line end. Protocol 2 has no such commands.
inline constexpr std::string_view kArgumentsHello = "ARGUMENTS ";
inline constexpr char kArgumentEnd = '\x1f';
// What a client reads when terminate_client has ended its work; without it, a daemon that quits ends its
// server with the client's work in flight.
inline constexpr std::string_view kClientTerminated = "terminated\n";

// Sends one command and returns the output. Waits without a limit, like the real one. Errors: kUnavailable,
// "Cannot find MPS control daemon process".
Result<std::string> send_command(const std::string& pipe_directory, const std::string& command);

// Runs the control program's arguments ("server", "list"; "-q") at a daemon of protocol 3. Errors: those of
// send_command.
Result<Answer> send_arguments(const std::string& pipe_directory, const std::vector<std::string>& arguments);

// A CUDA process, client of the daemon while `connection` is open.
struct AttachedClient {
  FileDescriptor connection;
  std::string limits_text;  // "threads 25.0 memory 0=4096M"; "threads 100.0 sms 56" with -S
};
// Connects as a client; with protocol 3, of the namespace whose pipe directory it is. `threads` and `memory`
// have the form of CUDA_MPS_ACTIVE_THREAD_PERCENTAGE and CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, `partition` that
// of CUDA_MPS_SM_PARTITION; empty for none. Errors: those of send_command; kFailedPrecondition if refused.
Result<AttachedClient> attach_client(const std::string& pipe_directory, const std::string& threads,
                                     const std::string& memory, const std::string& partition = {});

// Returns the daemon's pid in this process's PID namespace. Errors: kUnavailable.
Result<pid_t> daemon_pid(const std::string& pipe_directory);

// Kills the daemon, as a crash would.
Status crash_daemon(const std::string& pipe_directory);
// Makes it accept connections without responding, until restore_daemon.
Status hang_daemon(const std::string& pipe_directory);
// Delays each response; 0 ends it.
Status delay_daemon(const std::string& pipe_directory, unsigned milliseconds);
// Ends hang_daemon and delay_daemon.
Status restore_daemon(const std::string& pipe_directory);

}  // namespace gpulet::sim::mps

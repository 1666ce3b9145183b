// Supervises one MPS control daemon: starts it with its limits, watches it, restarts it when it
// dies or hangs, and restores everything it changed when it stops. All on the loop; nothing blocks.
//
// The daemon is a separate process that survives the agent, though not always the agent's
// container. After a crash of the agent its clients go on, and the next agent adopts the daemon if
// it serves the same devices, and has the SM partitions that `.sm-partitions` lists: containers name them in
// their environment. The record for that is `<root>/<name>/.started`, which no container
// can write. It names the daemon by process id and start time, so that another process with a reused id
// is never adopted. It exists from before the first change until everything is restored, and has the
// limits only while the daemon is known to have them. What Pods have set in namespaces is in `.namespaces`
// beside it, which outlives the daemon: their containers may come back to a new one.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "inventory/snapshot.h"
#include "mps/control_program.h"
#include "mps/plan.h"

namespace gpulet::mps {

enum class ComputeMode { kDefault, kExclusiveProcess };
// Sets the compute mode of a GPU and calls `done` on the loop, once. kUnsupported is not treated as
// a failure.
using SetComputeMode = std::function<void(const DeviceUuid&, ComputeMode, std::function<void(Status)>)>;

struct DaemonOptions {
  std::string root = "/mps";                 // the MPS root, as this process sees it
  std::string driver_root = "/driver-root";  // as this process sees it
  std::string host_root{};                   // the MPS root, as the host sees it; empty: as `root`
  Duration start_limit = std::chrono::seconds(15);
  Duration response_limit = std::chrono::seconds(5);
  Duration check_interval = std::chrono::seconds(10);  // between two liveness checks
  Duration quit_grace = std::chrono::seconds(15);      // from `quit` to SIGKILL
  BackoffLimits retry{std::chrono::milliseconds(200), std::chrono::seconds(30)};
  std::uint64_t seed = 0;
  // The control program says that it has not protocol 3, which a spec wants: one line. From the loop.
  std::function<void(const std::string& why)> protocol_missing{};
};

// Failed liveness checks in a row after which the daemon is killed and restarted. Its devices are
// unhealthy from the first failure on.
inline constexpr unsigned kMaxUnanswered = 2;
inline constexpr std::size_t kMaxWaitingCommands = 256;
// Bounded: a pipe takes the commands for all of them. A server has at most 60 clients.
inline constexpr std::size_t kMaxListedProcesses = 512;

// Use it on the loop's thread only. The destructor leaves the daemon running.
class Daemon {
 public:
  // `health` is called on each change, possibly from inside start_daemon(); it must not destroy
  // this object.
  Daemon(Loop& loop, DaemonSpec spec, DaemonOptions options, SetComputeMode set_compute_mode,
         std::function<void(const inventory::Health&)> health);
  ~Daemon();
  Daemon(const Daemon&) = delete;

  const DaemonSpec& spec() const { return spec_; }
  const inventory::Health& daemon_health() const { return health_; }

  // Retries until the daemon runs. Call it once.
  void start_daemon();
  // Applies other limits or resources for the same devices to the running daemon and its servers.
  // Existing clients keep their limits. Precondition: serves_same_devices(spec(), spec).
  void update_spec(DaemonSpec spec);
  // Sets a namespace's limits, which stay until the next call for it, also in a daemon that replaces this
  // one; reads them back. `done` is called once, from the loop, not after this object is destroyed. Errors:
  // kNotFound without such a namespace; kUnavailable before the start, while the daemon does not respond and
  // from the stop on, but during a start it waits for its end, without a limit; the control program's
  // error; kUnavailable if the value read back differs; that of the file of the limits that Pods hold.
  void set_namespace(const std::string& name, const NamespaceLimits& limits,
                     std::function<void(Status)> done);
  // Of the share, while the daemon is healthy; empty without SM partitions.
  std::string sm_partition_id(const DeviceId& share) const;
  // Ends the work of those of the first kMaxListedProcesses processes that are clients; `done` as above. What
  // the daemon refuses does not matter: who is no client has no work here.
  void end_clients(std::vector<unsigned> pids, std::function<void()> done);

  // Stops the daemon: ends the work of its clients (terminate_client), because a server that is killed with
  // work in flight may hang every later one; then quits it, with SIGKILL after the grace period for all.
  // Restores the compute mode, removes .started and the log (all of a claim's), then calls `done`, which may
  // destroy this object. No health is reported any more. Call it once, at any time.
  void stop_daemon(std::function<void()> done);

 private:
  enum class State { kIdle, kStarting, kRunning, kWaiting, kStopping };
  using Completion = std::function<void(Result<std::string>)>;
  using Step = void (Daemon::*)();

  struct Command {
    std::vector<std::string> arguments{};
    std::string input{};
    Duration limit{};
    Completion done{};
    bool is_own = false;  // of the sequences below; else of a caller, who waits for `done`
  };

  // The start sequence, in order.
  void begin_start();
  void check_protocol();
  void prepare_start();
  void set_modes(std::size_t next, ComputeMode mode, Step then);
  void stop_former_process();
  void remove_other_pipes();
  void adopt_former_process();
  void await_former_exit(Step then);
  void launch();
  void send_limits();
  void on_limits(const std::string& output);
  void send_server_limits();
  void on_running();

  void on_failure(const Error& error);
  void on_died();
  void schedule_check();
  void check_responding();
  void on_unanswered(const Error& error);

  void quit();
  void end_clients_of(std::vector<std::string> servers);
  void send_quit(Completion done = [](const Result<std::string>&) {});
  void clean_up();
  void on_stopped();

  // Own: in place of the own one that runs or waits.
  void run_command(std::vector<std::string> arguments, std::string input, Duration limit, Completion done);
  void run_for_caller(std::vector<std::string> arguments, std::string input, Completion done);
  void start_command(Command command);
  void start_next_command();
  // The callers of those that run or wait get an error.
  void drop_commands();

  // Of either protocol (daemon_namespaces.cpp).
  bool has_namespaces() const { return spec_.protocol == kProtocolWithNamespaces; }
  std::string serving_command() const;  // of protocol 2
  void check_serving(Completion done);
  bool serves_with_limits(const std::string& output) const;
  // SM partitions (daemon_partitions.cpp). They are made once, before the daemon has clients, and stay.
  bool has_sm_partitions() const { return !spec_.sm_partitions.empty(); }
  void check_sm_partitions(const std::string& list);
  void make_sm_partitions(std::size_t device, unsigned chunks);
  void on_sm_partitions(std::size_t device, unsigned chunks, const std::string& output);
  bool lists_sm_partitions(const std::string& list) const;
  void read_sm_partitions();
  Status write_sm_partitions() const;
  std::string sm_partitions_file() const { return options_.root + "/" + spec_.name + "/.sm-partitions"; }
  // Of protocol 3.
  using Check = std::function<bool(const std::string& output)>;
  struct Question {
    std::vector<std::string> arguments;
    Check check{};          // of its answer
    bool may_fail = false;  // but not by a time-out
  };
  // One after the other, as own commands or a caller's; `done` with the first error.
  void run_steps(std::vector<Question> steps, bool is_own, std::function<void(Status)> done);
  void run_step(std::shared_ptr<std::vector<Question>> steps, std::size_t index, bool is_own,
                std::function<void(Status)> done);
  void send_namespaces();
  void await_server(Time until);
  void send_namespace_limits();
  void on_namespaces(const Status& sent);
  // All of the daemon's. Errors: those of asking for them; a time-out.
  void end_namespace_clients(const char* why, std::function<void(Status)> done);
  void set_recorded_namespaces();
  void refuse_recorded_namespaces();
  std::vector<Question> limit_steps(const std::string& name, const NamespaceLimits& limits) const;
  NamespaceLimits limits_in_force(const ShareNamespace& space) const;
  Status read_held();
  Status write_held();
  std::string held_file() const { return options_.root + "/" + spec_.name + "/.namespaces"; }
  bool may_adopt() const;
  bool ran_with_these_devices() const;
  bool runs_with_namespaces() const;
  void watch_process();
  std::string fingerprint(const DaemonProcess* process, bool with_limits) const;
  // Null: none that may be adopted.
  Status write_record(const DaemonProcess* process, bool with_limits) const;
  std::string limit_commands() const;
  void set_health(inventory::Health health);
  unsigned other_protocol() const { return has_namespaces() ? 2 : kProtocolWithNamespaces; }
  std::string pipes() const { return pipe_directory(options_.root, spec_.name, process_protocol_); }
  std::string client_shm() const { return client_shm_directory(options_.root, spec_.name); }
  Result<ControlProgram> find_program() const;
  // The process of the pid file in pipes().
  Result<std::unique_ptr<DaemonProcess>> find_process() const;

  Loop& loop_;
  DaemonSpec spec_;
  DaemonOptions options_;
  SetComputeMode set_compute_mode_;
  std::function<void(const inventory::Health&)> on_health_;
  std::function<void()> stopped_;

  State state_ = State::kIdle;
  inventory::Health health_{false, "not started"};
  bool health_reported_ = false;
  bool launching_ = false;        // a process that becomes the daemon is running
  bool limits_changed_ = false;   // and not sent yet
  bool modes_changed_ = false;    // and not restored yet
  bool launched_ = false;         // and the limits were not in force yet
  bool replaces_former_ = false;  // and .started is no more about the daemon before it
  unsigned unanswered_ = 0;
  std::optional<ControlProgram> program_;
  std::unique_ptr<DaemonProcess> process_;  // null if unknown
  std::unique_ptr<ProgramCall> call_;
  Command current_;                                // of call_
  std::deque<Command> waiting_;                    // one control command at a time
  std::map<DeviceId, std::string> sm_partitions_;  // the ids, by share
  std::map<std::string, NamespaceLimits> held_;    // by namespace: other limits than the share's
  bool has_read_held_ = false;
  struct RecordedLimits {
    std::string name;
    NamespaceLimits limits;
    std::function<void(Status)> done;
  };
  std::deque<RecordedLimits> recorded_;  // in held_; they wait until the daemon runs
  bool has_checked_protocol_ = false;
  unsigned process_protocol_;  // of the daemon that commands go to: the spec's, or of one before it
  Subscription timer_;
  Backoff backoff_;
  Lifetime lifetime_;
  std::uint64_t round_ = 0;  // discards compute mode results of an earlier round
};

// Reads the spec in `.started` below `root`, as far as stop_daemon() needs it. Errors: kNotFound;
// kInvalidArgument for a file of another writer.
Result<DaemonSpec> read_former_daemon(const std::string& root, const std::string& name);

// Whether one spec can replace the other without a new process.
bool serves_same_devices(const DaemonSpec& a, const DaemonSpec& b);

// Sets a GPU's compute mode with the driver's nvidia-smi, for programs without a driver session.
// NVIDIA's daemon does the same. Each call runs nvidia-smi, one at a time. Errors: those of ProgramCall. Do
// not call the function after `loop` is destroyed; calls in progress end with its last copy.
SetComputeMode nvidia_smi_compute_mode(Loop& loop, std::string driver_root,
                                       Duration limit = std::chrono::seconds(30));

}  // namespace gpulet::mps

// One MPS control daemon under care: started with its limits, watched, started again when it dies or hangs,
// stopped with all it changed put back. Everything on the loop, nothing waits.
//
// The daemon is a process of its own that outlives us, but for what a container's end takes with it: when the
// agent is killed, containers go on, and the next agent takes the daemon over if it was started for the same
// devices. What is needed for that is in
// `<root>/<name>/.started`, which no container can write.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/backoff.h"
#include "base/loop.h"
#include "inventory/snapshot.h"
#include "mps/control.h"
#include "mps/daemon_process.h"
#include "mps/plan.h"

namespace gpulet::mps {

enum class ComputeMode { kDefault, kExclusiveProcess };
// Sets the compute mode of a GPU and calls `done` on the loop, once. kUnsupported is no obstacle.
using SetComputeMode = std::function<void(const DeviceUuid&, ComputeMode, std::function<void(Status)>)>;

struct DaemonOptions {
  std::string root = "/mps";                 // the MPS root, as this process sees it
  std::string driver_root = "/driver-root";  // as this process sees it
  Duration start_limit = std::chrono::seconds(15);
  Duration answer_limit = std::chrono::seconds(5);
  Duration check_interval = std::chrono::seconds(10);  // between two questions whether it still answers
  Duration quit_grace = std::chrono::seconds(15);      // from `quit` until it is killed
  BackoffLimits retry{std::chrono::milliseconds(200), std::chrono::seconds(30)};
  std::uint64_t seed = 0;
};

// Unanswered questions in a row after which it is killed and started again. Its devices are unhealthy from
// the first on.
inline constexpr unsigned kMaxUnanswered = 2;

// Loop's thread only. Destroying it leaves the daemon running.
class Daemon {
 public:
  // `health` is called on each change of it, perhaps from inside start(); it must not destroy this object.
  Daemon(Loop& loop, DaemonSpec spec, DaemonOptions options, SetComputeMode set_compute_mode,
         std::function<void(const inventory::Health&)> health);
  ~Daemon();
  Daemon(const Daemon&) = delete;

  const DaemonSpec& spec() const { return spec_; }
  const inventory::Health& health() const { return health_; }

  // Tries until it runs. Once.
  void start();
  // Other limits or resources for the same devices: told to the daemon and its servers as they run. Their
  // clients keep what they began with. Precondition: serves_same_devices(spec(), spec).
  void change(DaemonSpec spec);
  // Ends the daemon, by force after the grace, sets the compute mode back, removes .started and the log, then
  // calls `done`, which may destroy this object. No health is told any more. Once, at any time.
  void stop(std::function<void()> done);

 private:
  enum class State { kIdle, kStarting, kRunning, kWaiting, kStopping };
  using Answer = std::function<void(Result<std::string>)>;
  using Step = void (Daemon::*)();

  // The way up, one after the other.
  void begin();
  void set_modes(std::size_t next, ComputeMode mode, Step then);
  void end_former();
  void await_former_end();
  void launch();
  void tell_limits();
  void on_limits(const std::string& answer);
  void tell_servers();
  void on_running();

  void failed(const Error& error);
  void on_died();
  void schedule_check();
  void check();
  void on_unanswered(const Error& error);

  void quit();
  void clean_up();
  void finish();

  void run(std::vector<std::string> arguments, std::string input, Duration limit, Answer done);
  bool may_adopt() const;
  void watch_process();
  std::string fingerprint(pid_t pid, bool with_limits) const;
  std::string limit_commands() const;
  void tell(inventory::Health health);
  std::string pipes() const { return pipe_directory(options_.root, spec_.name); }

  Loop& loop_;
  DaemonSpec spec_;
  DaemonOptions options_;
  SetComputeMode set_compute_mode_;
  std::function<void(const inventory::Health&)> tell_health_;
  std::function<void()> stopped_;

  State state_ = State::kIdle;
  inventory::Health health_{false, "not started"};
  bool health_told_ = false;
  bool launching_ = false;       // a process that becomes the daemon runs
  bool limits_changed_ = false;  // and not told yet
  bool modes_changed_ = false;   // to be set back
  unsigned unanswered_ = 0;
  std::string program_;
  std::unique_ptr<DaemonProcess> process_;  // null where it is not known
  std::unique_ptr<ProgramCall> call_;
  Subscription timer_;
  Backoff backoff_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::uint64_t round_ = 0;  // answers about the compute mode of an earlier round are not for us
};

// The one that a `.started` below `root` tells of, as far as stop() needs it. Errors: kNotFound;
// kInvalidArgument for a file that is not ours.
Result<DaemonSpec> former_daemon(const std::string& root, const std::string& name);

// Whether one can become the other without a new process.
bool serves_same_devices(const DaemonSpec& a, const DaemonSpec& b);

}  // namespace gpulet::mps

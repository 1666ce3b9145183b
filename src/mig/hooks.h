// Reads and runs mig-parted's hooks file: commands that an operator runs around a MIG change, to stop what
// uses a GPU and to start it again.
//
//   version: v1
//   hooks:
//     apply-start:                     # once, before any change
//       - command: /bin/bash           # an absolute path
//         args: ["-c", "logger changing MIG to $MIG_PARTED_SELECTED_CONFIG"]
//         envs: {LANG: C}
//         workdir: /etc/mig            # default: "/"
//     pre-apply-mode: []               # before a GPU's mode changes
//     pre-apply-config: []             # before a GPU's instances change
//     apply-exit: []                   # once, at the end, whatever the outcome
//
// Source: mig-parted v0.15.0, api/hooks/v1/hooks.go, cmd/nvidia-mig-parted/apply/hooks.go.
#pragma once

#include <array>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "base/result.h"

namespace gpulet::mig {

enum class HookPoint { kApplyStart, kPreApplyMode, kPreApplyConfig, kApplyExit };
inline constexpr std::size_t kHookPoints = 4;
// "apply-start".
std::string_view hook_point_name(HookPoint point);

struct Hook {
  std::string command;  // an absolute path
  std::vector<std::string> args;
  std::map<std::string, std::string> envs;
  std::string workdir = "/";
  std::string location;  // "path:line:column"; for messages
};

struct HooksFile {
  std::string path;
  std::array<std::vector<Hook>, kHookPoints> hooks;  // by point, each in file order
  const std::vector<Hook>& at(HookPoint point) const { return hooks[static_cast<std::size_t>(point)]; }
};

// Errors: kInvalidArgument about "path:line:column", with the field, what was found and what was
// expected.
Result<HooksFile> parse_hooks_file(std::string_view text, const std::string& path);

// Loads the file at `path`. Errors: those of parse_hooks_file and base/file.h.
Result<HooksFile> load_hooks_file(const std::string& path);

// Time limit of each command. Stopping a node's services takes minutes.
inline constexpr Duration kHookLimit = std::chrono::minutes(5);
// From SIGKILL until the runner gives up on the process, which may hang in a driver.
inline constexpr Duration kHookKillLimit = std::chrono::seconds(5);
// Limit for one command's output; further lines are counted only.
inline constexpr unsigned kMaxHookLines = 500;
inline constexpr std::size_t kMaxHookLineBytes = 1024;
// Outputs that stay open after their command's exit; beyond it the oldest is closed.
inline constexpr std::size_t kMaxOpenOutputs = 16;

// Runs the operator's hook commands: one child process after another, without blocking the loop.
// Each command gets only its own variables, /dev/null as standard input and its working directory;
// its output goes to the log, line by line. At the limit it is killed with all its child processes.
// What it leaves running when it exits is not touched.
// Use it on the loop's thread only. The destructor kills what runs.
class HookRunner {
 public:
  explicit HookRunner(Loop& loop, Duration limit = kHookLimit);
  ~HookRunner();
  HookRunner(const HookRunner&) = delete;

  // Runs the file's commands of `point` in order, until one fails. A hook's own variables override
  // `environment`, as in mig-parted. `done` is called once from the loop, never from inside this
  // call and never after destruction. Precondition: the previous run is done.
  // Errors name the hook's position in its file: kFailedPrecondition if it exits with another code
  // than 0 or is killed by a signal; kDeadlineExceeded; those of starting it (base/process.h).
  void run_hooks(const HooksFile& file, HookPoint point, std::map<std::string, std::string> environment,
                 std::function<void(Status)> done);

 private:
  struct Command;

  void start_next_hook();
  Status start_hook(const Hook& hook);
  void kill_command(Command& command);
  void read_output(Command& command);
  void end_output(Command& command);
  void remove_if_done(Command& command);
  void log_line(Command& command, std::string_view line);
  void on_command_end(Command& command, const Status& status);
  std::string limit_text() const;
  void report_result(Status status);

  Loop& loop_;
  Duration limit_;
  std::string point_;
  std::vector<Hook> hooks_;
  std::map<std::string, std::string> environment_;
  std::function<void(Status)> done_;
  std::size_t next_ = 0;
  std::list<Command> commands_;  // the running one, and those whose output is still open
  Command* running_ = nullptr;
  Subscription timer_;
};

}  // namespace gpulet::mig

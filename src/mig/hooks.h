// Runs an operator's hooks (hooks_file.h): one child process after the other, without holding the loop up.
//
// Each gets nothing but the variables that it is given, /dev/null to read, and its folder; what it writes
// goes into the log, line by line. One that has not ended at the limit is killed, with all that it started.
// What it leaves running on purpose when it ends is left alone.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "mig/hooks_file.h"

namespace gpulet::mig {

// For each command. Stopping the services of a node takes minutes.
inline constexpr Duration kHookLimit = std::chrono::minutes(5);
// From killing one until it is given up: it hangs in a driver, say, and ends when that lets it.
inline constexpr Duration kHookKillLimit = std::chrono::seconds(5);
// Of one command's output; the rest is counted.
inline constexpr unsigned kMaxHookLines = 500;
inline constexpr std::size_t kMaxHookLineBytes = 1024;
// Outputs that are still read after their command's end; of more, the oldest are closed.
inline constexpr std::size_t kMaxLeftOpen = 16;

// Loop's thread only. Destroying it kills what runs.
class HookRunner {
 public:
  explicit HookRunner(Loop& loop, Duration limit = kHookLimit);
  ~HookRunner();
  HookRunner(const HookRunner&) = delete;

  // The file's commands of that point, in order, up to the first that fails. `environment` goes before what a
  // hook itself sets, as mig-parted's does. `done` comes from the loop, once, never from inside the call and
  // not after destruction. Precondition: the one before is done.
  // Errors, about the hook's place in its file: kFailedPrecondition, it exited with another code than 0 or
  // was ended by a signal; kDeadlineExceeded; those of starting it (base/process.h).
  void run(const HooksFile& file, HookPoint point, std::map<std::string, std::string> environment,
           std::function<void(Status)> done);

 private:
  struct Command;

  void next();
  Status start(const Hook& hook);
  void kill(Command& command);
  void read_output(Command& command);
  void end_output(Command& command);
  void forget_if_over(Command& command);
  void say(Command& command, std::string_view line);
  void ended(Command& command, const Status& status);
  std::string limit_text() const;
  void finish(Status status);

  Loop& loop_;
  Duration limit_;
  std::string point_;
  std::vector<Hook> hooks_;
  std::map<std::string, std::string> environment_;
  std::function<void(Status)> done_;
  std::size_t next_ = 0;
  std::list<Command> commands_;  // the one under way, and those of which only the output is still open
  Command* under_way_ = nullptr;
  Subscription timer_;
};

}  // namespace gpulet::mig

// Follows a file of gpulet.stateDir that a command of the operator writes: cordons, the release of the
// driver. Loop's thread only.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "agent/node/ports.h"
#include "base/file_watch.h"
#include "base/loop.h"
#include "base/result.h"

namespace gpulet::agent {

// Between reads of a file that the kernel could not read or watch: out of descriptors, an I/O error.
inline constexpr BackoffLimits kStateFileBackoff{std::chrono::seconds(1), std::chrono::minutes(1)};

class StateFileWatcher {
 public:
  // Reason and effect of the Events for a file that cannot be watched or read.
  struct Texts {
    const char *not_watched, *not_watched_effect;
    const char *unreadable, *unreadable_effect;
  };
  // Calls `read` from here, after each change of the file, and again after an error kIo, which no change of
  // the file ends. Its error is reported as an Event, each text once in a row, and so is a file that cannot
  // be watched, which is tried again too. `reporter` and `loop` outlive it.
  StateFileWatcher(Loop& loop, Reporter& reporter, const std::string& path, const Texts& texts,
                   std::function<Status()> read);
  StateFileWatcher(const StateFileWatcher&) = delete;

 private:
  void watch_file();
  void read_file();

  Loop& loop_;
  Reporter& reporter_;
  const std::string path_;
  Texts texts_;
  std::function<Status()> read_;
  std::unique_ptr<FileWatcher> watch_;
  bool watch_failure_reported_ = false;
  std::string reported_error_;
  Backoff backoff_;
  Subscription retry_;
};

}  // namespace gpulet::agent

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

class StateFileWatcher {
 public:
  // Reason and effect of the Events for a file that cannot be watched or read.
  struct Texts {
    const char *not_watched, *not_watched_effect;
    const char *unreadable, *unreadable_effect;
  };
  // Calls `read` from here, and after each change of the file. Its error is reported as an Event, each text
  // once in a row, and so is a file that cannot be watched. `reporter` and `loop` outlive it.
  StateFileWatcher(Loop& loop, Reporter& reporter, const std::string& path, const Texts& texts,
                   std::function<Status()> read);
  StateFileWatcher(const StateFileWatcher&) = delete;

 private:
  void read_file();

  Reporter& reporter_;
  Texts texts_;
  std::function<Status()> read_;
  std::unique_ptr<FileWatcher> watch_;
  std::string reported_error_;
};

}  // namespace gpulet::agent

// Signals as events of the loop, by signalfd: no handler, so nothing runs between two instructions of the
// loop's thread.
#pragma once

#include <signal.h>

#include <functional>
#include <initializer_list>
#include <memory>

#include "base/file.h"
#include "base/loop.h"
#include "base/result.h"

namespace gpulet {

class SignalWatch {
 public:
  // Calls `received` from the loop for each of `signals` (SIGTERM…) that the process gets. Blocks them in
  // this thread and in those that it starts later: call it before any other thread exists. Errors: kIo.
  static Result<std::unique_ptr<SignalWatch>> start(Loop& loop, std::initializer_list<int> signals,
                                                    std::function<void(int)> received);
  // Unblocks what it had blocked.
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;

 private:
  SignalWatch(FileDescriptor fd, sigset_t before) : fd_(std::move(fd)), before_(before) {}

  FileDescriptor fd_;
  sigset_t before_;
  Subscription reading_;
};

}  // namespace gpulet

// The process of a control daemon that runs in the background: found by the pid file of its pipe directory,
// seen to end, killed. Containers can write to that directory, so the number in it is believed only of a
// process that is this program and was started for this directory.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "base/file.h"
#include "base/loop.h"
#include "base/result.h"

namespace gpulet::mps {

class DaemonProcess {
 public:
  // Errors: kNotFound where no such process runs; what else is in the way of the file.
  static Result<std::unique_ptr<DaemonProcess>> find(const std::string& pipe_directory);

  pid_t id() const { return id_; }
  // Calls `ended` from the loop, once; it may destroy this object. A later call takes the place of an earlier
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

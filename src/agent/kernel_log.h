// The kernel's log, followed: what it says of GPUs from now on, line by line. Lines from before the start are
// left alone: whatever they tell of may have been dealt with since.
// Source: Linux Documentation/ABI/testing/dev-kmsg.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/loop.h"
#include "base/result.h"
#include "health/kmsg.h"

namespace gpulet::agent {

// No more lines are taken in one turn of the loop, so that a flood holds nothing else up.
inline constexpr unsigned kLinesPerTurn = 256;
// Lines that come within so long of one are read together.
inline constexpr Duration kLogPause = std::chrono::milliseconds(5);

class KernelLog {
 public:
  struct Handlers {
    std::function<void(const health::FaultLine&)> line;
    // It cannot be read any more: nothing comes after it.
    std::function<void(const Error&)> ended;
  };
  // Loop's thread only; handlers come there, none after destruction. Errors: as open(2) says (kNotFound,
  // kPermissionDenied); kUnsupported for what is no stream of records.
  static Result<std::unique_ptr<KernelLog>> start(Loop& loop, const std::string& path, Handlers handlers);
  ~KernelLog();
  KernelLog(const KernelLog&) = delete;

  // Lines that the kernel wrote over before they were read.
  std::uint64_t overruns() const { return overruns_; }

 private:
  KernelLog(Loop& loop, FileDescriptor fd, std::string path, Handlers handlers);
  bool listen();
  void on_ready();
  void read_lines();
  void take(std::string_view text);
  void end(Error error);

  Loop& loop_;
  FileDescriptor fd_;
  std::string path_;
  Handlers handlers_;
  std::string text_;  // of a record that is not whole yet
  std::uint64_t overruns_ = 0;
  Subscription watch_, pause_;
};

}  // namespace gpulet::agent

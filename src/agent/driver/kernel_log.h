// Follows the kernel's log and reports its lines about GPUs. Lines from before the start are skipped: their
// cause may be fixed by now.
// Source: Linux Documentation/ABI/testing/dev-kmsg.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/loop.h"
#include "base/result.h"
#include "health/evidence/kmsg_parser.h"

namespace gpulet::agent {

// Lines read in one turn of the loop at most, so that a flood does not block it.
inline constexpr unsigned kLinesPerTurn = 256;
// Lines that arrive within this time are read together.
inline constexpr Duration kLogBatchDelay = std::chrono::milliseconds(5);

class KernelLog {
 public:
  struct Handlers {
    std::function<void(const health::FaultLine&)> line;
    // It can no longer be read: the last call.
    std::function<void(const Error&)> ended;
  };
  // Loop's thread only; handlers are called there, and not after destruction. Errors: those of open(2)
  // (kNotFound, kPermissionDenied); kUnsupported for what is not a stream of records.
  static Result<std::unique_ptr<KernelLog>> start_kernel_log(Loop& loop, const std::string& path,
                                                             Handlers handlers);
  ~KernelLog();
  KernelLog(const KernelLog&) = delete;

  // How often lines were overwritten before they could be read.
  std::uint64_t overruns() const { return overruns_; }

 private:
  KernelLog(Loop& loop, FileDescriptor fd, std::string path, Handlers handlers);
  bool watch_file();
  void on_ready();
  void read_lines();
  void parse_records(std::string_view text);
  void close_log(Error error);

  Loop& loop_;
  FileDescriptor fd_;
  std::string path_;
  Handlers handlers_;
  std::string text_;  // of an incomplete record
  health::KmsgLineParser lines_;
  std::uint64_t overruns_ = 0;
  Subscription watch_, batch_timer_;
};

}  // namespace gpulet::agent

// `gpulet health`: how the node's devices stand, as the agent of this node has it: state, evidence, what
// next. Reads the file that the agent leaves (gpulet.healthFile), and so needs no driver and no right but to
// read it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file_watch.h"
#include "base/loop.h"
#include "base/result.h"

namespace gpulet::cli {

struct HealthOptions {
  std::string device;  // index, UUID or the beginning of one (health/device_name.h); empty: all
  bool watch = false;
  std::string output = "table";  // or "json": as health/report.h has it
  std::string health_file = "/run/gpulet/health.json";
  // The agent's, in which it holds a lock as long as it lives; empty: whether it lives is not asked.
  std::string state_dir = "/var/lib/gpulet";
};

// 0: every device that is shown is offered. 1: that cannot be said: there is no file, or it is damaged, or
// there is no such device, or no agent runs (what the last one knew is shown). 3: a device that is shown is
// not offered.
struct HealthAnswer {
  int exit_code = 0;
  std::string out, err;  // with their newlines
};
HealthAnswer health_answer(const HealthOptions& options, WallTime now);

// Shows it anew as soon as it differs: a change of the file, or an agent that ends or starts. Woken by
// inotify.
class HealthWatch {
 public:
  // Calls `show` on the loop with each answer that differs from the one before, the first at once. Errors:
  // kIo where the kernel has no watch left.
  static Result<std::unique_ptr<HealthWatch>> start(Loop& loop, HealthOptions options,
                                                    std::function<void(const HealthAnswer&)> show);
  HealthWatch(const HealthWatch&) = delete;

 private:
  HealthWatch(Loop& loop, HealthOptions options, std::function<void(const HealthAnswer&)> show)
      : loop_(loop), options_(std::move(options)), show_(std::move(show)) {}
  void look();

  Loop& loop_;
  HealthOptions options_;
  std::function<void(const HealthAnswer&)> show_;
  std::vector<std::unique_ptr<FileWatch>> watches_;
  std::optional<HealthAnswer> shown_;
  Subscription first_;
};

// Prints it; with `watch` until it is interrupted, then 1 when the reader has gone. Returns the exit code.
int health(const HealthOptions& options);

}  // namespace gpulet::cli

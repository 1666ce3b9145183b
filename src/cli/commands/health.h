// `gpulet health`: the health of the node's devices as its agent reports it: state, cause and recommended
// action. Reads the agent's report (gpulet.healthFile) and needs no driver.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file_watch.h"
#include "base/loop.h"
#include "base/result.h"
#include "cli/main/command.h"
#include "health/report/node_health.h"

namespace gpulet::cli {

struct HealthOptions {
  std::string device;  // index, UUID or UUID prefix (health/report/node_health.h); empty: all
  bool watch = false;
  OutputOptions output{};  // the document: health/report/health_report.h
  std::string health_file = "/run/gpulet/health.json";
  // The agent holds a lock in it while it runs. Empty: do not check whether it runs.
  std::string state_dir = "/var/lib/gpulet";
};

// Exit code: 0 if every printed device is in service; 3 if one is not; 1 if that is unknown: no report, a
// damaged one, no such device, or no agent running (the last report is printed).
CommandOutput health_output(const HealthOptions& options, WallTime now);

// Follows the report and the agent's lock by inotify.
class HealthWatcher {
 public:
  // Calls `show` on the loop with the output, and again whenever it differs. Errors: kIo if the kernel has no
  // inotify watch left.
  static Result<std::unique_ptr<HealthWatcher>> start_watcher(Loop& loop, HealthOptions options,
                                                              std::function<void(const CommandOutput&)> show);
  HealthWatcher(const HealthWatcher&) = delete;

 private:
  HealthWatcher(Loop& loop, HealthOptions options, std::function<void(const CommandOutput&)> show)
      : loop_(loop), options_(std::move(options)), show_(std::move(show)) {}
  void refresh();

  Loop& loop_;
  HealthOptions options_;
  std::function<void(const CommandOutput&)> show_;
  std::vector<std::unique_ptr<FileWatcher>> watches_;
  std::optional<CommandOutput> last_output_;
  Subscription first_refresh_;
};

// --health-file and --state-dir, of the commands that read the agent's report.
void add_agent_path_options(CLI::App& command, std::string& health_file, std::string& state_dir);

// Prints health_output(); with `watch` until standard output is closed. Returns the exit code.
int run_health(const HealthOptions& options);

// Replaces control characters, which texts of a driver or file may contain, by '?'.
health::HealthView replace_control_characters(health::HealthView view);

// One row for each device, then the recommended action of each unhealthy one. Pure.
std::string health_table(const health::HealthView& view, const TableStyle& style = {});

// Everything about one device, and a table of a GPU's MIG devices. With `now`, times have an age. Pure.
std::string health_details(const health::HealthView& view, const health::DeviceView& device,
                           std::optional<WallTime> now, const TableStyle& style = {});

}  // namespace gpulet::cli

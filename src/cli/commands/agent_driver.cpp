#include "cli/commands/agent_driver.h"

#include <memory>
#include <vector>

#include "agent/driver/driver_release.h"
#include "agent/health/operator_interface.h"
#include "base/file_watch.h"
#include "base/text.h"
#include "cli/commands/health.h"
#include "cli/main/command_line.h"
#include "health/report/health_report.h"

namespace gpulet::cli {
namespace {

bool names_mig_apply(const health::DriverRelease& release) {
  return release.reason.find(agent::kMigApplyReason) != std::string::npos;
}

}  // namespace

std::string AgentDriver::presence() const { return agent::presence_path(state_dir_); }

Result<bool> AgentDriver::is_agent_running() const { return ProcessLock::is_locked(presence()); }

Result<health::HealthView> AgentDriver::read_view() const {
  GPULET_TRY_ASSIGN(auto view, health::read_report(health_file_));
  return replace_control_characters(std::move(view));
}

Status AgentDriver::wait_until(const std::function<bool()>& check, Duration timeout) const {
  EpollLoop loop;
  bool done = false;
  const auto check_again = [&] {
    done = done || check();
    if (done) loop.stop_loop();
  };
  std::vector<std::unique_ptr<FileWatcher>> watches;
  for (const auto& path : {health_file_, presence()}) {
    GPULET_TRY_ASSIGN(auto watch, FileWatcher::watch_path(loop, path, check_again));
    watches.push_back(std::move(watch));
  }
  const auto first = loop.after(Duration::zero(), check_again);
  const auto limit = loop.after(timeout, [&] { loop.stop_loop(); });
  loop.run_loop();
  if (done) return {};
  return fail(Code::kDeadlineExceeded,
              "the agent has not done so within " + format_duration(std::chrono::nanoseconds(timeout)));
}

std::optional<std::string> missing_driver(const health::HealthView& view) {
  for (const auto& device : view.devices) {
    for (const auto& fault : device.status.faults) {
      if (fault.fault_class == health::FaultClass::kDriverAway) return fault.fault_text();
    }
  }
  return std::nullopt;
}

Result<std::optional<DriverLease>> DriverLease::acquire_lease(const AgentDriver& agent, Duration timeout) {
  GPULET_TRY_ASSIGN(const bool runs, agent.is_agent_running());
  if (!runs) return std::nullopt;
  GPULET_TRY_ASSIGN(auto lock, agent::lock_release(agent::mig_apply_lock_path(agent.state_dir())));
  DriverLease lease(agent, std::move(lock));
  GPULET_TRY(agent.wait_until(
      [&] {
        const auto running = agent.is_agent_running();
        if (running && !*running) return true;
        const auto view = agent.read_view();
        return view && view->release && view->release->closed && names_mig_apply(*view->release);
      },
      timeout));
  return std::optional(std::move(lease));
}

Status DriverLease::end_lease(Duration timeout) {
  lock_.reset();
  return agent_.wait_until(
      [&] {
        const auto running = agent_.is_agent_running();
        if (running && !*running) return true;
        const auto view = agent_.read_view();
        return view && (!view->release || !names_mig_apply(*view->release));
      },
      timeout);
}

}  // namespace gpulet::cli

#include "agent/power/power_restore.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace gpulet::agent {
namespace {

class SilentReporter final : public Reporter {
 public:
  void report_event(Severity, std::string_view, const std::string&) override {}
};

template <class T>
void fail_without_driver(Loop& loop, std::function<void(Result<T>)> done) {
  loop.post([done = std::move(done)] { done(fail(Code::kUnavailable, "there is no driver")); });
}

Result<std::size_t> count_restored(std::size_t recorded, const PowerController& controller) {
  std::vector<std::string> problems;
  for (const auto& status : controller.statuses())
    problems.insert(problems.end(), status.problems.begin(), status.problems.end());
  for (const auto& error : controller.read_errors()) {
    const bool is_said = std::ranges::any_of(
        problems, [&](const auto& problem) { return problem.find(error) != std::string::npos; });
    if (!is_said) problems.push_back(error);
  }
  if (problems.empty() && !controller.has_work()) return recorded;
  return fail(Code::kFailedPrecondition,
              problems.empty() ? "a GPU could not be read" : text::join_limited(problems));
}

}  // namespace

PowerPorts make_power_ports(Reporter& reporter, const std::function<NvmlDriver*()>& driver, Loop& loop,
                            std::function<Duration()> call_timeout) {
  return {.reporter = reporter,
          .loop = loop,
          .call_timeout = std::move(call_timeout),
          .read =
              [driver, &loop](const DeviceUuid& gpu, Duration limit, auto done) {
                auto* found = driver();
                if (found == nullptr) return fail_without_driver<PowerReading>(loop, std::move(done));
                read_power(*found, gpu, limit, std::move(done));
              },
          .write =
              [driver, &loop](const DeviceUuid& gpu, const PowerWrites& writes, Duration limit, auto done) {
                auto* found = driver();
                if (found == nullptr) return fail_without_driver<PowerWritten>(loop, std::move(done));
                write_power(*found, gpu, writes, limit, std::move(done));
              },
          .on_pod_problem = {}};
}

Result<std::size_t> restore_recorded_power(const std::string& state_dir, NvmlDriverOptions options) {
  GPULET_TRY_ASSIGN(const auto records, load_power_records(state_dir + "/" + kPowerFile));
  if (records.empty()) return std::size_t{0};
  options.events = false;
  const auto timeout = options.call_timeout;
  EpollLoop loop;
  SilentReporter reporter;
  NvmlDriver driver(loop, std::move(options));
  PowerController controller(
      make_power_ports(reporter, [&driver] { return &driver; }, loop, [timeout] { return timeout; }));
  controller.set_state_dir(state_dir);
  Result<std::size_t> result = fail(Code::kInternal, "nothing was restored");
  driver.open_driver([&](const Status& opened) {
    if (!opened) {
      result = fail(opened.error());
      return loop.stop_loop();
    }
    driver.read_snapshot([&](const Result<inventory::Snapshot>& snapshot) {
      if (!snapshot) {
        result = fail(snapshot.error());
        return loop.stop_loop();
      }
      controller.drop_absent_gpus(*snapshot);
      const auto present = controller.gpu_count();
      controller.restore_all(timeout, [&, present] {
        result = count_restored(present, controller);
        loop.stop_loop();
      });
    });
  });
  loop.run_loop();
  return result;
}

}  // namespace gpulet::agent

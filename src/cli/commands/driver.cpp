#include <algorithm>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "agent/driver/driver_release.h"
#include "cli/commands/agent_driver.h"
#include "cli/commands/commands.h"
#include "cli/commands/health.h"
#include "cli/main/command_line.h"
#include "health/report/health_report.h"
#include "health/state/cordons.h"

namespace gpulet::cli {
namespace {

std::string driver_verb_name(DriverVerb verb) {
  switch (verb) {
    case DriverVerb::kRelease:
      return "release";
    case DriverVerb::kAcquire:
      return "acquire";
    case DriverVerb::kStatus:
      return "status";
  }
  return "status";
}

class DriverCommand {
 public:
  DriverCommand(DriverVerb verb, const DriverOptions& options)
      : verb_(verb), options_(options), agent_(options.health_file, options.state_dir) {}

  CommandOutput run_verb(WallTime now) {
    if (options_.state_dir.empty()) return failed("no state directory (--state-dir)", kWrongCommand);
    if (options_.health_file.empty()) return failed("no health report (--health-file)", kWrongCommand);
    if (options_.timeout <= Duration::zero())
      return failed("--timeout: expected a duration such as 30s", kWrongCommand);
    if (options_.reason.size() > agent::kMaxReleaseReason) {
      return failed("the reason is " + std::to_string(options_.reason.size()) +
                        " bytes long; the maximum is " + std::to_string(agent::kMaxReleaseReason),
                    kWrongCommand);
    }
    if (verb_ == DriverVerb::kStatus) return status();
    const auto path = agent::release_path(options_.state_dir);
    if (const auto report = agent_.read_view()) before_ = report->release;
    if (verb_ == DriverVerb::kRelease) {
      const auto written =
          agent::write_release(path, {std::chrono::floor<std::chrono::milliseconds>(now), options_.reason});
      if (!written) return failed(written.error().full_message());
    } else {
      const auto removed = agent::remove_release(path);
      if (!removed) return failed(removed.error().full_message());
      requested_before_ = *removed;
    }
    return wait_for_agent();
  }

 private:
  CommandOutput failed(const std::string& why, int code = kFailed) const {
    return error_output("gpulet driver " + driver_verb_name(verb_), why, code);
  }

  // `state`: "acquired", "released", "changing", "missing", or "unknown" without an agent.
  CommandOutput status_output(int exit_code, const std::string& text, bool runs, const std::string& state,
                              const std::string& reason = {}) const {
    return {exit_code,
            render_output(
                options_.output,
                [&] {
                  nlohmann::ordered_json json{{"agentRunning", runs}, {"state", state}, {"reason", nullptr}};
                  if (!reason.empty()) json["reason"] = reason;
                  return document_text(json);
                },
                [&](const TableStyle&) { return text + "\n"; }),
            {}};
  }

  CommandOutput status() const {
    const auto runs = agent_.is_agent_running();
    if (!runs) return failed(runs.error().full_message());
    if (!*runs) {
      const auto request = agent::read_release(agent::release_path(options_.state_dir));
      if (!request) return failed(request.error().full_message());
      const auto reason = agent::release_reason(*request, false, {});
      const std::string next = reason ? "; it will start released: " + *reason : "";
      return status_output(reason ? kNeedsAction : 0, "no agent is running on this node" + next, false,
                           reason ? "released" : "unknown", reason.value_or(""));
    }
    const auto view = agent_.read_view();
    if (!view) return failed(view.error().full_message());
    if (view->release) {
      const std::string state = view->release->closed ? "released: " : "being released or acquired: ";
      return status_output(kNeedsAction, state + view->release->reason, true,
                           view->release->closed ? "released" : "changing", view->release->reason);
    }
    if (const auto wrong = missing_driver(*view))
      return status_output(kNeedsAction, "acquired, but the GPUs " + *wrong, true, "missing", *wrong);
    return status_output(0, "acquired", true, "acquired");
  }

  // Whether the agent has done what was requested, by its report and its lock; nullopt: not yet.
  std::optional<CommandOutput> result() const {
    const auto runs = agent_.is_agent_running();
    if (!runs) return failed(runs.error().full_message());
    if (!*runs) {
      return CommandOutput{0,
                           verb_ == DriverVerb::kRelease
                               ? "saved; no agent is running on this node, so it does not hold the driver\n"
                               : "saved; no agent is running on this node\n",
                           {}};
    }
    const auto view = agent_.read_view();
    if (!view) return std::nullopt;
    const auto& release = view->release;
    if (verb_ == DriverVerb::kRelease) {
      const auto requested = agent::release_reason(
          agent::ReleaseRequest{{}, health::sanitize_cordon_reason(options_.reason)}, false, {});
      if (!release || !release->closed || !release->reason.starts_with(*requested)) return std::nullopt;
      return CommandOutput{0, "released: " + release->reason + "\n", {}};
    }
    if (!release) {
      if (const auto wrong = missing_driver(*view))
        return failed("the driver is acquired, but the GPUs " + *wrong);
      return CommandOutput{0, "acquired\n", {}};
    }
    // Something else still asks for it.
    const bool updated = !requested_before_ || !before_ || release->reason != before_->reason;
    if (updated && release->closed) return failed("the driver stays released: " + release->reason);
    return std::nullopt;
  }

  CommandOutput wait_for_agent() {
    std::optional<CommandOutput> done;
    const auto waited = agent_.wait_until(
        [&] {
          done = result();
          return done.has_value();
        },
        options_.timeout);
    if (waited) return *done;
    const bool late = waited.error().code() == Code::kDeadlineExceeded;
    return failed(
        waited.error().full_message() +
        (late ? "; the request stays. `gpulet driver status` shows the state, the agent's log the reason"
              : ""));
  }

  DriverVerb verb_;
  DriverOptions options_;
  AgentDriver agent_;
  std::optional<health::DriverRelease> before_;  // as reported before the request
  bool requested_before_ = false;
};

void add_driver_verb(CLI::App& parent, Run& run, DriverVerb verb, const CommandHelp& help) {
  auto& command = add_command(parent, help);
  const auto options = std::make_shared<DriverOptions>();
  const auto timeout = std::make_shared<std::string>();
  if (verb == DriverVerb::kRelease)
    command.add_option("--reason", options->reason, "reason, one line, shown with the GPUs' state");
  if (verb == DriverVerb::kStatus) add_output_options(command, options->output);
  if (verb != DriverVerb::kStatus)
    command.add_option("--timeout", *timeout, "how long to wait for the agent (default 30s)");
  add_agent_path_options(command, options->health_file, options->state_dir);
  command.callback([verb, options, timeout, &run] {
    run = [verb, options, timeout] {
      if (!timeout->empty())
        options->timeout = parse_duration(*timeout).value_or(std::chrono::nanoseconds(0));
      return print_output(driver_output(verb, *options, std::chrono::system_clock::now()));
    };
  });
}

}  // namespace

CommandOutput driver_output(DriverVerb verb, const DriverOptions& options, WallTime now) {
  return DriverCommand(verb, options).run_verb(now);
}

void add_driver(CLI::App& app, Run& run) {
  auto& command =
      add_command(app, {.name = "driver",
                        .summary = "Release the NVIDIA driver for an upgrade or a GPU reset, and acquire it",
                        .examples = "  gpulet driver release --reason 'driver 580'\n  gpulet driver acquire",
                        .group = kChangeGroup});
  command.require_subcommand(1);
  add_driver_verb(
      command, run, DriverVerb::kRelease,
      {.name = "release",
       .summary = "Make the agent close the driver, and keep it closed",
       .details = "Returns once the agent has no NVML session and no open device node. Its GPUs become\n"
                  "unhealthy; Pods are not evicted. The request outlasts restarts of the agent.",
       .examples = "  gpulet driver release --reason 'driver 580' && rmmod nvidia_uvm nvidia\n"
                   "  gpulet driver release && nvidia-smi --gpu-reset -i 3; gpulet driver acquire"});
  add_driver_verb(
      command, run, DriverVerb::kAcquire,
      {.name = "acquire",
       .summary = "Make the agent open the driver again",
       .details = "Returns once the agent has read the GPUs. Fails if a node label still pauses it.",
       .examples = "  gpulet driver acquire"});
  add_driver_verb(command, run, DriverVerb::kStatus,
                  {.name = "status",
                   .summary = "Show whether the agent holds the driver, or why not",
                   .details = "Exits with 3 if the driver is released or missing.",
                   .examples = "  gpulet driver status"});
}

}  // namespace gpulet::cli

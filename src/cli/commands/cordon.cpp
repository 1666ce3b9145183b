#include "cli/commands/commands.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>

#include "agent/driver/nvml_driver.h"
#include "agent/health/operator_interface.h"
#include "base/process.h"
#include "base/text.h"
#include "cli/commands/health.h"
#include "cli/main/command_line.h"
#include "health/report/health_report.h"
#include "health/report/node_health.h"
#include "health/state/cordons.h"

namespace gpulet::cli {
namespace {

using health::OperatorAction;

// The resolved device.
struct CordonTarget {
  DeviceUuid uuid;
  std::string name;                          // "GPU 3 (GPU-5a…)"
  std::optional<health::DeviceView> device;  // absent: an unknown UUID
  std::vector<DeviceUuid> parts;             // a GPU's MIG devices
};

health::HealthView driver_view(const inventory::Snapshot& snapshot) {
  health::HealthStateMachine machine({}, health::XidFilter("", ""));
  machine.apply_snapshot(snapshot, {});
  return health::build_health_view(machine, snapshot, {});
}

Result<CordonTarget> find_target(const CordonOptions& options, bool agent_runs,
                                 const std::function<Result<inventory::Snapshot>()>& read_driver) {
  Result<health::HealthView> view =
      agent_runs ? health::read_report(options.health_file) : fail(Code::kUnavailable, "no agent is running");
  if (view) {
    view = replace_control_characters(std::move(*view));
  } else {
    const auto snapshot = read_driver();
    if (snapshot) {
      view = driver_view(*snapshot);
    } else if (!health::is_full_uuid(options.device)) {
      return fail(Code::kUnavailable,
                  "cannot resolve device '" + options.device + "': " + view.error().full_message() +
                      "; driver: " + snapshot.error().full_message() + "; use its full UUID");
    }
  }
  CordonTarget target{DeviceUuid(options.device), options.device, std::nullopt, {}};
  if (!view) return target;
  const auto device = health::find_device(*view, options.device);
  if (!device && health::is_full_uuid(options.device)) {
    target.name += " (not on this node)";
    return target;
  }
  if (!device) return fail(device.error());
  if ((*device)->uuid.empty())
    return fail(Code::kNotFound, "this MIG device no longer exists", describe_device(**device));
  target.uuid = (*device)->uuid;
  target.name = describe_device(**device);
  target.device = **device;
  for (const auto& other : view->devices) {
    if ((*device)->scope.is_whole_gpu() && !other.scope.is_whole_gpu() &&
        other.scope.gpu == (*device)->scope.gpu)
      target.parts.push_back(other.uuid);
  }
  return target;
}

// Pending faults that an uncordon marks as repaired: those without a reading that could prove recovery.
std::vector<std::string> operator_resolved_faults(const CordonTarget& target) {
  std::vector<std::string> texts;
  if (!target.device) return texts;
  for (const auto& fault : target.device->status.faults) {
    const auto& rule = fault_rule(fault.fault_class);
    const bool vouched =
        !fault.condition_met_at && rule.condition != health::RecoveryCondition::kReadingClear &&
        fault.fault_class != health::FaultClass::kCordoned && target.device->scope.covers(fault.scope);
    if (vouched) texts.push_back(fault.fault_text());
  }
  return texts;
}

std::string reason_suffix(const std::string& words) { return words.empty() ? "" : ": " + words; }

// Updates the entry of the device and returns the message.
std::string apply_cordon(health::Cordons& cordons, const CordonTarget& target, const std::string& words,
                         WallTime now) {
  auto& word = cordons[target.uuid];
  const bool already = word.action == OperatorAction::kCordon && word.at != WallTime();
  if (already && (words.empty() || words == word.reason))
    return target.name + " is already cordoned" + reason_suffix(word.reason);
  // Newer than any earlier entry, even if the clock was set back.
  word = {OperatorAction::kCordon, std::max(now, word.at + std::chrono::milliseconds(1)), words};
  return target.name + " cordoned" + reason_suffix(words);
}

std::string apply_uncordon(health::Cordons& cordons, const CordonTarget& target, WallTime now) {
  const auto found = cordons.find(target.uuid);
  bool cordoned = found != cordons.end() && found->second.action == OperatorAction::kCordon;
  const auto vouched = operator_resolved_faults(target);
  WallTime at = now;
  if (found != cordons.end()) at = std::max(now, found->second.at + std::chrono::milliseconds(1));
  if (cordoned || !vouched.empty() || !target.device)
    cordons[target.uuid] = {OperatorAction::kUncordon, at, {}};
  // Uncordoning a GPU uncordons its MIG devices.
  for (const auto& part : target.parts) {
    const auto line = cordons.find(part);
    if (line == cordons.end() || line->second.action != OperatorAction::kCordon) continue;
    cordons.erase(line);
    cordoned = true;
  }
  std::string text = target.name + (cordoned ? " uncordoned" : " was not cordoned");
  if (!vouched.empty()) {
    text += "; marked as repaired, health checks follow: " + text::join(vouched, "; ");
  }
  return text;
}

}  // namespace

CommandOutput cordon_output(OperatorAction action, const CordonOptions& options, WallTime now,
                            const std::function<Result<inventory::Snapshot>()>& read_driver) {
  const std::string command = action == OperatorAction::kCordon ? "gpulet cordon" : "gpulet uncordon";
  const auto refused = [&](int code, const std::string& why) {
    return CommandOutput{code, {}, command + ": " + why + "\n"};
  };
  if (options.state_dir.empty())
    return refused(kWrongCommand, "no state directory to save it in (--state-dir)");
  if (options.reason.size() > health::kMaxCordonReason) {
    return refused(kWrongCommand, "the reason is " + std::to_string(options.reason.size()) +
                                      " bytes long; the maximum is " +
                                      std::to_string(health::kMaxCordonReason));
  }
  const auto runs = ProcessLock::is_locked(agent::presence_path(options.state_dir));
  if (!runs) return refused(kFailed, runs.error().full_message());
  const auto target = find_target(options, *runs, read_driver);
  if (!target) return refused(kFailed, target.error().full_message());

  now = std::chrono::floor<std::chrono::milliseconds>(now);
  CommandOutput answer;
  const auto status =
      health::update_cordons(agent::cordons_path(options.state_dir), now, [&](health::Cordons& cordons) {
        answer.out = action == OperatorAction::kCordon
                         ? apply_cordon(cordons, *target, health::sanitize_cordon_reason(options.reason), now)
                         : apply_uncordon(cordons, *target, now);
      });
  if (!status) return refused(kFailed, status.error().full_message());
  answer.out += "\n";
  if (!*runs) answer.out += "saved; takes effect when the agent starts on this node\n";
  return answer;
}

int run_cordon(OperatorAction action, const CordonOptions& options) {
  return print_output(cordon_output(action, options, std::chrono::system_clock::now(), [&] {
    return agent::read_snapshot_once({.driver_root = options.driver_root});
  }));
}

namespace {

void add_cordon_command(CLI::App& app, Run& run, health::OperatorAction action, const CommandHelp& help) {
  auto& command = add_command(app, help);
  const auto options = std::make_shared<CordonOptions>();
  command.add_option("GPU", options->device, "device, by index (MIG: 3:1), UUID or UUID prefix")->required();
  if (action == health::OperatorAction::kCordon) {
    command.add_option("--reason", options->reason, "reason, one line, shown with the GPU's state");
  }
  add_agent_path_options(command, options->health_file, options->state_dir);
  add_driver_root_option(command, options->driver_root);
  command.callback(
      [options, action, &run] { run = [options, action] { return run_cordon(action, *options); }; });
}

}  // namespace

void add_cordon(CLI::App& app, Run& run) {
  add_cordon_command(app, run, OperatorAction::kCordon,
                     {.name = "cordon",
                      .summary = "Take a GPU or MIG device out of service. Running containers keep it",
                      .details = "Takes effect at once if an agent is running, else when it starts.",
                      .examples = "  gpulet cordon 3 --reason 'fan failure, ticket 4711'",
                      .group = kChangeGroup});
}

void add_uncordon(CLI::App& app, Run& run) {
  add_cordon_command(app, run, OperatorAction::kUncordon,
                     {.name = "uncordon",
                      .summary = "Return a cordoned GPU to service once its health checks pass",
                      .details = "A pending repair of the device counts as done; its health checks follow.",
                      .examples = "  gpulet uncordon 3",
                      .group = kChangeGroup});
}

}  // namespace gpulet::cli

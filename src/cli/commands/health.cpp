#include "cli/commands/health.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include <CLI/CLI.hpp>

#include "agent/health/operator_interface.h"
#include "base/process.h"
#include "base/text.h"
#include "cli/commands/commands.h"
#include "cli/main/command_line.h"
#include "health/report/health_report.h"
#include "health/report/node_health.h"

namespace gpulet::cli {
namespace {

using health::DeviceView;
using health::HealthView;

void replace_controls(std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters too: C2 80 to C2 9F.
    const bool c1 = c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c1) text.erase(i, 1);
    if (c1 || c < ' ' || c == 0x7F) text[i] = '?';
  }
}

void replace_controls(DeviceUuid& uuid) {
  std::string text = uuid.str();
  replace_controls(text);
  uuid = DeviceUuid(std::move(text));
}

class TimeFormatter {
 public:
  TimeFormatter(const health::ClockPair& at, std::optional<WallTime> now) : at_(at), now_(now) {}
  // "2026-01-31 12:00:00"
  std::string format_time(Time time) const {
    const auto text = format_wall_time(wall_time(time));
    return text.substr(0, 10) + " " + text.substr(11, 8);
  }
  // "2026-01-31 12:00:00 UTC (4 min ago)"
  std::string format_with_age(Time time) const {
    std::string out = format_time(time) + " UTC";
    if (!now_) return out;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(*now_ - wall_time(time)).count();
    return out + (seconds < 0 ? " (in " + format_age(-seconds) + ")" : " (" + format_age(seconds) + " ago)");
  }

 private:
  WallTime wall_time(Time time) const {
    return at_.wall - std::chrono::duration_cast<WallTime::duration>(at_.now - time);
  }
  static std::string format_age(std::int64_t seconds) {
    if (seconds < 120) return std::to_string(seconds) + " s";
    if (seconds < 2 * 3600) return std::to_string(seconds / 60) + " min";
    if (seconds < 2 * 86'400) return std::to_string(seconds / 3600) + " h";
    return std::to_string(seconds / 86'400) + " d";
  }

  const health::ClockPair& at_;
  std::optional<WallTime> now_;
};

// "3", "  3:1"; a dash for a removed device.
std::string device_index_text(const DeviceView& device) {
  if (!device.gpu_index) return kDash;
  auto index = std::to_string(*device.gpu_index);
  if (device.scope.is_whole_gpu()) return index;
  return "  " + index + ":" + (device.mig_index ? std::to_string(*device.mig_index) : kDash);
}

// "MIG needs-reset: on"; empty without a pending mode.
std::string pending_mig_text(const DeviceView& device) {
  if (!device.mig_pending) return "";
  return std::string("MIG needs-reset: ") + (*device.mig_pending ? "on" : "off");
}

// The fault, else what else keeps it from Pods or waits for a reset.
std::string device_note(const DeviceView& device) {
  if (!device.status.reason.empty()) return device.status.reason;
  if (!device.excluded.empty()) return device.excluded;
  if (device.preflight == "waiting") return waiting_text(device);
  return pending_mig_text(device);
}

std::vector<std::string> device_row(const DeviceView& device, const TimeFormatter& times,
                                    const TableStyle& style) {
  const auto& standing = device.status;
  return {
      device_index_text(device),
      model_cell((device.scope.is_whole_gpu() || device.model.empty() ? "" : "MIG ") + device.model, style),
      uuid_cell(device.uuid.empty() ? device.scope.gpu.str() : device.uuid.str(), style),
      std::string(enum_name(standing.state)),
      times.format_time(standing.since),
      device_note(device)};
}

// The devices for which `wanted` is true, and the recommended action of each unhealthy one. MIG devices do
// not repeat the action of their GPU.
template <class Wanted>
std::string device_table(const HealthView& view, const Wanted& wanted, const TableStyle& style) {
  const TimeFormatter times(view.at, std::nullopt);
  TableRows rows;
  std::string next;
  for (const auto& device : view.devices) {
    if (!wanted(device)) continue;
    rows.push_back(device_row(device, times, style));
    const auto* gpu = view.find({device.scope.gpu});
    const bool shown =
        !device.scope.is_whole_gpu() && gpu != nullptr && gpu->status.reason == device.status.reason;
    const auto what = shown ? std::string() : health::next_step(device);
    if (!what.empty()) next += describe_device(device) + ": " + what + "\n";
  }
  const auto table = draw_table({{"GPU"},
                                 {"MODEL"},
                                 {"UUID"},
                                 {"STATE"},
                                 {"SINCE (UTC)", ColumnUse::kWide},
                                 {"REASON", ColumnUse::kText}},
                                rows, style);
  return table + (next.empty() || !style.headers ? "" : "\n" + next);
}

std::string scope_text(const health::Scope& scope) {
  if (scope.is_whole_gpu()) return "the GPU";
  std::string text = "instance " + std::to_string(scope.gpu_instance);
  if (scope.compute_instance != health::kNoInstance) text += "/" + std::to_string(scope.compute_instance);
  return text;
}

std::string fault_table(const DeviceView& device, const TimeFormatter& times, const TableStyle& style) {
  TableRows rows;
  for (const auto& fault : device.status.faults) {
    std::string what = fault.fault_text();
    if (fault.condition_met_at)
      what += "; not observed any more since " + times.format_time(*fault.condition_met_at);
    rows.push_back({std::string(fault_rule(fault.fault_class).name), scope_text(fault.scope),
                    std::string(enum_name(fault.effect)), times.format_time(fault.opened),
                    times.format_time(fault.last_seen), std::to_string(fault.count), what});
  }
  return draw_table({{"FAULT"},
                     {"SCOPE"},
                     {"EFFECT"},
                     {"FIRST SEEN (UTC)", ColumnUse::kWide},
                     {"LAST SEEN (UTC)", ColumnUse::kWide},
                     {"COUNT"},
                     {"DETAIL", ColumnUse::kText}},
                    rows, style);
}

}  // namespace

HealthView replace_control_characters(HealthView view) {
  if (view.release) replace_controls(view.release->reason);
  for (auto& device : view.devices) {
    replace_controls(device.uuid);
    replace_controls(device.scope.gpu);
    for (auto* text : {&device.model, &device.slot, &device.status.reason, &device.status.recovery_text,
                       &device.excluded, &device.repair, &device.preflight, &device.preflight_detail}) {
      replace_controls(*text);
    }
    for (auto& fault : device.status.faults) {
      replace_controls(fault.scope.gpu);
      replace_controls(fault.detail);
    }
    for (auto& absence : device.unavailable_sources) replace_controls(absence.reason);
  }
  return view;
}

std::string health_table(const HealthView& view, const TableStyle& style) {
  // An agent that started with the driver released knows no GPU yet.
  const std::string released =
      view.release ? std::string(health::kDriverReleased) + ": " + view.release->reason + "\n" : "";
  if (!style.headers) return device_table(view, [](const DeviceView&) { return true; }, style);
  if (view.devices.empty()) return released.empty() ? "no GPU on this node\n" : released;
  return device_table(
             view, [](const DeviceView&) { return true; }, style) +
         (released.empty() ? "" : "\n" + released);
}

std::string health_details(const HealthView& view, const DeviceView& device, std::optional<WallTime> now,
                           const TableStyle& style) {
  const TimeFormatter times(view.at, now);
  const auto& standing = device.status;
  std::string text = describe_device(device) + ": " + std::string(enum_name(standing.state)) +
                     (is_allocatable(standing.state) ? "" : ", out of service") + "\n";
  TableRows rows;
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) rows.push_back({"  " + std::string(name), value});
  };
  add("model", device.model);
  add("slot", device.slot);
  add("since", times.format_with_age(standing.since));
  add("reason", standing.reason);
  if (!device.excluded.empty()) add("offered", "no: it " + device.excluded);
  add("preflight",
      device.preflight + (device.preflight_detail.empty() ? "" : ": " + device.preflight_detail));
  add("mode", pending_mig_text(device));
  add("returns", standing.recovery_text);
  if (standing.due) add("not before", times.format_with_age(*standing.due));
  if (standing.relapses > 0) add("relapses", std::to_string(standing.relapses));
  add("next", health::next_step(device));
  text += render_table(rows);
  if (!standing.faults.empty()) text += "\n" + fault_table(device, times, style);
  if (!device.unavailable_sources.empty()) {
    TableRows absent;
    for (const auto& absence : device.unavailable_sources)
      absent.push_back({std::string(enum_name(absence.source)), absence.reason});
    text += "\n" + draw_table({{"UNAVAILABLE SOURCE"}, {"REASON", ColumnUse::kText}}, absent, style);
  }
  const auto part_of_it = [&](const DeviceView& other) {
    return device.scope.is_whole_gpu() && !other.scope.is_whole_gpu() && other.scope.gpu == device.scope.gpu;
  };
  if (std::ranges::any_of(view.devices, part_of_it)) text += "\n" + device_table(view, part_of_it, style);
  return text;
}

namespace {

constexpr const char* kClearScreen = "\x1b[H\x1b[2J\x1b[3J";

std::string presence_path(const HealthOptions& options) {
  return options.state_dir.empty() ? std::string() : agent::presence_path(options.state_dir);
}

CommandOutput failed_health_output(const std::string& why) { return error_output("gpulet health", why); }

}  // namespace

CommandOutput health_output(const HealthOptions& options, WallTime now) {
  auto read = health::read_report(options.health_file);
  if (!read && read.error().code() == Code::kNotFound) {
    return failed_health_output(
        options.health_file +
        " does not exist: no agent has run on this node since boot, or it writes elsewhere (--health-file)");
  }
  if (!read) {
    const bool denied = read.error().code() == Code::kPermissionDenied;
    return failed_health_output(read.error().full_message() + (denied ? ": run it as root" : ""));
  }
  const auto view =
      options.output.is_document() ? std::move(*read) : replace_control_characters(std::move(*read));

  health::HealthView shown = view;
  CommandOutput answer;
  const DeviceView* device = nullptr;
  if (!options.device.empty()) {
    const auto found = health::find_device(view, options.device);
    if (!found) return failed_health_output(found.error().full_message());
    device = *found;
    std::erase_if(shown.devices, [&](const auto& other) { return !device->scope.covers(other.scope); });
  }
  answer.out = render_output(
      options.output, [&] { return health::format_report(shown); },
      [&](const TableStyle& style) {
        if (device == nullptr) return health_table(view, style);
        // Without ages: the output is printed again only on a change.
        return health_details(view, *device, options.watch ? std::nullopt : std::optional(now), style);
      });

  const bool all_offered =
      std::ranges::all_of(shown.devices, [](const auto& one) { return is_allocatable(one.status.state); });
  answer.exit_code = all_offered && !view.release ? 0 : kNeedsAction;
  const auto presence = presence_path(options);
  const auto runs = presence.empty() ? Result<bool>(true) : ProcessLock::is_locked(presence);
  if (!runs) {
    answer.err =
        "gpulet health: cannot tell whether an agent is running: " + runs.error().full_message() + "\n";
    answer.exit_code = kFailed;
  } else if (!*runs) {
    answer.err = "gpulet health: no agent is running on this node (nothing locks " + presence +
                 "); the report is from " + format_wall_time(view.at.wall) + "\n";
    answer.exit_code = kFailed;
  }
  return answer;
}

Result<std::unique_ptr<HealthWatcher>> HealthWatcher::start_watcher(
    Loop& loop, HealthOptions options, std::function<void(const CommandOutput&)> show) {
  options.watch = true;
  std::unique_ptr<HealthWatcher> watch(new HealthWatcher(loop, std::move(options), std::move(show)));
  auto* self = watch.get();
  for (const auto& path : {self->options_.health_file, presence_path(self->options_)}) {
    if (path.empty()) continue;
    GPULET_TRY_ASSIGN(auto one, FileWatcher::watch_path(loop, path, [self] { self->refresh(); }));
    self->watches_.push_back(std::move(one));
  }
  self->first_refresh_ = loop.after(Duration::zero(), [self] { self->refresh(); });
  return watch;
}

void HealthWatcher::refresh() {
  auto answer = health_output(options_, loop_.wall_now());
  if (last_output_ && answer.out == last_output_->out && answer.err == last_output_->err) return;
  last_output_ = std::move(answer);
  show_(*last_output_);
}

int run_health(const HealthOptions& options) {
  if (!options.watch) {
    return print_output(health_output(options, std::chrono::system_clock::now()));
  }
  EpollLoop loop;
  const bool screen = ::isatty(STDOUT_FILENO) != 0 && !options.output.is_document();
  bool first = true;
  const auto watch = HealthWatcher::start_watcher(loop, options, [&](const CommandOutput& answer) {
    if (screen) {
      std::cout << kClearScreen;
    } else if (!std::exchange(first, false) && options.output.format != "json") {
      std::cout << (options.output.is_document() ? "---\n" : "\n");
    }
    print_output(answer);
    if (!std::cout) loop.stop_loop();
  });
  if (!watch) {
    return print_error("gpulet health", watch.error().full_message());
  }
  loop.run_loop();
  return kFailed;
}

void add_agent_path_options(CLI::App& command, std::string& health_file, std::string& state_dir) {
  command
      .add_option("--health-file", health_file, "the agent's health report (default /run/gpulet/health.json)")
      ->envname("GPULET_HEALTH_FILE")
      ->group(kNodeGroup);
  command.add_option("--state-dir", state_dir, "the agent's state directory (default /var/lib/gpulet)")
      ->envname("GPULET_STATE_DIR")
      ->group(kNodeGroup);
}

void add_health(CLI::App& app, Run& run) {
  auto& command = add_command(
      app,
      {.name = "health",
       .summary = "Show the health of each GPU, the cause, and the recommended action",
       .details =
           "Reads the agent's report. Exits with 3 if a GPU is out of service, 1 if no agent is running.",
       .examples = "  gpulet health\n"
                   "  gpulet health 3\n"
                   "  gpulet health --watch",
       .group = kInspectGroup});
  const auto options = std::make_shared<HealthOptions>();
  command.add_option("GPU", options->device,
                     "show one device in detail, by index (MIG: 3:1), UUID or UUID prefix");
  command.add_flag("-w,--watch", options->watch, "print again whenever the health changes");
  add_output_options(command, options->output);
  add_agent_path_options(command, options->health_file, options->state_dir);
  command.callback([options, &run] { run = [options] { return run_health(*options); }; });
}

}  // namespace gpulet::cli

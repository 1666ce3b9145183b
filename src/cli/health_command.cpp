#include "cli/health_command.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "agent/cordon_care.h"
#include "base/presence.h"
#include "base/wall_time.h"
#include "cli/health_report.h"
#include "health/device_name.h"
#include "health/report.h"

namespace gpulet::cli {
namespace {

constexpr int kCannotSay = 1, kNotOffered = 3;
constexpr const char* kClearScreen = "\x1b[H\x1b[2J\x1b[3J";

std::string presence_of(const HealthOptions& options) {
  return options.state_dir.empty() ? std::string() : agent::presence_file(options.state_dir);
}

HealthAnswer refused(const std::string& why) { return {kCannotSay, {}, "gpulet health: " + why + "\n"}; }

}  // namespace

HealthAnswer health_answer(const HealthOptions& options, WallTime now) {
  auto read = health::read_report(options.health_file);
  if (!read && read.error().code() == Code::kNotFound) {
    return refused(
        "there is no " + options.health_file +
        ": no agent has run on this node since it was booted, or it writes elsewhere (--health-file)");
  }
  if (!read) return refused(read.error().text());
  const auto view = options.output == "json" ? std::move(*read) : printable(std::move(*read));

  health::View shown = view;
  HealthAnswer answer;
  if (options.device.empty()) {
    answer.out = health_table(view);
  } else {
    const auto device = health::find_device(view, options.device);
    if (!device) return refused(device.error().text());
    // What is redrawn on change alone would go on saying "4 min ago".
    answer.out = health_details(view, **device, options.watch ? std::nullopt : std::optional(now));
    std::erase_if(shown.devices, [&](const auto& other) { return !(*device)->scope.covers(other.scope); });
  }
  if (options.output == "json") answer.out = health::format_report(shown);

  const bool all_offered =
      std::ranges::all_of(shown.devices, [](const auto& one) { return offered(one.standing.state); });
  answer.exit_code = all_offered ? 0 : kNotOffered;
  const auto presence = presence_of(options);
  const auto runs = presence.empty() ? Result<bool>(true) : Presence::held(presence);
  if (!runs) {
    answer.err = "gpulet health: whether an agent runs cannot be told: " + runs.error().text() + "\n";
    answer.exit_code = kCannotSay;
  } else if (!*runs) {
    answer.err = "gpulet health: no agent runs on this node (none holds " + presence +
                 "); this is what the last one knew at " + wall_text(view.at.wall) + "\n";
    answer.exit_code = kCannotSay;
  }
  return answer;
}

Result<std::unique_ptr<HealthWatch>> HealthWatch::start(Loop& loop, HealthOptions options,
                                                        std::function<void(const HealthAnswer&)> show) {
  options.watch = true;
  std::unique_ptr<HealthWatch> watch(new HealthWatch(loop, std::move(options), std::move(show)));
  auto* self = watch.get();
  for (const auto& path : {self->options_.health_file, presence_of(self->options_)}) {
    if (path.empty()) continue;
    GPULET_TRY_ASSIGN(auto one, FileWatch::start(loop, path, [self] { self->look(); }));
    self->watches_.push_back(std::move(one));
  }
  self->first_ = loop.after(Duration::zero(), [self] { self->look(); });
  return watch;
}

void HealthWatch::look() {
  auto answer = health_answer(options_, loop_.wall_now());
  if (shown_ && answer.out == shown_->out && answer.err == shown_->err) return;
  shown_ = std::move(answer);
  show_(*shown_);
}

int health(const HealthOptions& options) {
  if (!options.watch) {
    const auto answer = health_answer(options, std::chrono::system_clock::now());
    std::cout << answer.out << std::flush;
    std::cerr << answer.err;
    return answer.exit_code;
  }
  EpollLoop loop;
  const bool screen = ::isatty(STDOUT_FILENO) != 0 && options.output != "json";
  bool first = true;
  const auto watch = HealthWatch::start(loop, options, [&](const HealthAnswer& answer) {
    if (screen) {
      std::cout << kClearScreen;
    } else if (!std::exchange(first, false) && options.output != "json") {
      std::cout << '\n';
    }
    std::cout << answer.out << std::flush;
    std::cerr << answer.err;
    if (!std::cout) loop.stop();
  });
  if (!watch) {
    std::cerr << "gpulet health: " << watch.error().text() << '\n';
    return kCannotSay;
  }
  loop.run();
  return kCannotSay;
}

}  // namespace gpulet::cli

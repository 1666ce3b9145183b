#include "cli/cordon_command.h"

#include <algorithm>
#include <iostream>
#include <optional>

#include "agent/cordon_care.h"
#include "agent/nvml_driver.h"
#include "base/presence.h"
#include "base/text.h"
#include "cli/exit_codes.h"
#include "cli/health_report.h"
#include "health/cordons.h"
#include "health/device_name.h"
#include "health/report.h"

namespace gpulet::cli {
namespace {

using health::Wish;

// Which device is meant, and what is known of it.
struct Target {
  DeviceUuid uuid;
  std::string name;                          // "GPU 3 (GPU-5a…)"
  std::optional<health::DeviceView> device;  // absent: a UUID of which nothing is known
  std::vector<DeviceUuid> parts;             // a GPU's MIG devices
};

health::View view_of_driver(const inventory::Snapshot& snapshot) {
  health::Machine machine({}, health::XidFilter("", ""));
  machine.on_snapshot(snapshot, {});
  return health::view_of(machine, snapshot, {});
}

Result<Target> target_of(const CordonOptions& options, bool agent_runs,
                         const std::function<Result<inventory::Snapshot>()>& ask_driver) {
  Result<health::View> view =
      agent_runs ? health::read_report(options.health_file) : fail(Code::kUnavailable, "no agent runs");
  if (view) {
    view = printable(std::move(*view));
  } else {
    const auto snapshot = ask_driver();
    if (snapshot) {
      view = view_of_driver(*snapshot);
    } else if (!health::is_whole_uuid(options.device)) {
      return fail(Code::kUnavailable,
                  "which device '" + options.device + "' is cannot be told: " + view.error().text() +
                      ", and the driver says: " + snapshot.error().text() + "; a whole UUID needs neither");
    }
  }
  Target target{DeviceUuid(options.device), options.device, std::nullopt, {}};
  if (!view) return target;
  const auto device = health::find_device(*view, options.device);
  if (!device && health::is_whole_uuid(options.device)) {
    target.name += " (not on this node now)";
    return target;
  }
  if (!device) return fail(device.error());
  if ((*device)->uuid.empty()) return fail(Code::kNotFound, "its MIG device is no more", describe(**device));
  target.uuid = (*device)->uuid;
  target.name = describe(**device);
  target.device = **device;
  for (const auto& other : view->devices) {
    if ((*device)->scope.whole() && !other.scope.whole() && other.scope.gpu == (*device)->scope.gpu)
      target.parts.push_back(other.uuid);
  }
  return target;
}

// Faults of which an operator's word would be taken for the proof.
std::vector<std::string> vouched_for(const Target& target) {
  std::vector<std::string> texts;
  if (!target.device) return texts;
  for (const auto& fault : target.device->standing.faults) {
    const auto& rule = rule_of(fault.fault_class);
    const bool vouched = !fault.proved && rule.want != health::Want::kReading &&
                         fault.fault_class != health::FaultClass::kCordoned &&
                         target.device->scope.covers(fault.scope);
    if (vouched) texts.push_back(fault.text());
  }
  return texts;
}

std::string because(const std::string& words) { return words.empty() ? "" : ": " + words; }

// Changes the words, and says what that comes to.
std::string apply_cordon(health::Cordons& cordons, const Target& target, const std::string& words,
                         WallTime now) {
  auto& word = cordons[target.uuid];
  const bool already = word.wish == Wish::kCordon && word.at != WallTime();
  if (already && (words.empty() || words == word.words))
    return target.name + " is cordoned already" + because(word.words);
  // A newer word than any before, whatever the clock says.
  word = {Wish::kCordon, std::max(now, word.at + std::chrono::milliseconds(1)), words};
  return target.name + " is cordoned" + because(words);
}

std::string apply_uncordon(health::Cordons& cordons, const Target& target, WallTime now) {
  const auto found = cordons.find(target.uuid);
  bool cordoned = found != cordons.end() && found->second.wish == Wish::kCordon;
  const auto vouched = vouched_for(target);
  WallTime at = now;
  if (found != cordons.end()) at = std::max(now, found->second.at + std::chrono::milliseconds(1));
  if (cordoned || !vouched.empty() || !target.device) cordons[target.uuid] = {Wish::kUncordon, at, {}};
  // What is said of the whole is said of its parts.
  for (const auto& part : target.parts) {
    const auto line = cordons.find(part);
    if (line == cordons.end() || line->second.wish != Wish::kCordon) continue;
    cordons.erase(line);
    cordoned = true;
  }
  std::string text = target.name + (cordoned ? " is cordoned no longer" : " was not cordoned");
  if (!vouched.empty()) {
    text += "; taken as dealt with, its checks follow: " + text::join(vouched, "; ");
  }
  return text;
}

}  // namespace

CordonAnswer cordon_answer(Wish wish, const CordonOptions& options, WallTime now,
                           const std::function<Result<inventory::Snapshot>()>& ask_driver) {
  const std::string command = wish == Wish::kCordon ? "gpulet cordon" : "gpulet uncordon";
  const auto refused = [&](int code, const std::string& why) {
    return CordonAnswer{code, {}, command + ": " + why + "\n"};
  };
  if (options.state_dir.empty())
    return refused(kWrongCommand, "there is no state folder to keep it in (--state-dir)");
  if (options.reason.size() > health::kMaxCordonWords) {
    return refused(kWrongCommand, "the reason has " + std::to_string(options.reason.size()) +
                                      " bytes; at most " + std::to_string(health::kMaxCordonWords));
  }
  const auto runs = Presence::held(agent::presence_file(options.state_dir));
  if (!runs) return refused(kFailed, runs.error().text());
  const auto target = target_of(options, *runs, ask_driver);
  if (!target) return refused(kFailed, target.error().text());

  now = std::chrono::floor<std::chrono::milliseconds>(now);
  CordonAnswer answer;
  const auto status =
      health::change_cordons(agent::cordons_file(options.state_dir), now, [&](health::Cordons& cordons) {
        answer.out = wish == Wish::kCordon
                         ? apply_cordon(cordons, *target, health::cordon_words(options.reason), now)
                         : apply_uncordon(cordons, *target, now);
      });
  if (!status) return refused(kFailed, status.error().text());
  answer.out += "\n";
  if (!*runs) answer.out += "no agent runs on this node: it counts once one does\n";
  return answer;
}

int cordon(Wish wish, const CordonOptions& options) {
  const auto answer = cordon_answer(wish, options, std::chrono::system_clock::now(), [&] {
    return agent::read_snapshot({.driver_root = options.driver_root});
  });
  std::cout << answer.out << std::flush;
  std::cerr << answer.err;
  return answer.exit_code;
}

}  // namespace gpulet::cli

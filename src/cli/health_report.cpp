#include "cli/health_report.h"

#include <algorithm>

#include "base/wall_time.h"
#include "cli/text_table.h"
#include "health/remedies.h"

namespace gpulet::cli {
namespace {

using health::DeviceView;
using health::View;

void clean(std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters too: C2 80 to C2 9F.
    const bool c1 = c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c1) text.erase(i, 1);
    if (c1 || c < ' ' || c == 0x7F) text[i] = '?';
  }
}

void clean(DeviceUuid& uuid) {
  std::string text = uuid.str();
  clean(text);
  uuid = DeviceUuid(std::move(text));
}

class Times {
 public:
  Times(const health::Clock& at, std::optional<WallTime> now) : at_(at), now_(now) {}
  // "2026-01-31 12:00:00"
  std::string text(Time time) const {
    const auto text = wall_text(wall(time));
    return text.substr(0, 10) + " " + text.substr(11, 8);
  }
  // "2026-01-31 12:00:00 UTC (4 min ago)"
  std::string with_age(Time time) const {
    std::string out = text(time) + " UTC";
    if (!now_) return out;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(*now_ - wall(time)).count();
    return out + (seconds < 0 ? " (in " + span(-seconds) + ")" : " (" + span(seconds) + " ago)");
  }

 private:
  WallTime wall(Time time) const {
    return at_.wall - std::chrono::duration_cast<WallTime::duration>(at_.now - time);
  }
  static std::string span(std::int64_t seconds) {
    if (seconds < 120) return std::to_string(seconds) + " s";
    if (seconds < 2 * 3600) return std::to_string(seconds / 60) + " min";
    if (seconds < 2 * 86'400) return std::to_string(seconds / 3600) + " h";
    return std::to_string(seconds / 86'400) + " d";
  }

  const health::Clock& at_;
  std::optional<WallTime> now_;
};

// "3", "  3:1"; of one that is gone nothing.
std::string index_of(const DeviceView& device) {
  if (!device.gpu_index) return kNone;
  auto index = std::to_string(*device.gpu_index);
  if (device.scope.whole()) return index;
  return "  " + index + ":" + (device.mig_index ? std::to_string(*device.mig_index) : kNone);
}

std::vector<std::string> row_of(const DeviceView& device, const Times& times) {
  const auto& standing = device.standing;
  return {index_of(device),
          or_none((device.scope.whole() || device.model.empty() ? "" : "MIG ") + device.model),
          or_none(device.uuid.empty() ? device.scope.gpu.str() : device.uuid.str()),
          std::string(name(standing.state)),
          times.text(standing.since),
          standing.reason};
}

// Devices of which `wanted` is true, and what is next about each that is not well. Of what a GPU has, its MIG
// devices have it too: it is said once.
template <class Wanted>
std::string table(const View& view, const Wanted& wanted) {
  const Times times(view.at, std::nullopt);
  Rows rows{{"GPU", "MODEL", "UUID", "STATE", "SINCE (UTC)", "REASON"}};
  std::string next;
  for (const auto& device : view.devices) {
    if (!wanted(device)) continue;
    rows.push_back(row_of(device, times));
    const auto* gpu = view.find({device.scope.gpu});
    const bool said =
        !device.scope.whole() && gpu != nullptr && gpu->standing.reason == device.standing.reason;
    const auto what = said ? std::string() : health::what_next(device);
    if (!what.empty()) next += describe(device) + ": " + what + "\n";
  }
  return text_table(rows) + (next.empty() ? "" : "\n" + next);
}

std::string place_of(const health::Scope& scope) {
  if (scope.whole()) return "the GPU";
  std::string text = "instance " + std::to_string(scope.gpu_instance);
  if (scope.compute_instance != health::kNoInstance) text += "/" + std::to_string(scope.compute_instance);
  return text;
}

std::string faults_of(const DeviceView& device, const Times& times) {
  Rows rows{{"FAULT", "OF", "EFFECT", "FIRST SEEN (UTC)", "LAST SEEN (UTC)", "TIMES", "WHAT"}};
  for (const auto& fault : device.standing.faults) {
    std::string what = fault.text();
    if (fault.proved) what += "; over, as far as it can be known, since " + times.text(*fault.proved);
    rows.push_back({std::string(rule_of(fault.fault_class).name), place_of(fault.scope),
                    std::string(name(fault.effect)), times.text(fault.opened), times.text(fault.last_seen),
                    std::to_string(fault.count), what});
  }
  return text_table(rows);
}

}  // namespace

View printable(View view) {
  for (auto& device : view.devices) {
    clean(device.uuid);
    clean(device.scope.gpu);
    for (auto* text : {&device.model, &device.slot, &device.standing.reason, &device.standing.comes_back}) {
      clean(*text);
    }
    for (auto& fault : device.standing.faults) {
      clean(fault.scope.gpu);
      clean(fault.detail);
    }
    for (auto& absence : device.absences) clean(absence.why);
  }
  return view;
}

std::string health_table(const View& view) {
  if (view.devices.empty()) return "there is no GPU on this node\n";
  return table(view, [](const DeviceView&) { return true; });
}

std::string health_details(const View& view, const DeviceView& device, std::optional<WallTime> now) {
  const Times times(view.at, now);
  const auto& standing = device.standing;
  std::string text = describe(device) + ": " + std::string(name(standing.state)) +
                     (offered(standing.state) ? "" : ", not offered") + "\n";
  Rows rows;
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) rows.push_back({"  " + std::string(name), value});
  };
  add("model", device.model);
  add("slot", device.slot);
  add("since", times.with_age(standing.since));
  add("reason", standing.reason);
  add("returns", standing.comes_back);
  if (standing.due) add("not before", times.with_age(*standing.due));
  if (standing.relapses > 0) add("relapses", std::to_string(standing.relapses));
  add("next", health::what_next(device));
  text += text_table(rows);
  if (!standing.faults.empty()) text += "\n" + faults_of(device, times);
  if (!device.absences.empty()) {
    Rows absent{{"CANNOT BE ASKED", "WHY"}};
    for (const auto& absence : device.absences)
      absent.push_back({std::string(name(absence.source)), absence.why});
    text += "\n" + text_table(absent);
  }
  const auto part_of_it = [&](const DeviceView& other) {
    return device.scope.whole() && !other.scope.whole() && other.scope.gpu == device.scope.gpu;
  };
  if (std::ranges::any_of(view.devices, part_of_it)) text += "\n" + table(view, part_of_it);
  return text;
}

}  // namespace gpulet::cli

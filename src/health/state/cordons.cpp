#include "health/state/cordons.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::health {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kCordonsHead = "gpulet-cordons 1";
constexpr std::string_view kCordonWord = "cordoned", kUncordonWord = "uncordoned";
constexpr std::size_t kMaxUuid = 128;

bool is_uuid(std::string_view text) {
  return !text.empty() && text.size() <= kMaxUuid &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7F; });
}

std::string_view next_cordon_field(std::string_view& line) {
  const auto end = line.find(' ');
  const auto entry = line.substr(0, end);
  line.remove_prefix(end == std::string_view::npos ? line.size() : end + 1);
  return entry;
}

// Whether the line is valid; adds it to `cordons`.
bool parse_cordon_line(std::string_view line, Cordons& cordons) {
  const auto kind = next_cordon_field(line);
  const auto uuid = next_cordon_field(line);
  const auto at = text::parse_unsigned(next_cordon_field(line));
  constexpr auto kLatest =
      static_cast<std::uint64_t>(std::chrono::floor<milliseconds>(kLastWallTime).time_since_epoch().count());
  if ((kind != kCordonWord && kind != kUncordonWord) || !is_uuid(uuid) || !at || *at > kLatest) return false;
  CordonEntry entry{kind == kCordonWord ? OperatorAction::kCordon : OperatorAction::kUncordon,
                    WallTime(milliseconds(*at)), std::string(line)};
  if (entry.reason != sanitize_cordon_reason(entry.reason)) return false;
  return cordons.emplace(std::string(uuid), std::move(entry)).second;
}

Result<FileDescriptor> lock_cordons_file(const std::string& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!fd.is_open()) return fail(errno_error("cannot open", errno, path));
  while (::flock(fd.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return fail(errno_error("cannot lock", errno, path));
  }
  return fd;
}

}  // namespace

std::string sanitize_cordon_reason(std::string_view text) {
  std::string words(text::trim(text));
  for (char& c : words) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7F) c = ' ';
  }
  if (words.size() > kMaxCordonReason) {
    std::size_t end = kMaxCordonReason;
    while (end > 0 && (static_cast<unsigned char>(words[end]) & 0xC0) == 0x80) --end;
    words.resize(end);
  }
  return std::string(text::trim(words));
}

std::string format_cordons(const Cordons& cordons) {
  std::string out = std::string(kCordonsHead) + "\n";
  for (const auto& [uuid, entry] : cordons) {
    const auto at = std::chrono::floor<milliseconds>(std::clamp(entry.at, kFirstWallTime, kLastWallTime));
    out += std::string(entry.action == OperatorAction::kCordon ? kCordonWord : kUncordonWord) + " " +
           uuid.str() + " " + std::to_string(at.time_since_epoch().count());
    if (const auto words = sanitize_cordon_reason(entry.reason); !words.empty()) out += " " + words;
    out += "\n";
  }
  return out;
}

Result<Cordons> parse_cordons(std::string_view text) {
  Cordons cordons;
  const auto lines = text::split(text, '\n');
  const auto wrong = [](std::size_t line, const std::string& what) {
    return fail(Code::kInvalidArgument, "line " + std::to_string(line + 1) + " " + what);
  };
  if (lines.empty() || lines[0] != kCordonsHead)
    return wrong(0, "is not '" + std::string(kCordonsHead) + "'");
  if (lines.size() == 1 || !lines.back().empty()) return wrong(lines.size() - 1, "is truncated");
  for (std::size_t i = 1; i + 1 < lines.size(); ++i) {
    if (cordons.size() >= kMaxCordons) return wrong(i, "exceeds the limit of lines");
    if (!parse_cordon_line(lines[i], cordons)) return wrong(i, "is not a cordon entry");
  }
  return cordons;
}

Result<Cordons> read_cordons(const std::string& path) {
  const auto content = read_file(path, kMaxCordonBytes);
  if (!content && content.error().code() == Code::kNotFound) return Cordons{};
  if (!content) return fail(content.error());
  auto cordons = parse_cordons(*content);
  if (!cordons) return fail(Error(cordons.error().code(), cordons.error().message(), path));
  return cordons;
}

Status update_cordons(const std::string& path, WallTime now, const std::function<void(Cordons&)>& change) {
  const auto slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0) GPULET_TRY(make_directories(path.substr(0, slash)));
  GPULET_TRY_ASSIGN(const auto held, lock_cordons_file(path + ".lock"));
  GPULET_TRY_ASSIGN(const auto before, read_cordons(path));
  auto after = before;
  change(after);
  std::erase_if(after, [&](const auto& entry) {
    return entry.second.action == OperatorAction::kUncordon && now - entry.second.at > kUncordonedRetention;
  });
  if (after.size() > kMaxCordons) {
    return fail(Code::kInvalidArgument,
                "it has " + std::to_string(kMaxCordons) + " lines already, the maximum", path);
  }
  if (after == before) return {};
  return write_file_atomic(path, format_cordons(after));
}

std::vector<Evidence> pending_operator_commands(const HealthView& view, const Cordons& cordons,
                                                const ClockPair& now) {
  std::vector<Evidence> commands;
  for (const auto& device : view.devices) {
    const auto& faults = device.status.faults;
    const auto fault = std::ranges::find_if(faults, [&](const Fault& fault) {
      return fault.fault_class == FaultClass::kCordoned && fault.scope == device.scope;
    });
    const Fault* cordon = fault == faults.end() ? nullptr : &*fault;
    const auto found = device.uuid.empty() ? cordons.end() : cordons.find(device.uuid);
    const CordonEntry* entry = found == cordons.end() ? nullptr : &found->second;
    // An entry from the future (the clock was set back since) counts as now.
    const Time entered_at =
        entry == nullptr ? Time() : now.now - std::max<Duration>(now.wall - entry->at, Duration::zero());
    if (entry != nullptr && entry->action == OperatorAction::kCordon) {
      const bool renewed = cordon != nullptr && entered_at > cordon->last_seen &&
                           (cordon->condition_met_at || cordon->detail != entry->reason);
      if (cordon == nullptr || renewed)
        commands.push_back(
            {device.scope, entered_at, OperatorCommand{OperatorAction::kCordon, entry->reason}});
      continue;
    }
    std::optional<Time> over;
    if (cordon != nullptr && !cordon->condition_met_at) over = cordon->last_seen;
    // It vouches for earlier faults that no reading ends, as in apply_evidence.
    const bool vouches = entry != nullptr && std::ranges::any_of(faults, [&](const Fault& fault) {
                           return device.scope.covers(fault.scope) && !fault.condition_met_at &&
                                  fault.last_seen < entered_at &&
                                  fault_rule(fault.fault_class).condition != RecoveryCondition::kReadingClear;
                         });
    if (vouches) over = std::max(over.value_or(entered_at), entered_at);
    if (over) commands.push_back({device.scope, *over, OperatorCommand{OperatorAction::kUncordon, {}}});
  }
  return commands;
}

}  // namespace gpulet::health

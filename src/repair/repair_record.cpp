#include "repair/repair_record.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::repair {
namespace {

constexpr std::string_view kHead = "gpulet-repair 1";
constexpr std::size_t kMaxWord = 128;

std::string time_text(WallTime at) {
  return std::to_string(unix_milliseconds(std::clamp(at, kFirstWallTime, kLastWallTime)));
}

std::optional<WallTime> parse_time(std::string_view word) {
  const auto number = text::parse_unsigned(word);
  if (!number || *number > static_cast<std::uint64_t>(unix_milliseconds(kLastWallTime))) return std::nullopt;
  return WallTime(std::chrono::milliseconds(*number));
}

// One word of the file: no spaces, no control characters.
bool is_word(std::string_view word) {
  return !word.empty() && word.size() <= kMaxWord &&
         std::ranges::all_of(word, [](char c) { return c > ' ' && c < 0x7F; });
}

std::optional<std::vector<WallTime>> parse_times(std::string_view word) {
  std::vector<WallTime> times;
  for (const auto& one : text::split(word, ',')) {
    const auto at = parse_time(one);
    if (!at || times.size() >= kMaxRecordAttempts) return std::nullopt;
    times.push_back(*at);
  }
  if (times.empty()) return std::nullopt;
  return times;
}

std::optional<std::vector<DeviceUuid>> parse_gpus(std::string_view word) {
  std::vector<DeviceUuid> gpus;
  for (auto& gpu : text::split(word, ',')) {
    if (!is_word(gpu) || gpus.size() >= kMaxRecordGpus) return std::nullopt;
    gpus.emplace_back(std::move(gpu));
  }
  if (gpus.empty()) return std::nullopt;
  return gpus;
}

std::string gpus_word(const std::vector<DeviceUuid>& gpus) {
  std::string out;
  for (const auto& gpu : gpus) out += (out.empty() ? "" : ",") + gpu.str();
  return out;
}

bool add_attempts(const std::vector<std::string>& words, Record& record) {
  if (words.size() != 3 || record.attempts.size() >= kMaxRecordGpus) return false;
  const auto times = parse_times(words[2]);
  return times && record.attempts.emplace(DeviceUuid(words[1]), *times).second;
}

// False for a line that is none of this file's.
bool add_line(const std::vector<std::string>& words, Record& record) {
  if (words.size() < 3 || !is_word(words[1])) return false;
  const auto& kind = words[0];
  if (kind == "gpu") return add_attempts(words, record);
  if (words.size() != 4) return false;
  const auto at = parse_time(words[2]);
  const auto gpus = parse_gpus(words[3]);
  if (!at || !gpus) return false;
  if (kind == "resetting" && !record.resetting) {
    record.resetting = Record::Reset{words[1], *at, *gpus};
    return true;
  }
  if (kind == "reboot" && !record.reboot) {
    record.reboot = Record::Reboot{words[1], *at, *gpus};
    return true;
  }
  return false;
}

}  // namespace

void Record::add_attempt(const DeviceUuid& gpu, WallTime at) {
  auto& times = attempts[gpu];
  times.push_back(at);
  if (times.size() > kMaxRecordAttempts) times.erase(times.begin());
}

std::string format_record(const Record& record) {
  std::string out = std::string(kHead) + "\n";
  if (const auto& reset = record.resetting)
    out +=
        "resetting " + reset->boot_id + " " + time_text(reset->since) + " " + gpus_word(reset->gpus) + "\n";
  for (const auto& [gpu, times] : record.attempts) {
    std::string list;
    for (const auto at : times) list += (list.empty() ? "" : ",") + time_text(at);
    out += "gpu " + gpu.str() + " " + list + "\n";
  }
  if (const auto& reboot = record.reboot)
    out +=
        "reboot " + reboot->boot_id + " " + time_text(reboot->since) + " " + gpus_word(reboot->gpus) + "\n";
  return out + "end\n";
}

Result<Record> parse_record(std::string_view content) {
  const auto lines = text::split(content, '\n');
  const auto wrong = [](std::size_t line, const std::string& what) {
    return fail(Code::kInvalidArgument, "line " + std::to_string(line) + " " + what);
  };
  if (lines.empty() || lines[0] != kHead) return wrong(1, "is not '" + std::string(kHead) + "'");
  if (lines.size() < 3 || lines[lines.size() - 2] != "end" || !lines.back().empty())
    return wrong(lines.size(), "is not after 'end': the file is cut");
  Record record;
  for (std::size_t i = 1; i + 2 < lines.size(); ++i) {
    const auto words = text::split(lines[i], ' ');
    if (!add_line(words, record))
      return wrong(i + 1,
                   "is neither 'resetting BOOT TIME GPU,…', 'gpu GPU TIME,…' nor 'reboot BOOT TIME GPU,…'");
  }
  return record;
}

Result<Record> read_record(const std::string& path) {
  const auto content = read_file(path, kMaxRecordBytes);
  if (!content && content.error().code() == Code::kNotFound) return Record{};
  if (!content) return fail(content.error());
  auto record = parse_record(*content);
  if (!record) return fail(Error(record.error().code(), record.error().message(), path));
  return record;
}

Status write_record(const std::string& path, const Record& record) {
  if (!record.is_empty()) return write_file_atomic(path, format_record(record), 0600);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return fail(errno_error("cannot remove", errno, path));
  return {};
}

}  // namespace gpulet::repair

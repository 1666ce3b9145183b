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

// False for a line that is none of this file's.
bool add_line(const std::vector<std::string>& words, Record& record) {
  if (words.size() < 3 || !std::ranges::all_of(words, is_word)) return false;
  const auto& kind = words[0];
  const auto at = parse_time(words[kind == "gpu" && words.size() > 3 ? 3 : 2]);
  if (!at) return false;
  if (kind == "gpu" && words.size() == 4) {
    const auto count = text::parse_unsigned(words[2]);
    if (!count || *count > kMaxRecordAttempts || record.attempts.size() >= kMaxRecordGpus) return false;
    return record.attempts.emplace(DeviceUuid(words[1]), Record::Attempts{static_cast<unsigned>(*count), *at})
        .second;
  }
  if (kind == "reboot" && words.size() == 3 && !record.reboot) {
    record.reboot = Record::Reboot{words[1], *at};
    return true;
  }
  return false;
}

bool add_reset(const std::vector<std::string>& words, Record& record) {
  if (words.size() != 4 || record.resetting || !is_word(words[1])) return false;
  const auto at = parse_time(words[2]);
  if (!at) return false;
  Record::Reset reset{words[1], *at, {}};
  for (auto& gpu : text::split(words[3], ',')) {
    if (!is_word(gpu) || reset.gpus.size() >= kMaxRecordGpus) return false;
    reset.gpus.emplace_back(std::move(gpu));
  }
  if (reset.gpus.empty()) return false;
  record.resetting = std::move(reset);
  return true;
}

}  // namespace

std::string format_record(const Record& record) {
  std::string out = std::string(kHead) + "\n";
  if (const auto& reset = record.resetting) {
    out += "resetting " + reset->boot_id + " " + time_text(reset->since) + " ";
    for (std::size_t i = 0; i < reset->gpus.size(); ++i) out += (i == 0 ? "" : ",") + reset->gpus[i].str();
    out += "\n";
  }
  for (const auto& [gpu, attempts] : record.attempts)
    out += "gpu " + gpu.str() + " " + std::to_string(attempts.count) + " " + time_text(attempts.last) + "\n";
  if (record.reboot) out += "reboot " + record.reboot->boot_id + " " + time_text(record.reboot->since) + "\n";
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
    const bool is_reset = !words.empty() && words[0] == "resetting";
    if (!(is_reset ? add_reset(words, record) : add_line(words, record)))
      return wrong(i + 1,
                   "is neither 'resetting BOOT TIME GPU,…', 'gpu GPU COUNT TIME' nor 'reboot BOOT TIME'");
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

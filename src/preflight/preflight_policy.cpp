#include "preflight/preflight_policy.h"

#include <algorithm>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::preflight {
namespace {

constexpr std::string_view kBootRecordHead = "gpulet-preflight 1";
constexpr std::size_t kMaxRecordWord = 128;
constexpr Verdict::Kind kRecordedKinds[] = {Verdict::Kind::kPassed, Verdict::Kind::kSlow,
                                            Verdict::Kind::kFailed, Verdict::Kind::kUnknown};

bool is_record_word(std::string_view word) {
  return !word.empty() && word.size() <= kMaxRecordWord &&
         std::ranges::all_of(word, [](char c) { return c > ' ' && c < 0x7F; });
}

bool add_record_line(const std::vector<std::string>& words, BootRecord& record) {
  if (words.size() < 2 || !is_record_word(words[1])) return false;
  if (words[0] == "boot" && words.size() == 2 && record.boot_id.empty()) {
    record.boot_id = words[1];
    return true;
  }
  if (words[0] == "started" && words.size() == 2)
    return record.started.size() < kMaxBootRecordGpus && record.started.emplace(words[1]).second;
  if (words[0] != "gpu" || words.size() != 3 || record.gpus.size() >= kMaxBootRecordGpus) return false;
  const auto* const kind =
      std::ranges::find(kRecordedKinds, words[2], [](auto one) { return enum_name(one); });
  return kind != std::end(kRecordedKinds) && record.gpus.emplace(DeviceUuid(words[1]), *kind).second;
}

}  // namespace

std::string format_boot_record(const BootRecord& record) {
  std::string out = std::string(kBootRecordHead) + "\n";
  if (!record.boot_id.empty()) out += "boot " + record.boot_id + "\n";
  for (const auto& [gpu, kind] : record.gpus)
    out += "gpu " + gpu.str() + " " + std::string(enum_name(kind)) + "\n";
  for (const auto& gpu : record.started) out += "started " + gpu.str() + "\n";
  return out + "end\n";
}

Result<BootRecord> parse_boot_record(std::string_view content) {
  const auto lines = text::split(content, '\n');
  const auto wrong = [](std::size_t line, const std::string& what) {
    return fail(Code::kInvalidArgument, "line " + std::to_string(line) + " " + what);
  };
  if (lines.empty() || lines[0] != kBootRecordHead)
    return wrong(1, "is not '" + std::string(kBootRecordHead) + "'");
  if (lines.size() < 3 || lines[lines.size() - 2] != "end" || !lines.back().empty())
    return wrong(lines.size(), "is not after 'end': the file is cut");
  BootRecord record;
  for (std::size_t i = 1; i + 2 < lines.size(); ++i) {
    if (!add_record_line(text::split(lines[i], ' '), record))
      return wrong(i + 1, "is neither 'boot ID', 'started GPU' nor 'gpu GPU passed|slow|failed|unknown'");
  }
  return record;
}

Result<BootRecord> read_boot_record(const std::string& path) {
  const auto content = read_file(path, kMaxBootRecordBytes);
  if (!content && content.error().code() == Code::kNotFound) return BootRecord{};
  if (!content) return fail(content.error());
  auto record = parse_boot_record(*content);
  if (!record) return fail(Error(record.error().code(), record.error().message(), path));
  return record;
}

Status write_boot_record(const std::string& path, const BootRecord& record) {
  return write_file_atomic(path, format_boot_record(record), 0600);
}

}  // namespace gpulet::preflight

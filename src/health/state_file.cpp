#include "health/state_file.h"

#include "base/file.h"
#include "base/text.h"
#include "base/wall_time.h"
#include "health/machine.h"

namespace gpulet::health {
namespace {

constexpr std::string_view kHead = "gpulet-health 1";
constexpr std::string_view kEnd = "end";
// The year 2262: beyond, nanoseconds since 1970 no longer fit.
constexpr std::uint64_t kLatest = 9'200'000'000'000;

std::string wall_word(WallTime wall) { return std::to_string(unix_milliseconds(wall)); }

std::string instance_word(std::uint32_t id) { return id == kNoInstance ? "-" : std::to_string(id); }

std::string word(const std::string& text) {
  std::string out;
  for (const char c : text) out += c > ' ' && c < 0x7F ? c : '?';
  return out.empty() ? "-" : out;
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  return std::string(text::trim(text));
}

// The words of one line, one after the other.
class Words {
 public:
  explicit Words(std::string_view line) : left_(line) {}
  std::string_view next() {
    const auto end = left_.find(' ');
    const auto word = left_.substr(0, end);
    left_.remove_prefix(end == std::string_view::npos ? left_.size() : end + 1);
    return word;
  }
  std::string_view rest() const { return left_; }

  bool number(std::uint64_t& value, std::uint64_t most) {
    const auto read = text::parse_unsigned(next());
    if (!read || *read > most) return false;
    value = *read;
    return true;
  }
  bool time(WallTime& wall) {
    std::uint64_t value = 0;
    if (!number(value, kLatest)) return false;
    wall = WallTime(std::chrono::milliseconds(value));
    return true;
  }
  bool instance(std::uint32_t& id) {
    Words copy = *this;
    if (copy.next() == "-") {
      *this = copy;
      id = kNoInstance;
      return true;
    }
    std::uint64_t value = 0;
    if (!number(value, kNoInstance - 1)) return false;
    id = static_cast<std::uint32_t>(value);
    return true;
  }

 private:
  std::string_view left_;
};

bool parse_gpu(Words words, SavedGpu& gpu) {
  gpu.uuid = DeviceUuid(std::string(words.next()));
  const auto slot = words.next();
  if (slot != "-") gpu.slot = slot;
  std::uint64_t relapses = 0;
  if (gpu.uuid.empty() || slot.empty() || !words.number(relapses, kMostRelapses)) return false;
  gpu.relapses = static_cast<unsigned>(relapses);
  if (words.rest() == "-") return true;
  WallTime recovered;
  if (!words.time(recovered)) return false;
  gpu.recovered = recovered;
  return words.rest().empty();
}

bool parse_fault(Words words, SavedFault& fault) {
  const auto fault_class = parse_fault_class(words.next());
  std::uint64_t linked = 0;
  const bool whole = fault_class && words.number(fault.code, ~0ull) && words.instance(fault.gpu_instance) &&
                     words.instance(fault.compute_instance) && words.time(fault.opened) &&
                     words.time(fault.last_seen) && words.number(fault.count, ~0ull) &&
                     words.number(linked, 1);
  if (!whole) return false;
  // What breaks no GPU instance breaks no compute instance of it, and nothing is last seen before it began.
  if (fault.gpu_instance == kNoInstance && fault.compute_instance != kNoInstance) return false;
  if (fault.last_seen < fault.opened) return false;
  fault.fault_class = *fault_class;
  fault.linked = linked != 0;
  fault.detail = words.rest();
  return true;
}

}  // namespace

std::string format_state(const Saved& saved) {
  std::string out = std::string(kHead) + "\nboot " + word(saved.boot_id) + "\n";
  for (const auto& gpu : saved.gpus) {
    out += "gpu " + word(gpu.uuid.str()) + " " + word(gpu.slot) + " " + std::to_string(gpu.relapses) + " " +
           (gpu.recovered ? wall_word(*gpu.recovered) : "-") + "\n";
    for (const auto& fault : gpu.faults) {
      out += "fault " + std::string(rule_of(fault.fault_class).name) + " " + std::to_string(fault.code) +
             " " + instance_word(fault.gpu_instance) + " " + instance_word(fault.compute_instance) + " " +
             wall_word(fault.opened) + " " + wall_word(fault.last_seen) + " " +
             std::to_string(fault.count) + (fault.linked ? " 1" : " 0");
      if (const auto detail = one_line(fault.detail); !detail.empty()) out += " " + detail;
      out += "\n";
    }
  }
  return out + std::string(kEnd) + "\n";
}

Result<Saved> parse_state(std::string_view text) {
  Saved saved;
  const auto lines = text::split(text, '\n');
  const auto wrong = [](std::size_t line, const char* what) {
    return fail(Code::kInvalidArgument, "line " + std::to_string(line + 1) + " " + what);
  };
  if (lines.size() < 2 || lines[0] != kHead) return wrong(0, "is not 'gpulet-health 1'");
  for (std::size_t i = 1; i < lines.size(); ++i) {
    Words words(lines[i]);
    const auto kind = words.next();
    if (i == 1) {
      saved.boot_id = words.rest();
      if (kind != "boot" || saved.boot_id.empty()) return wrong(i, "is not the boot's id");
      continue;
    }
    if (lines[i] == kEnd) return saved;
    if (kind == "gpu") {
      SavedGpu gpu;
      if (saved.gpus.size() >= kMaxGpus || !parse_gpu(words, gpu)) return wrong(i, "is no GPU");
      saved.gpus.push_back(std::move(gpu));
      continue;
    }
    SavedFault fault;
    const bool room = !saved.gpus.empty() && saved.gpus.back().faults.size() < kMaxFaults + kFaultClasses;
    if (kind != "fault" || !room || !parse_fault(words, fault)) return wrong(i, "is no fault of a GPU");
    saved.gpus.back().faults.push_back(std::move(fault));
  }
  return wrong(lines.size(), "is missing: the file is cut off");
}

Result<Saved> read_state(const std::string& path) {
  const auto content = read_file(path, kMaxStateBytes);
  if (!content && content.error().code() == Code::kNotFound) return Saved{};
  if (!content) return fail(content.error());
  auto saved = parse_state(*content);
  if (!saved) return fail(Error(saved.error().code(), saved.error().message(), path));
  return saved;
}

Status write_state(const std::string& path, const Saved& saved) {
  return write_file_atomic(path, format_state(saved), 0600);
}

Result<std::string> read_boot_id(const std::string& path) {
  GPULET_TRY_ASSIGN(const auto content, read_file(path, 4096));
  return std::string(text::trim(content));
}

}  // namespace gpulet::health

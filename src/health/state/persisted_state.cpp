#include "health/state/persisted_state.h"

#include "base/file.h"
#include "base/text.h"
#include "health/state/state_machine.h"

namespace gpulet::health {
namespace {

constexpr std::string_view kHead = "gpulet-health 1";
constexpr std::string_view kEnd = "end";
// The year 2262: later times do not fit into nanoseconds since 1970.
constexpr std::uint64_t kLatest = 9'200'000'000'000;

std::string wall_time_text(WallTime wall) { return std::to_string(unix_milliseconds(wall)); }

std::string instance_field_text(std::uint32_t id) { return id == kNoInstance ? "-" : std::to_string(id); }

std::string field_text(const std::string& text) {
  std::string out;
  for (const char c : text) out += c > ' ' && c < 0x7F ? c : '?';
  return out.empty() ? "-" : out;
}

std::string to_one_line(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  return std::string(text::trim(text));
}

// Reads the blank-separated fields of one line.
class FieldReader {
 public:
  explicit FieldReader(std::string_view line) : remaining_(line) {}
  std::string_view next_field() {
    const auto end = remaining_.find(' ');
    const auto word = remaining_.substr(0, end);
    remaining_.remove_prefix(end == std::string_view::npos ? remaining_.size() : end + 1);
    return word;
  }
  std::string_view rest_of_line() const { return remaining_; }

  bool number_field(std::uint64_t& value, std::uint64_t most) {
    const auto read = text::parse_unsigned(next_field());
    if (!read || *read > most) return false;
    value = *read;
    return true;
  }
  bool time_field(WallTime& wall) {
    std::uint64_t value = 0;
    if (!number_field(value, kLatest)) return false;
    wall = WallTime(std::chrono::milliseconds(value));
    return true;
  }
  bool instance_field(std::uint32_t& id) {
    FieldReader copy = *this;
    if (copy.next_field() == "-") {
      *this = copy;
      id = kNoInstance;
      return true;
    }
    std::uint64_t value = 0;
    if (!number_field(value, kNoInstance - 1)) return false;
    id = static_cast<std::uint32_t>(value);
    return true;
  }

 private:
  std::string_view remaining_;
};

bool parse_gpu(FieldReader words, PersistedGpu& gpu) {
  gpu.uuid = DeviceUuid(std::string(words.next_field()));
  const auto slot = words.next_field();
  if (slot != "-") gpu.slot = slot;
  std::uint64_t relapses = 0;
  if (gpu.uuid.empty() || slot.empty() || !words.number_field(relapses, kMaxRelapses)) return false;
  gpu.relapses = static_cast<unsigned>(relapses);
  if (words.rest_of_line() == "-") return true;
  WallTime recovered;
  if (!words.time_field(recovered)) return false;
  gpu.last_recovered_at = recovered;
  return words.rest_of_line().empty();
}

bool parse_fault(FieldReader words, PersistedFault& fault) {
  const auto fault_class = parse_fault_class(words.next_field());
  std::uint64_t linked = 0;
  const bool whole = fault_class && words.number_field(fault.code, ~0ull) &&
                     words.instance_field(fault.gpu_instance) &&
                     words.instance_field(fault.compute_instance) && words.time_field(fault.opened) &&
                     words.time_field(fault.last_seen) && words.number_field(fault.count, ~0ull) &&
                     words.number_field(linked, 1);
  if (!whole) return false;
  // A compute instance needs its GPU instance, and a fault is last seen after it was opened.
  if (fault.gpu_instance == kNoInstance && fault.compute_instance != kNoInstance) return false;
  if (fault.last_seen < fault.opened) return false;
  fault.fault_class = *fault_class;
  fault.linked = linked != 0;
  fault.detail = words.rest_of_line();
  return true;
}

}  // namespace

std::string format_persisted_state(const PersistedState& saved) {
  std::string out = std::string(kHead) + "\nboot " + field_text(saved.boot_id) + "\n";
  for (const auto& gpu : saved.gpus) {
    out += "gpu " + field_text(gpu.uuid.str()) + " " + field_text(gpu.slot) + " " +
           std::to_string(gpu.relapses) + " " +
           (gpu.last_recovered_at ? wall_time_text(*gpu.last_recovered_at) : "-") + "\n";
    for (const auto& fault : gpu.faults) {
      out += "fault " + std::string(fault_rule(fault.fault_class).name) + " " + std::to_string(fault.code) +
             " " + instance_field_text(fault.gpu_instance) + " " +
             instance_field_text(fault.compute_instance) + " " + wall_time_text(fault.opened) + " " +
             wall_time_text(fault.last_seen) + " " + std::to_string(fault.count) +
             (fault.linked ? " 1" : " 0");
      if (const auto detail = to_one_line(fault.detail); !detail.empty()) out += " " + detail;
      out += "\n";
    }
  }
  return out + std::string(kEnd) + "\n";
}

Result<PersistedState> parse_persisted_state(std::string_view text) {
  PersistedState saved;
  const auto lines = text::split(text, '\n');
  const auto wrong = [](std::size_t line, const char* what) {
    return fail(Code::kInvalidArgument, "line " + std::to_string(line + 1) + " " + what);
  };
  if (lines.size() < 2 || lines[0] != kHead) return wrong(0, "is not 'gpulet-health 1'");
  for (std::size_t i = 1; i < lines.size(); ++i) {
    FieldReader words(lines[i]);
    const auto kind = words.next_field();
    if (i == 1) {
      saved.boot_id = words.rest_of_line();
      if (kind != "boot" || saved.boot_id.empty()) return wrong(i, "is not a boot id");
      continue;
    }
    if (lines[i] == kEnd) return saved;
    if (kind == "gpu") {
      PersistedGpu gpu;
      if (saved.gpus.size() >= kMaxGpus || !parse_gpu(words, gpu))
        return wrong(i, "is not a valid GPU entry");
      saved.gpus.push_back(std::move(gpu));
      continue;
    }
    PersistedFault fault;
    const bool room = !saved.gpus.empty() && saved.gpus.back().faults.size() < kMaxFaults + kFaultClassCount;
    if (kind != "fault" || !room || !parse_fault(words, fault)) return wrong(i, "is not a valid fault entry");
    saved.gpus.back().faults.push_back(std::move(fault));
  }
  return wrong(lines.size(), "is missing: the file is truncated");
}

Result<PersistedState> read_persisted_state(const std::string& path) {
  const auto content = read_file(path, kMaxStateBytes);
  if (!content && content.error().code() == Code::kNotFound) return PersistedState{};
  if (!content) return fail(content.error());
  auto saved = parse_persisted_state(*content);
  if (!saved) return fail(Error(saved.error().code(), saved.error().message(), path));
  return saved;
}

Status write_persisted_state(const std::string& path, const PersistedState& saved) {
  return write_file_atomic(path, format_persisted_state(saved), 0600);
}

Result<std::string> read_boot_id(const std::string& path) {
  GPULET_TRY_ASSIGN(const auto content, read_file(path, 4096));
  return std::string(text::trim(content));
}

}  // namespace gpulet::health

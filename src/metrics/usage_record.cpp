#include "metrics/usage_record.h"

#include <limits>

#include "base/text.h"

namespace gpulet::metrics {
namespace {

constexpr std::string_view kRecordHead = "gpulet-usage 1";
constexpr std::string_view kRecordEnd = "end";
constexpr std::string_view kNoName = "-";
constexpr std::size_t kMaxRecordNamespaces = 1024;
constexpr auto kMostNanoseconds =
    static_cast<std::uint64_t>(std::numeric_limits<std::chrono::nanoseconds::rep>::max());

// A name that would break the line is none of Kubernetes'.
std::string record_name(const std::string& name) {
  std::string out;
  for (const char c : name) out += c > ' ' && c < 0x7F ? c : '?';
  return out.empty() ? std::string(kNoName) : out;
}

std::string amount_text(const UsageAmount& amount) {
  return std::to_string(amount.millijoules) + " " + std::to_string(amount.busy.count()) + " " +
         std::to_string(amount.held.count()) + " " + std::to_string(amount.idle.count());
}

void add_amount(UsageAmount& sum, const UsageAmount& more) {
  sum.millijoules += more.millijoules;
  sum.busy += more.busy;
  sum.held += more.held;
  sum.idle += more.idle;
}

using Fields = std::vector<std::string>;

bool parse_time(const std::string& field, std::chrono::nanoseconds& time) {
  const auto value = text::parse_unsigned(field);
  // Sums of two stay in range.
  if (!value || *value > kMostNanoseconds / 2) return false;
  time = std::chrono::nanoseconds(static_cast<std::chrono::nanoseconds::rep>(*value));
  return true;
}

// The last four fields of a line of `size`.
bool parse_amount(const Fields& fields, std::size_t size, UsageAmount& amount) {
  if (fields.size() != size) return false;
  const auto energy = text::parse_unsigned(fields[size - 4]);
  if (!energy || *energy > std::numeric_limits<std::uint64_t>::max() / 2) return false;
  amount.millijoules = *energy;
  return parse_time(fields[size - 3], amount.busy) && parse_time(fields[size - 2], amount.held) &&
         parse_time(fields[size - 1], amount.idle);
}

class RecordParser {
 public:
  // Returns false for an invalid line.
  bool parse_line(const std::string& line) {
    const auto fields = text::split(line, ' ');
    const auto& kind = fields[0];
    if (kind == "boot") return parse_boot(fields);
    if (kind == "since") return parse_since(fields);
    if (kind == "namespace") return parse_namespace(fields);
    if (kind == "device") return parse_device(fields);
    if (device_ == nullptr) return false;
    if (kind == "departed") return parse_amount(fields, 5, device_->departed);
    if (kind == "rest") return parse_amount(fields, 5, device_->unattributed);
    return kind == "pod" && parse_pod(fields);
  }
  UsageRecord take_record() { return std::move(record_); }

 private:
  bool parse_boot(const Fields& fields) {
    if (fields.size() != 2) return false;
    if (fields[1] != kNoName) record_.boot_id = fields[1];
    return true;
  }
  bool parse_since(const Fields& fields) {
    const auto at = fields.size() == 2 ? text::parse_unsigned(fields[1]) : std::nullopt;
    if (!at || *at > static_cast<std::uint64_t>(unix_milliseconds(kLastWallTime))) return false;
    record_.since = WallTime(std::chrono::milliseconds(*at));
    return true;
  }
  bool parse_namespace(const Fields& fields) {
    UsageAmount amount;
    if (record_.namespaces.size() >= kMaxRecordNamespaces || !parse_amount(fields, 6, amount)) return false;
    const auto& name = fields[1];
    return !name.empty() && record_.namespaces.emplace(name == kNoName ? "" : name, amount).second;
  }
  bool parse_device(const Fields& fields) {
    if (fields.size() != 3 || fields[1].empty() || record_.devices.size() >= kMaxRecordDevices) return false;
    const DeviceUuid uuid(fields[1]);
    const auto [at, added] = record_.devices.try_emplace(uuid);
    if (!added) return false;
    device_ = &at->second;
    if (fields[2] == kNoName) return true;
    const auto energy = text::parse_unsigned(fields[2]);
    if (energy) record_.energy[uuid] = *energy;
    return energy.has_value();
  }
  bool parse_pod(const Fields& fields) {
    UsageAmount amount;
    if (pods_ >= kMaxRecordPods || !parse_amount(fields, 7, amount) || fields[1].empty() || fields[2].empty())
      return false;
    ++pods_;
    return device_->pods.emplace(PodName{fields[1], fields[2]}, amount).second;
  }

  UsageRecord record_;
  UsageRecord::Device* device_ = nullptr;  // of the lines that follow
  std::size_t pods_ = 0;
};

}  // namespace

std::string format_usage_record(const UsageRecord& record) {
  std::string out = std::string(kRecordHead) + "\nboot " + record_name(record.boot_id) + "\nsince " +
                    std::to_string(unix_milliseconds(record.since)) + "\n";
  for (const auto& [name, amount] : record.namespaces)
    out += "namespace " + record_name(name) + " " + amount_text(amount) + "\n";
  std::size_t pods = 0, devices = 0;
  for (const auto& [uuid, device] : record.devices) {
    if (++devices > kMaxRecordDevices) break;
    const auto energy = record.energy.find(uuid);
    out += "device " + record_name(uuid.str()) + " " +
           (energy == record.energy.end() ? std::string(kNoName) : std::to_string(energy->second)) + "\n";
    UsageAmount departed = device.departed;
    std::string lines;
    for (const auto& [pod, amount] : device.pods) {
      if (++pods > kMaxRecordPods) {
        add_amount(departed, amount);
        continue;
      }
      lines += "pod " + record_name(pod.name_space) + " " + record_name(pod.name) + " " +
               amount_text(amount) + "\n";
    }
    out += "departed " + amount_text(departed) + "\nrest " + amount_text(device.unattributed) + "\n" + lines;
  }
  return out + std::string(kRecordEnd) + "\n";
}

Result<UsageRecord> parse_usage_record(std::string_view text) {
  const auto wrong = [](std::size_t line, const char* what) {
    return fail(Code::kInvalidArgument, "line " + std::to_string(line + 1) + " " + what);
  };
  const auto lines = text::split(text, '\n');
  if (lines.empty() || lines[0] != kRecordHead) return wrong(0, "is not 'gpulet-usage 1'");
  RecordParser parser;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    if (lines[i] == kRecordEnd) return parser.take_record();
    if (lines[i].empty() || !parser.parse_line(lines[i])) return wrong(i, "is not a valid entry");
  }
  return wrong(lines.size(), "is missing: the file is truncated");
}

}  // namespace gpulet::metrics

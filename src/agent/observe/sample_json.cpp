#include "agent/observe/sample_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/text.h"

namespace gpulet::agent {
namespace {

// The numbers of a GPU: their key, and the factor from the field's unit.
constexpr double kMib = 1024 * 1024;
constexpr double kThousandKib = 1000 * 1024;
enum class Sampling { kAlways, kWhereServed };
struct NowNumber {
  std::string_view key;
  metrics::Field field;
  double factor = 1;
  Sampling sampling = Sampling::kAlways;
};
constexpr NowNumber kGpuNumbers[] = {{"util", metrics::Field::kGpuUtil},
                                     {"sm", metrics::Field::kSmActive, 100},
                                     {"memory_util", metrics::Field::kMemCopyUtil},
                                     {"memory", metrics::Field::kFbUsed, kMib},
                                     {"temperature", metrics::Field::kGpuTemp},
                                     {"memory_temperature", metrics::Field::kMemoryTemp},
                                     {"power", metrics::Field::kPower},
                                     {"power_limit", metrics::Field::kPowerLimitEnforced},
                                     {"sm_clock", metrics::Field::kSmClock},
                                     {"memory_clock", metrics::Field::kMemoryClock},
                                     {"pcie_rx", metrics::Field::kPcieRxBytes},
                                     {"pcie_tx", metrics::Field::kPcieTxBytes},
                                     // KB/s, of GPUs without GPM. Each takes the driver 20 ms.
                                     {"pcie_rx", metrics::Field::kPcieRx, 1e3, Sampling::kWhereServed},
                                     {"pcie_tx", metrics::Field::kPcieTx, 1e3, Sampling::kWhereServed},
                                     {"nvlink_rx", metrics::Field::kNvLinkRxBytes},
                                     {"nvlink_tx", metrics::Field::kNvLinkTxBytes},
                                     {"nvlink", metrics::Field::kNvLinkBandwidth, kThousandKib},
                                     {"ecc_corrected", metrics::Field::kEccSbeVolatile},
                                     {"ecc_uncorrected", metrics::Field::kEccDbeVolatile}};
constexpr NowNumber kMigNumbers[] = {{"util", metrics::Field::kGraphicsActive, 100},
                                     {"sm", metrics::Field::kSmActive, 100},
                                     {"memory", metrics::Field::kFbUsed, kMib}};

// The longest number: a double of 17 digits with sign, point and exponent.
constexpr std::size_t kNumberLength = 32;

void append_number(std::string& text, auto number) {
  std::array<char, kNumberLength> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  text.append(digits.data(), end);
}

// One decimal is all that is displayed, and the document is sent each second.
void append_tenths(std::string& text, double value) {
  constexpr double kTenths = 10, kLargest = 1e15;
  if (!std::isfinite(value)) {
    text += "null";
    return;
  }
  const double rounded = std::round(value * kTenths) / kTenths;
  if (rounded == std::floor(rounded) && std::abs(rounded) < kLargest) {
    append_number(text, static_cast<std::int64_t>(rounded));
  } else {
    append_number(text, rounded);
  }
}

void append_numbers(std::string& text, std::span<const NowNumber> numbers, const metrics::Values& values) {
  text += '{';
  bool first = true;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto value = numeric_field(values, numbers[i].field);
    if (!value) continue;
    const bool is_known = std::ranges::any_of(numbers.first(i), [&](const NowNumber& earlier) {
      return earlier.key == numbers[i].key && values.contains(earlier.field);
    });
    if (is_known) continue;
    text += std::exchange(first, false) ? "\"" : ",\"";
    text.append(numbers[i].key) += "\":";
    append_tenths(text, *value * numbers[i].factor);
  }
  text += '}';
}

// Appends the member `uuid` of an object that ends at the end of the text.
void append_member(std::string& text, const DeviceUuid& uuid, std::span<const NowNumber> numbers,
                   const metrics::Values& values) {
  if (text.back() != '{') text += ',';
  text += nlohmann::json(uuid.str()).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + ':';
  append_numbers(text, numbers, values);
}

}  // namespace

std::set<metrics::Field> now_json_fields() {
  std::set<metrics::Field> fields;
  for (const auto& one : kGpuNumbers) {
    if (one.sampling == Sampling::kAlways) fields.insert(one.field);
  }
  for (const auto& one : kMigNumbers) fields.insert(one.field);
  return fields;
}

// Written as text: a tree of JSON values costs an idle agent more than all else that a sample does.
std::string now_json(const metrics::Sample& sample, WallTime at) {
  std::string text = "{\"at\":" + std::to_string(unix_milliseconds(at)) + ",\"gpus\":{";
  std::string mig = "{";
  for (const auto& gpu : sample.gpus) {
    if (gpu.error) continue;
    append_member(text, gpu.uuid, kGpuNumbers, gpu.values);
    for (const auto& instance : gpu.instances) {
      for (const auto& device : instance.devices)
        append_member(mig, device.uuid, kMigNumbers, instance.values);
    }
  }
  text += '}';
  if (mig.size() > 1) text += ",\"mig\":" + mig + '}';
  return text + '}';
}

}  // namespace gpulet::agent

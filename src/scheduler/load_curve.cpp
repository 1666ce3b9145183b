#include "scheduler/load_curve.h"

namespace gpulet::scheduler {
namespace {

constexpr std::size_t kDigits = 2 * (kDayParts + 1);
constexpr std::string_view kHex = "0123456789abcdef";

std::uint8_t clamped(unsigned percent) { return static_cast<std::uint8_t>(std::min(percent, 255u)); }

void append(std::string& text, std::uint8_t value) {
  text += kHex[value >> 4];
  text += kHex[value & 15];
}

}  // namespace

LoadCurve operator+(const LoadCurve& a, const LoadCurve& b) {
  LoadCurve sum;
  for (std::size_t part = 0; part < kDayParts; ++part) {
    sum.busy[part] = clamped(unsigned{a.busy[part]} + b.busy[part]);
  }
  sum.memory = clamped(unsigned{a.memory} + b.memory);
  return sum;
}

LoadCurve flat_curve(unsigned busy_percent, unsigned memory_percent) {
  LoadCurve curve;
  curve.busy.fill(clamped(busy_percent));
  curve.memory = clamped(memory_percent);
  return curve;
}

std::string encode(const LoadCurve& curve) {
  std::string text;
  text.reserve(kDigits);
  for (const std::uint8_t part : curve.busy) append(text, part);
  append(text, curve.memory);
  return text;
}

Result<LoadCurve> decode_curve(std::string_view text) {
  std::array<std::uint8_t, kDayParts + 1> bytes{};
  bool good = text.size() == kDigits;
  for (std::size_t at = 0; good && at < kDigits; ++at) {
    const std::size_t digit = kHex.find(text[at]);
    good = digit != std::string_view::npos;
    bytes[at / 2] = static_cast<std::uint8_t>(bytes[at / 2] << 4 | (good ? digit : 0));
  }
  if (!good) {
    return fail(Code::kInvalidArgument, "a load curve is " + std::to_string(kDigits) +
                                            " hexadecimal digits in lower case, found '" +
                                            std::string(text.substr(0, 2 * kDigits)) + "'");
  }
  LoadCurve curve;
  std::copy_n(bytes.begin(), kDayParts, curve.busy.begin());
  curve.memory = bytes[kDayParts];
  return curve;
}

}  // namespace gpulet::scheduler

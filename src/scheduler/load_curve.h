// How busy a GPU is expected to be over the coming day, in nine bytes: what an agent publishes of a forecast
// and what a policy adds up. forecast.h makes them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpulet::scheduler {

// The day is cut at UTC hours 0, 3, 6, … and not from "now" on, so that a curve stays true as it ages and two
// GPUs' curves can be added without knowing when each was made.
inline constexpr std::size_t kDayParts = 8;

struct LoadCurve {
  std::array<std::uint8_t, kDayParts>
      busy{};               // percent of the GPU's time in each part, 0 to 100 (sums go to 255)
  std::uint8_t memory = 0;  // percent of its memory, the greatest of the day
  friend bool operator==(const LoadCurve&, const LoadCurve&) = default;

  std::uint8_t peak() const { return *std::max_element(busy.begin(), busy.end()); }
};

// Two on one GPU; each number stops at 255.
LoadCurve operator+(const LoadCurve& a, const LoadCurve& b);
// The same all day. Percents above 255 are 255.
LoadCurve flat_curve(unsigned busy_percent, unsigned memory_percent);

// 18 hexadecimal digits: the parts from 0 h UTC on, then memory. For an annotation or a field of an object.
std::string encode(const LoadCurve& curve);
// Errors: kInvalidArgument, saying what was found, for anything that encode does not write.
Result<LoadCurve> decode_curve(std::string_view text);

}  // namespace gpulet::scheduler

#include "base/quantity.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace gpulet {
namespace {

constexpr std::size_t kMaxBytes = 64;
constexpr double kMilli = 1000, kKibi = 1024;
constexpr double kMost = 0x1p62;

constexpr std::array<std::pair<std::string_view, int>, 10> kDecimalExponents = {{{"n", -9},
                                                                                 {"u", -6},
                                                                                 {"m", -3},
                                                                                 {"", 0},
                                                                                 {"k", 3},
                                                                                 {"M", 6},
                                                                                 {"G", 9},
                                                                                 {"T", 12},
                                                                                 {"P", 15},
                                                                                 {"E", 18}}};
constexpr std::string_view kBinarySuffixes = "KMGTPE";  // "Ki" is 1024

std::optional<double> suffix_factor(std::string_view suffix) {
  for (const auto& [name, exponent] : kDecimalExponents) {
    if (suffix == name) return std::pow(10.0, exponent);
  }
  if (suffix.size() == 2 && suffix[1] == 'i') {
    const auto at = kBinarySuffixes.find(suffix[0]);
    if (at == std::string_view::npos) return std::nullopt;
    return std::pow(kKibi, static_cast<double>(at + 1));
  }
  if (suffix.size() < 2 || (suffix[0] != 'e' && suffix[0] != 'E')) return std::nullopt;
  suffix.remove_prefix(1);
  if (suffix.starts_with("+") && !suffix.starts_with("+-")) suffix.remove_prefix(1);
  int exponent = 0;
  const auto* const end = suffix.data() + suffix.size();
  const auto read = std::from_chars(suffix.data(), end, exponent);
  if (read.ec != std::errc{} || read.ptr != end) return std::nullopt;
  return std::pow(10.0, exponent);
}

}  // namespace

std::optional<std::uint64_t> parse_quantity_milli(std::string_view text) {
  if (text.size() > kMaxBytes) return std::nullopt;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto end = std::min(text.find_first_not_of("0123456789."), text.size());
  double number = 0;
  const auto read = std::from_chars(text.data(), text.data() + end, number, std::chars_format::fixed);
  if (read.ec != std::errc{} || read.ptr != text.data() + end) return std::nullopt;
  const auto factor = suffix_factor(text.substr(end));
  if (!factor) return std::nullopt;
  if (number == 0) return 0;  // zero times an infinite factor is not a number
  const double milli = std::ceil(number * *factor * kMilli);
  return static_cast<std::uint64_t>(std::min(milli, kMost));
}

std::string format_binary_quantity(std::uint64_t value) {
  constexpr std::uint64_t kStep = 1024;
  std::size_t power = 0;
  for (; value != 0 && value % kStep == 0 && power < kBinarySuffixes.size(); ++power) value /= kStep;
  const std::string number = std::to_string(value);
  return power == 0 ? number : number + kBinarySuffixes[power - 1] + 'i';
}

}  // namespace gpulet

#include "doctor/acs.h"

#include <cstdint>

namespace gpulet::doctor {
namespace {

constexpr std::size_t kFirst = 0x100, kEnd = 0x1000, kControl = 6;
constexpr std::uint32_t kAcs = 0x000D, kRequestRedirect = 1u << 2;

std::uint32_t number_at(std::string_view config, std::size_t at, std::size_t size) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < size; ++i)
    value |= static_cast<std::uint32_t>(static_cast<unsigned char>(config[at + i])) << (8 * i);
  return value;
}

}  // namespace

bool acs_redirects(std::string_view config) {
  // Capabilities are four bytes apart at least: a list that never ends is none.
  std::size_t at = kFirst;
  for (std::size_t left = (kEnd - kFirst) / 4; left > 0 && at >= kFirst && at + kControl + 2 <= config.size();
       --left) {
    const auto header = number_at(config, at, 4);
    if ((header & 0xffff) == kAcs) return (number_at(config, at + kControl, 2) & kRequestRedirect) != 0;
    at = header >> 20;
  }
  return false;
}

}  // namespace gpulet::doctor

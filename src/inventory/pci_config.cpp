#include "inventory/pci_config.h"

#include <array>
#include <charconv>

#include "base/text.h"

namespace gpulet::inventory {
namespace {

constexpr std::size_t kWhole = 256;  // bytes that hold every capability of the list
constexpr std::size_t kStatus = 0x06, kFirst = 0x34;
constexpr unsigned kHasList = 0x10, kVendor = 0x09;
// Of the capability: id, next, its length, "VF", then records, each with its id and its length.
constexpr std::size_t kLength = 2, kSignature = 3, kRecords = 5;
constexpr unsigned kHostRecord = 0;
constexpr std::size_t kText = 10;  // the version, and then the branch, filled up with zeroes

unsigned byte(std::string_view bytes, std::size_t at) { return static_cast<unsigned char>(bytes[at]); }

// The vendor's capability, as long as it says; empty without one.
std::string_view vendor_capability(std::string_view config) {
  if (config.size() < kWhole || (byte(config, kStatus) & kHasList) == 0) return {};
  std::array<bool, kWhole> seen{};
  for (std::size_t at = byte(config, kFirst); at != 0 && at + kLength < kWhole && !seen[at];
       at = byte(config, at + 1)) {
    seen[at] = true;
    if (byte(config, at) == kVendor)
      return config.substr(at, byte(config, at + kLength)).substr(0, kWhole - at);
  }
  return {};
}

std::string text_at(std::string_view bytes, std::size_t at) {
  const auto text = bytes.substr(at, kText);
  return std::string(text.substr(0, text.find('\0')));
}

}  // namespace

std::uint32_t pci_class(std::string_view text) {
  text = text::trim(text);
  if (!text.starts_with("0x") || text.size() > 8) return 0;
  text.remove_prefix(2);
  std::uint32_t code = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), code, 16);
  return error == std::errc() && end == text.data() + text.size() ? code : 0;
}

std::optional<VgpuHost> vgpu_host(std::string_view config) {
  const auto capability = vendor_capability(config);
  if (capability.size() < kRecords || capability.substr(kSignature, 2) != "VF") return std::nullopt;
  std::size_t at = kRecords;
  while (at + 1 < capability.size() && byte(capability, at) != kHostRecord) {
    const unsigned length = byte(capability, at + 1);
    if (length == 0) return std::nullopt;
    at += length;
  }
  if (at + 2 + 2 * kText > capability.size()) return std::nullopt;
  return VgpuHost{text_at(capability, at + 2), text_at(capability, at + 2 + kText)};
}

}  // namespace gpulet::inventory

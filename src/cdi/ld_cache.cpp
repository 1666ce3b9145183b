#include "cdi/ld_cache.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "base/text.h"

namespace gpulet::cdi {
namespace {

constexpr std::string_view kMagic = "glibc-ld.so.cache1.1";
constexpr std::string_view kOldMagic = "ld.so-1.7.0";
constexpr std::size_t kOldHeader = 16, kOldEntry = 12;
constexpr std::size_t kHeader = 48, kEntry = 24;
constexpr std::size_t kCountAt = 20;  // in the header; flags, key and value are an entry's first three words

// Flags of a library for libc 6 and this architecture.
#if defined(__aarch64__)
constexpr std::uint32_t kWantedFlags = 0x0A03;
#else
constexpr std::uint32_t kWantedFlags = 0x0303;
#endif

std::optional<std::uint32_t> word_at(std::string_view bytes, std::size_t offset) {
  std::uint32_t word = 0;
  if (offset > bytes.size() || bytes.size() - offset < sizeof word) return std::nullopt;
  std::memcpy(&word, bytes.data() + offset, sizeof word);
  return word;
}

std::optional<std::string_view> text_at(std::string_view bytes, std::uint32_t offset) {
  if (offset >= bytes.size()) return std::nullopt;
  const std::size_t end = bytes.find('\0', offset);
  if (end == std::string_view::npos) return std::nullopt;
  return bytes.substr(offset, end - offset);
}

// Where the format of today begins: at once, or behind the older one, which ends on a multiple of eight.
std::string_view newer_part(std::string_view bytes) {
  if (!text::starts_with(bytes, kOldMagic)) return bytes;
  const auto count = word_at(bytes, kOldHeader - sizeof(std::uint32_t));
  if (!count) return {};
  const std::size_t end = (kOldHeader + std::size_t{*count} * kOldEntry + 7) / 8 * 8;
  return end <= bytes.size() ? bytes.substr(end) : std::string_view{};
}

}  // namespace

Result<std::vector<LdCacheEntry>> parse_ld_cache(std::string_view bytes) {
  const std::string_view cache = newer_part(bytes);
  if (!text::starts_with(cache, kMagic) || cache.size() < kHeader)
    return fail(Code::kInvalidArgument, "is no ld.so.cache of format 1.1");
  const std::uint32_t count = word_at(cache, kCountAt).value_or(0);
  if ((cache.size() - kHeader) / kEntry < count)
    return fail(Code::kInvalidArgument,
                "says " + std::to_string(count) + " libraries and is too short for them");
  std::vector<LdCacheEntry> entries;
  for (std::size_t index = 0; index < count; ++index) {
    const std::size_t at = kHeader + index * kEntry;
    if (word_at(cache, at) != kWantedFlags) continue;
    const auto name = text_at(cache, word_at(cache, at + 4).value_or(UINT32_MAX));
    const auto path = text_at(cache, word_at(cache, at + 8).value_or(UINT32_MAX));
    if (!name || !path)
      return fail(Code::kInvalidArgument, "entry " + std::to_string(index) + " points outside the file");
    entries.push_back({*name, *path});
  }
  return entries;
}

}  // namespace gpulet::cdi

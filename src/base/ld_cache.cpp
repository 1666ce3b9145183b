#include "base/ld_cache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <optional>

#include "base/driver_root.h"
#include "base/file.h"
#include "base/text.h"

namespace gpulet {
namespace {

constexpr std::string_view kMagic = "glibc-ld.so.cache1.1";
constexpr std::string_view kOldMagic = "ld.so-1.7.0";
constexpr std::size_t kOldHeader = 16, kOldEntry = 12;
constexpr std::size_t kHeader = 48, kEntry = 24;
constexpr std::size_t kCountAt = 20;  // in the header; flags, key and value are an entry's first three words

// Flags of a library for libc 6 and this architecture.
constexpr std::uint32_t kMachineFlags = kTriplet == "aarch64-linux-gnu" ? 0x0A03 : 0x0303;

std::optional<std::uint32_t> read_word_at(std::string_view bytes, std::size_t offset) {
  std::uint32_t value = 0;
  if (offset > bytes.size() || bytes.size() - offset < sizeof value) return std::nullopt;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::optional<std::string_view> text_at(std::string_view bytes, std::uint32_t offset) {
  if (offset >= bytes.size()) return std::nullopt;
  const std::size_t end = bytes.find('\0', offset);
  if (end == std::string_view::npos) return std::nullopt;
  return bytes.substr(offset, end - offset);
}

// The start of the current format: the start of the file, or after the older format, aligned to eight bytes.
std::string_view newer_part(std::string_view bytes) {
  if (!text::starts_with(bytes, kOldMagic)) return bytes;
  const auto count = read_word_at(bytes, kOldHeader - sizeof(std::uint32_t));
  if (!count) return {};
  const std::size_t end = (kOldHeader + std::size_t{*count} * kOldEntry + 7) / 8 * 8;
  return end <= bytes.size() ? bytes.substr(end) : std::string_view{};
}

constexpr std::string_view kLdCaches[] = {
    "/etc/ld.so.cache",
    "/usr/local/glibc/etc/ld.so.cache",  // Talos
};

// The caller's root may hold a FIFO, which blocks, or a device under that name.
Result<std::string> read_cache(const RootDirectory& root, std::string_view path) {
  GPULET_TRY_ASSIGN(const auto file, root.open_file(path, O_RDONLY | O_NONBLOCK | O_NOCTTY));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return fail(Code::kFailedPrecondition, "is not a regular file", std::string(path));
  return read_all(file.get(), std::string(path));
}

}  // namespace

std::span<const std::string_view> ld_cache_files() { return kLdCaches; }

Result<std::vector<LdCacheEntry>> parse_ld_cache(std::string_view bytes) {
  const std::string_view cache = newer_part(bytes);
  if (!text::starts_with(cache, kMagic) || cache.size() < kHeader)
    return fail(Code::kInvalidArgument, "is not an ld.so.cache of format 1.1");
  const std::uint32_t count = read_word_at(cache, kCountAt).value_or(0);
  if ((cache.size() - kHeader) / kEntry < count)
    return fail(Code::kInvalidArgument,
                "claims " + std::to_string(count) + " libraries but is too short for them");
  std::vector<LdCacheEntry> entries;
  for (std::size_t index = 0; index < count; ++index) {
    const std::size_t at = kHeader + index * kEntry;
    if (read_word_at(cache, at) != kMachineFlags) continue;
    const auto name = text_at(cache, read_word_at(cache, at + 4).value_or(UINT32_MAX));
    const auto path = text_at(cache, read_word_at(cache, at + 8).value_or(UINT32_MAX));
    if (!name || !path)
      return fail(Code::kInvalidArgument, "entry " + std::to_string(index) + " points outside the file");
    entries.push_back({*name, *path});
  }
  return entries;
}

std::vector<std::string> find_in_ld_caches(const RootDirectory& root, std::string_view name) {
  std::vector<std::string> paths;
  for (const auto file : ld_cache_files()) {
    const auto bytes = read_cache(root, file);
    const auto entries = bytes ? parse_ld_cache(*bytes) : fail(bytes.error());
    if (!entries) continue;
    for (const auto& entry : *entries) {
      if (entry.name == name) paths.emplace_back(entry.path);
    }
  }
  return paths;
}

}  // namespace gpulet

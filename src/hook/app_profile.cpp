#include "hook/app_profile.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <array>
#include <charconv>

#include "base/text.h"

namespace gpulet::hook {
namespace {

constexpr std::size_t kMaxDevEntries = 16384;
constexpr unsigned kMaskBits = 64;

// The bit of a GPU's node "nvidia<n>", 0 for anything else.
std::uint64_t bit_of(const Rootfs& root, const std::string& name) {
  constexpr std::string_view kPrefix = "nvidia";
  if (!text::starts_with(name, kPrefix) ||
      !text::parse_unsigned(std::string_view(name).substr(kPrefix.size())))
    return 0;
  const auto node = root.open_inside("/dev/" + name, O_PATH | O_NOFOLLOW);
  struct stat status{};
  if (!node || ::fstat(node->get(), &status) != 0 || !S_ISCHR(status.st_mode)) return 0;
  const unsigned number = minor(status.st_rdev);
  return number < kMaskBits ? std::uint64_t{1} << number : 0;
}

}  // namespace

std::string profile_text(std::uint64_t mask) {
  std::array<char, 17> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), mask, 16).ptr;
  return R"({"profiles":[{"name":"_container_","settings":["EGLVisibleDGPUDevices",0x)" +
         std::string(digits.data(), end) + R"(]}],"rules":[{"pattern":[],"profile":"_container_"}]})";
}

Status write_app_profile(const Container& container) {
  const auto names = container.root.list("/dev", kMaxDevEntries);
  if (!names) return {};
  std::uint64_t mask = 0;
  for (const std::string& name : *names) mask |= bit_of(container.root, name);
  if (mask == 0) return {};
  return container.root.write_file(kProfileFile, profile_text(mask), 0444);
}

}  // namespace gpulet::hook

#include "inventory/mig_minors.h"

#include <algorithm>

#include "base/text.h"

namespace gpulet::inventory {
namespace {

// A place in the tree as one number: 16 bits each of GPU, GPU instance and compute instance, the two latter
// plus one.
constexpr unsigned kMostId = 0xFFFE;
constexpr std::uint64_t key_of(std::uint64_t gpu, std::uint64_t gi_plus_one, std::uint64_t ci_plus_one) {
  return gpu << 32 | gi_plus_one << 16 | ci_plus_one;
}
constexpr std::uint64_t kConfigKey = 1ull << 60, kMonitorKey = 2ull << 60;
constexpr std::uint64_t kMostMinor = (1u << 20) - 1;  // of a Linux device number

// "gi12" → 12.
std::optional<std::uint64_t> numbered(std::string_view segment, std::string_view prefix) {
  if (!text::starts_with(segment, prefix)) return std::nullopt;
  const auto number = text::parse_unsigned(segment.substr(prefix.size()));
  return number && *number <= kMostId ? number : std::nullopt;
}

std::optional<std::uint64_t> key_of_name(std::string_view name) {
  if (name == "config") return kConfigKey;
  if (name == "monitor") return kMonitorKey;
  const auto parts = text::split(name, '/');
  if ((parts.size() != 3 && parts.size() != 4) || parts.back() != "access") return std::nullopt;
  const auto gpu = numbered(parts[0], "gpu");
  const auto gi = numbered(parts[1], "gi");
  if (!gpu || !gi) return std::nullopt;
  if (parts.size() == 3) return key_of(*gpu, *gi + 1, 0);
  const auto ci = numbered(parts[2], "ci");
  return ci ? std::optional(key_of(*gpu, *gi + 1, *ci + 1)) : std::nullopt;
}

std::string node_path(unsigned minor) { return "/dev/nvidia-caps/nvidia-cap" + std::to_string(minor); }

}  // namespace

std::optional<unsigned> MigMinors::find(std::uint64_t key) const {
  const auto found = std::ranges::lower_bound(minors_, key, {}, &std::pair<std::uint64_t, unsigned>::first);
  if (found == minors_.end() || found->first != key) return std::nullopt;
  return found->second;
}

std::optional<unsigned> MigMinors::gpu_instance(unsigned gpu_minor, unsigned gi) const {
  if (gpu_minor > kMostId || gi > kMostId) return std::nullopt;
  return find(key_of(gpu_minor, gi + 1, 0));
}

std::optional<unsigned> MigMinors::compute_instance(unsigned gpu_minor, unsigned gi, unsigned ci) const {
  if (gpu_minor > kMostId || gi > kMostId || ci > kMostId) return std::nullopt;
  return find(key_of(gpu_minor, gi + 1, ci + 1));
}

std::optional<unsigned> MigMinors::config() const { return find(kConfigKey); }
std::optional<unsigned> MigMinors::monitor() const { return find(kMonitorKey); }

Result<MigMinors> parse_mig_minors(std::string_view text) {
  MigMinors result;
  std::size_t line_number = 0;
  const auto wrong = [&](const std::string& what) {
    return fail(Code::kInvalidArgument, "line " + std::to_string(line_number) + ": " + what, "mig-minors");
  };
  while (!text.empty()) {
    ++line_number;
    const auto end = text.find('\n');
    const auto line = text::trim(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.empty()) continue;
    const auto blank = line.find_first_of(" \t");
    if (blank == std::string_view::npos) return wrong("a name without a minor number");
    const auto minor = text::parse_unsigned(text::trim(line.substr(blank)));
    if (!minor || *minor > kMostMinor) return wrong("no minor number after the name");
    if (const auto key = key_of_name(line.substr(0, blank))) {
      result.minors_.emplace_back(*key, static_cast<unsigned>(*minor));
    }
  }
  std::ranges::stable_sort(result.minors_, {}, &std::pair<std::uint64_t, unsigned>::first);
  const auto doubled =
      std::ranges::adjacent_find(result.minors_, {}, &std::pair<std::uint64_t, unsigned>::first);
  if (doubled != result.minors_.end()) {
    return fail(Code::kInvalidArgument,
                "one name has both minor " + std::to_string(doubled->second) + " and " +
                    std::to_string(std::next(doubled)->second),
                "mig-minors");
  }
  return result;
}

std::vector<std::string> mig_device_nodes(const MigMinors& minors, unsigned gpu_minor, unsigned gi,
                                          unsigned ci) {
  const auto gpu_instance = minors.gpu_instance(gpu_minor, gi);
  const auto compute_instance = minors.compute_instance(gpu_minor, gi, ci);
  if (!gpu_instance || !compute_instance) return {};
  return {node_path(*gpu_instance), node_path(*compute_instance)};
}

}  // namespace gpulet::inventory

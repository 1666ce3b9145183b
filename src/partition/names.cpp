#include "partition/names.h"

#include <algorithm>
#include <span>

namespace gpulet::partition {
namespace {

constexpr const char* kGpu = "nvidia.com/gpu";

const config::ResourcePattern* first_match(std::span<const config::ResourcePattern> patterns,
                                           std::string_view text) {
  const auto found = std::ranges::find_if(patterns, [&](const auto& p) { return matches(p.pattern, text); });
  return found == patterns.end() ? nullptr : &*found;
}

}  // namespace

bool matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0;
  // Where to go on from when what followed the last '*' did not fit: let that '*' take one character more.
  std::size_t star = std::string_view::npos, taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

ResourceName gpu_resource(const inventory::Gpu& gpu, const config::Config& config) {
  const auto* pattern = first_match(config.gpu_resources, gpu.model);
  return pattern ? pattern->name : ResourceName(kGpu);
}

std::optional<ResourceName> mig_resource(const inventory::MigDevice& device, const config::Config& config,
                                         config::MigStrategy strategy) {
  if (const auto* pattern = first_match(config.mig_resources, device.profile)) return pattern->name;
  if (strategy == config::MigStrategy::kSingle) return ResourceName(kGpu);
  if (device.compute_slices != device.gpu_slices) return std::nullopt;
  std::string profile = device.profile;
  std::ranges::replace(profile, '+', '.');
  return ResourceName("nvidia.com/mig-" + profile);
}

}  // namespace gpulet::partition

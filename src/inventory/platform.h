// Kinds of machines whose GPUs gpulet does not offer: NVML does not manage the integrated GPU of Tegra, and
// WSL 2 has no device node for each GPU. Found by their files, as NVIDIA's programs do. Source: go-nvlib,
// pkg/nvlib/info (IsTegraSystem); facts/device-plugin 4.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace gpulet::inventory {

enum class UnservedPlatform { kTegra, kWsl };

struct PlatformEvidence {
  UnservedPlatform platform;
  std::string path;  // the file that shows it, without the root: "/etc/nv_tegra_release"
  friend bool operator==(const PlatformEvidence&, const PlatformEvidence&) = default;
};

// `roots`: where dev/, etc/ and sys/ may be, in order. Reads at most two small files of each.
std::optional<PlatformEvidence> find_unserved_platform(const std::vector<std::string>& roots);

// "this machine is Tegra (/etc/nv_tegra_release): …", what is not offered, and why. One line.
std::string platform_text(const PlatformEvidence& found);
// What to use instead; an imperative.
std::string platform_advice(const PlatformEvidence& found);

}  // namespace gpulet::inventory

#include "sim/state/capabilities.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/text.h"

namespace gpulet::sim {
namespace {

constexpr std::uint32_t kFirstMinor = 3;
constexpr std::uint32_t kGpus = 32;
constexpr std::uint32_t kGpuInstances = 15;
constexpr std::uint32_t kPerGpuInstance = 1 + 8;  // itself and its compute instances
constexpr mode_t kAccessMode = 0444;

void write_capability(const std::string& folder, std::uint32_t minor) {
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  std::ofstream(folder + "/access") << capability_text(minor, kAccessMode);
}

// The folders "<prefix><number>" in `folder` whose number is not in `wanted` are removed.
void remove_others(const std::string& folder, std::string_view prefix,
                   const std::set<std::uint64_t>& wanted) {
  std::error_code error;
  std::vector<std::filesystem::path> gone;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (!text::starts_with(name, prefix)) continue;
    const auto number = text::parse_unsigned(std::string_view(name).substr(prefix.size()));
    if (number && !wanted.contains(*number)) gone.push_back(entry.path());
  }
  for (const auto& path : gone) std::filesystem::remove_all(path, error);
}

// Nodes of this GPU's minors: those wanted are made, the others removed.
void sync_nodes(const std::string& folder, std::uint32_t gpu_minor, const std::set<std::uint64_t>& wanted) {
  const std::uint64_t first = gpu_instance_minor(gpu_minor, 0);
  const std::uint64_t end = first + std::uint64_t{kGpuInstances} * kPerGpuInstance;
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) return;
  std::set<std::uint64_t> keep = wanted;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    constexpr std::string_view kPrefix = "nvidia-cap";
    const auto number = text::starts_with(name, kPrefix)
                            ? text::parse_unsigned(std::string_view(name).substr(kPrefix.size()))
                            : std::nullopt;
    if (number && (*number < first || *number >= end)) keep.insert(*number);
  }
  remove_others(folder, "nvidia-cap", keep);
  for (const std::uint64_t minor : wanted) {
    const std::string path = folder + "/nvidia-cap" + std::to_string(minor);
    if (mknod(path.c_str(), S_IFCHR | kAccessMode, makedev(kCapsMajor, static_cast<unsigned>(minor))) == 0)
      chmod(path.c_str(), kAccessMode);
  }
}

}  // namespace

std::uint32_t gpu_instance_minor(std::uint32_t gpu_minor, std::uint32_t gpu_instance) {
  return kFirstMinor + (gpu_minor * kGpuInstances + gpu_instance) * kPerGpuInstance;
}

std::uint32_t compute_instance_minor(std::uint32_t gpu_minor, std::uint32_t gpu_instance,
                                     std::uint32_t compute_instance) {
  return gpu_instance_minor(gpu_minor, gpu_instance) + 1 + compute_instance;
}

std::string mig_minors_text() {
  std::string text =
      "config " + std::to_string(kConfigMinor) + "\nmonitor " + std::to_string(kMonitorMinor) + "\n";
  for (std::uint32_t gpu = 0; gpu < kGpus; ++gpu) {
    for (std::uint32_t gi = 0; gi < kGpuInstances; ++gi) {
      const std::string name = "gpu" + std::to_string(gpu) + "/gi" + std::to_string(gi);
      text += name + "/access " + std::to_string(gpu_instance_minor(gpu, gi)) + "\n";
      for (std::uint32_t ci = 0; ci + 1 < kPerGpuInstance; ++ci) {
        text += name + "/ci" + std::to_string(ci) + "/access " +
                std::to_string(compute_instance_minor(gpu, gi, ci)) + "\n";
      }
    }
  }
  return text;
}

std::string capability_text(std::uint32_t minor, std::uint32_t mode) {
  return "DeviceFileMinor: " + std::to_string(minor) + "\nDeviceFileMode: " + std::to_string(mode) +
         "\nDeviceFileModify: 1\n";
}

void sync_capabilities(const std::string& root, const Gpu& gpu) {
  const std::string folder =
      root + "/proc/driver/nvidia/capabilities/gpu" + std::to_string(gpu.minor) + "/mig";
  std::error_code error;
  if (root.empty() || gpu.minor >= kGpus || !std::filesystem::is_directory(folder, error)) return;
  std::set<std::uint64_t> instances;
  std::set<std::uint64_t> minors;
  for (const GpuInstance& instance : gpu.mig.instances) {
    if (instance.used == 0) continue;
    instances.insert(instance.id);
    const std::string own = folder + "/gi" + std::to_string(instance.id);
    const std::uint32_t minor = gpu_instance_minor(gpu.minor, instance.id);
    minors.insert(minor);
    write_capability(own, minor);
    std::set<std::uint64_t> computes;
    for (const ComputeInstance& compute : instance.compute) {
      if (compute.used == 0) continue;
      computes.insert(compute.id);
      const std::uint32_t compute_minor = compute_instance_minor(gpu.minor, instance.id, compute.id);
      minors.insert(compute_minor);
      write_capability(own + "/ci" + std::to_string(compute.id), compute_minor);
    }
    remove_others(own, "ci", computes);
  }
  remove_others(folder, "gi", instances);
  sync_nodes(root + "/dev/nvidia-caps", gpu.minor, minors);
}

std::string root_of_state(const std::string& state_path) {
  const std::string suffix = "/" + std::string(kStatePathInRoot);
  if (!state_path.ends_with(suffix)) return {};
  const std::string root = state_path.substr(0, state_path.size() - suffix.size());
  return root.empty() ? "/." : root;
}

}  // namespace gpulet::sim

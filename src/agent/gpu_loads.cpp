#include "agent/gpu_loads.h"

#include <algorithm>
#include <optional>

namespace gpulet::agent {
namespace {

using metrics::Field;

std::optional<double> number(const metrics::Values& values, Field field) {
  const auto found = values.find(field);
  if (found == values.end()) return std::nullopt;
  if (const auto* whole = std::get_if<std::uint64_t>(&found->second)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&found->second)) return *real;
  return std::nullopt;
}

std::set<metrics::PodName> holders_of(const metrics::GpuSample& gpu, const metrics::Uses& uses) {
  std::set<metrics::PodName> holders;
  const auto add = [&](const DeviceUuid& device) {
    const auto found = uses.devices.find(device);
    if (found == uses.devices.end()) return;
    for (const auto& pod : found->second.pods) holders.insert(pod.holder.pod);
  };
  add(gpu.uuid);
  for (const auto& instance : gpu.instances) {
    for (const auto& device : instance.devices) add(device.uuid);
  }
  return holders;
}

// In percent. The driver tells no use of a GPU in MIG mode: its instances have their own, where there is GPM.
std::optional<double> busy(const metrics::GpuSample& gpu) {
  if (!gpu.mig) return number(gpu.values, Field::kGpuUtil);
  double sum = 0;
  unsigned slices = 0;
  for (const auto& instance : gpu.instances) {
    const auto active = number(instance.values, Field::kGraphicsActive);
    if (!active) return std::nullopt;
    // "2g.20gb"
    const unsigned size = instance.profile.empty() ? 1 : static_cast<unsigned>(instance.profile[0] - '0');
    sum += *active * 100 * size;
    slices += size;
  }
  if (slices == 0) return std::nullopt;
  return sum / std::max(slices, 7u);
}

std::optional<double> memory(const metrics::GpuSample& gpu) {
  const auto used = number(gpu.values, Field::kFbUsed), free = number(gpu.values, Field::kFbFree);
  if (!used || !free || *used + *free <= 0) return std::nullopt;
  return *used / (*used + *free) * 100;
}

}  // namespace

std::set<metrics::Field> load_fields() {
  return {Field::kGpuUtil, Field::kGraphicsActive, Field::kFbUsed, Field::kFbFree};
}

void GpuLoads::add(const metrics::Sample& sample, const metrics::Uses& uses, WallTime now) {
  std::set<DeviceUuid> there;
  for (const auto& gpu : sample.gpus) {
    there.insert(gpu.uuid);
    if (gpu.failed) continue;
    auto holders = holders_of(gpu, uses);
    if (holders.empty()) {
      gpus_.erase(gpu.uuid);
      continue;
    }
    const auto [known, fresh] = gpus_.try_emplace(gpu.uuid);
    if (!fresh && known->second.holders != holders) known->second.forecast.holders_changed();
    known->second.holders = std::move(holders);
    const auto percent = busy(gpu);
    if (percent) known->second.forecast.add(now, *percent, memory(gpu).value_or(0));
  }
  std::erase_if(gpus_, [&](const auto& one) { return !there.contains(one.first); });
}

std::map<DeviceUuid, std::string> GpuLoads::curves(WallTime now) const {
  std::map<DeviceUuid, std::string> curves;
  for (const auto& [gpu, known] : gpus_) curves[gpu] = scheduler::encode(known.forecast.curve(now));
  return curves;
}

}  // namespace gpulet::agent

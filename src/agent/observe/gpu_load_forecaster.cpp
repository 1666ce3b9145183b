#include "agent/observe/gpu_load_forecaster.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace gpulet::agent {
namespace {

using metrics::Field;

// Of a GPU, in percent.
struct UsePart {
  double busy = 0;
  double memory = 0;
  bool is_busy_known = false;  // by the Pod's processes, or because it is alone
};
using UseByPod = std::map<PodName, UsePart>;

// In percent. The driver has no use of a GPU in MIG mode; its instances have, with GPM.
std::optional<double> busy_percent(const metrics::GpuSample& gpu) {
  if (!gpu.mig) return numeric_field(gpu.values, Field::kGpuUtil);
  double sum = 0;
  unsigned slices = 0;
  for (const auto& instance : gpu.instances) {
    const auto active = numeric_field(instance.values, Field::kGraphicsActive);
    if (!active) return std::nullopt;
    // "2g.20gb"
    const unsigned size = instance.profile.empty() ? 1 : static_cast<unsigned>(instance.profile[0] - '0');
    sum += *active * 100 * size;
    slices += size;
  }
  if (slices == 0) return std::nullopt;
  return sum / std::max(slices, 7u);
}

std::optional<double> memory_percent(const metrics::GpuSample& gpu) {
  const auto used = numeric_field(gpu.values, Field::kFbUsed),
             free = numeric_field(gpu.values, Field::kFbFree);
  if (!used || !free || *used + *free <= 0) return std::nullopt;
  return *used / (*used + *free) * 100;
}

// What of `whole` is each holder's: by the processes of each where they are known, the rest in equal parts.
UseByPod use_by_pod(const metrics::GpuSample& gpu, const metrics::Attribution& uses, const UsePart& whole) {
  UseByPod parts;
  UsePart rest = whole;
  const auto add = [&](const DeviceUuid& device, bool times) {
    const auto found = uses.devices.find(device);
    if (found == uses.devices.end()) return;
    for (const auto& pod : found->second.pods) {
      UsePart& part = parts[pod.holder.pod];
      if (!times || !found->second.is_busy_known) continue;
      const double busy = std::clamp(pod.busy, 0.0, rest.busy);
      part.busy += busy;
      part.is_busy_known = true;
      rest.busy -= busy;
    }
  };
  add(gpu.uuid, !gpu.mig);
  for (const auto& instance : gpu.instances) {
    for (const auto& device : instance.devices) add(device.uuid, false);
  }
  for (auto& [pod, part] : parts) {
    part.busy += rest.busy / static_cast<double>(parts.size());
    part.memory = rest.memory / static_cast<double>(parts.size());
  }
  return parts;
}

std::string controller_of(const PodName& pod) {
  return scheduler::controller_of_pod(pod.name_space + "/" + pod.name);
}

}  // namespace

std::set<metrics::Field> load_sample_fields() {
  return {Field::kGpuUtil, Field::kGraphicsActive, Field::kFbUsed, Field::kFbFree};
}

void GpuLoadForecaster::add_load_sample(const metrics::Sample& sample, const metrics::Attribution& uses,
                                        WallTime now) {
  std::set<DeviceUuid> there;
  for (const auto& gpu : sample.gpus) {
    there.insert(gpu.uuid);
    Gpu& known = gpus_[gpu.uuid];
    if (gpu.error) continue;
    const auto percent = busy_percent(gpu);
    const UsePart whole{percent.value_or(0), memory_percent(gpu).value_or(0), percent.has_value()};
    known.last = {now, whole.busy, whole.memory, !processes_outside_pods(gpu).empty(), percent.has_value()};
    const UseByPod found = use_by_pod(gpu, uses, whole);
    std::erase_if(known.pods, [&](const auto& pod) { return !found.contains(pod.first); });
    for (const auto& [pod, part] : found) {
      auto at = known.pods.find(pod);
      if (at == known.pods.end()) at = known.pods.emplace(pod, start_forecast(pod)).first;
      at->second.busy.reset();
      if (!percent) continue;
      at->second.forecast.add_load_sample(now, part.busy, part.memory);
      if (part.is_busy_known) at->second.busy = part.busy;
    }
  }
  std::erase_if(gpus_, [&](const auto& one) { return !there.contains(one.first); });
  if (!learned_at_ || now < *learned_at_ || now - *learned_at_ >= kLearnInterval) learn_controllers(now);
}

GpuLoadForecaster::PodForecast GpuLoadForecaster::start_forecast(const PodName& pod) const {
  const auto* known = controllers_.find_load(controller_of(pod));
  if (known == nullptr) return {};
  return {scheduler::Forecast(known->curve), known->hours, {}};
}

void GpuLoadForecaster::learn_controllers(WallTime now) {
  learned_at_ = now;
  std::vector<ControllerMemory::PodLoad> loads;
  for (const auto& [uuid, gpu] : gpus_) {
    for (const auto& [pod, known] : gpu.pods) {
      const std::uint32_t hours = known.known_hours();
      if (hours != 0) loads.push_back({controller_of(pod), known.forecast.daily_curve(now), hours});
    }
  }
  controllers_.learn_loads(loads, now);
}

void GpuLoadForecaster::add_controllers(const std::vector<scheduler::ControllerLoad>& loads, WallTime now) {
  controllers_.add_loads(loads, now);
  for (auto& [uuid, gpu] : gpus_) {
    for (auto& [pod, known] : gpu.pods) {
      if (known.known_hours() == 0) known = start_forecast(pod);
    }
  }
}

std::map<DeviceUuid, metrics::GpuForecast> GpuLoadForecaster::horizon_forecasts(WallTime now) const {
  constexpr std::chrono::minutes kStep{15};
  std::map<DeviceUuid, metrics::GpuForecast> all;
  for (const auto& [uuid, gpu] : gpus_) {
    if (!gpu.last || now - gpu.last->at > kMaxForecastAge) continue;
    metrics::GpuForecast one;
    metrics::ExpectedUse whole;
    std::map<PodName, metrics::ExpectedUse> parts;
    std::size_t horizon = 0;
    for (auto ahead = std::chrono::minutes::zero(); horizon < metrics::kForecastHorizons.size();
         ahead += kStep) {
      metrics::ExpectedUse sum;
      for (const auto& [pod, known] : gpu.pods) {
        if (!known.forecast.has_samples()) continue;
        const metrics::ExpectedUse use{known.forecast.busy_at(now + ahead),
                                       known.forecast.memory_at(now + ahead)};
        sum.busy += use.busy;
        sum.memory += use.memory;
        parts[pod].raise_to(use);
      }
      if (parts.empty()) break;
      whole.raise_to({std::min(sum.busy, 100.0), std::min(sum.memory, 100.0)});
      if (ahead < metrics::kForecastHorizons[horizon].length) continue;
      one.gpu[horizon] = whole;
      for (const auto& [pod, use] : parts) one.pods[pod][horizon] = use;
      ++horizon;
    }
    if (!one.pods.empty()) all[uuid] = std::move(one);
  }
  return all;
}

std::map<DeviceUuid, std::string> GpuLoadForecaster::encoded_curves(WallTime now) const {
  std::map<DeviceUuid, std::string> curves;
  for (const auto& [uuid, gpu] : gpus_) {
    if (gpu.pods.empty()) continue;
    scheduler::LoadCurve sum;
    for (const auto& [pod, known] : gpu.pods) sum = sum + known.forecast.daily_curve(now);
    curves[uuid] = scheduler::encode_curve(sum);
  }
  return curves;
}

std::map<DeviceUuid, GpuLoadForecaster::GpuUse> GpuLoadForecaster::gpu_uses(WallTime now,
                                                                            Duration ahead) const {
  std::map<DeviceUuid, GpuUse> uses;
  const WallTime then = now + std::chrono::duration_cast<WallTime::duration>(ahead);
  for (const auto& [uuid, gpu] : gpus_) {
    if (!gpu.last || now - gpu.last->at > kMaxSampleAge) continue;
    GpuUse& use = uses[uuid];
    if (gpu.last->is_busy_known) use.busy = gpu.last->busy;
    double sum = 0;
    bool is_known = !gpu.pods.empty();
    for (const auto& [pod, known] : gpu.pods) {
      PodUse one{known.busy, known.forecast.daily_curve(now)};
      if (known.known_hours() == 0) {
        is_known = false;
        for (auto& part : one.day.busy)
          part = std::max(part, static_cast<std::uint8_t>(std::lround(known.busy.value_or(100))));
      }
      sum += known.forecast.busy_at(then);
      use.pods[pod] = one;
    }
    if (is_known) use.later = std::min(sum, 100.0);
  }
  return uses;
}

placement::LoadsByGpu GpuLoadForecaster::gpu_loads(WallTime now) const {
  placement::LoadsByGpu loads;
  for (const auto& [uuid, gpu] : gpus_) {
    if (!gpu.last || now - gpu.last->at > kMaxSampleAge) continue;
    Reading load = *gpu.last;
    for (int hour = 1; hour <= kForecastHours; ++hour) {
      const WallTime then = now + std::chrono::hours(hour);
      double busy = 0;
      double memory = 0;
      for (const auto& [pod, known] : gpu.pods) {
        busy += known.forecast.busy_at(then);
        memory += known.forecast.memory_at(then);
      }
      load.busy = std::max(load.busy, busy);
      load.memory = std::max(load.memory, memory);
    }
    loads[uuid] = placement::make_gpu_load(load.busy, load.memory, load.held_outside_pods);
  }
  return loads;
}

}  // namespace gpulet::agent

#include "agent/driver/power_control.h"

#include <algorithm>
#include <string>

#include "agent/driver/gpu_lookup.h"
#include "nvml/power.h"
#include "nvml/usage.h"

namespace gpulet::agent {
namespace {

template <class T>
std::optional<T> known(const Result<T>& read) {
  return read ? std::optional(*read) : std::nullopt;
}

std::optional<config::ClockRange> range_of(const Result<std::vector<unsigned>>& clocks) {
  if (!clocks || clocks->empty()) return std::nullopt;
  const auto [lowest, highest] = std::ranges::minmax(*clocks);
  return config::ClockRange{lowest, highest};
}

partition::PowerBounds read_bounds(const nvml::Usage& usage, const nvml::PowerControl& control) {
  partition::PowerBounds bounds;
  const auto preset = usage.default_power_limit();
  const auto limits = usage.power_limits();
  if (preset && limits) bounds.limit = partition::LimitBounds{*preset, limits->minimum, limits->maximum};
  bounds.memory = range_of(control.supported_memory_clocks());
  if (bounds.memory) bounds.graphics = range_of(control.supported_graphics_clocks(bounds.memory->highest));
  return bounds;
}

Result<PowerReading> read_power_of(const nvml::Session& session, nvml::Device device) {
  const nvml::Usage usage(session, device);
  PowerReading reading{.session = session.generation()};
  const auto limit = usage.power_limit();
  if (!limit && limit.error().code() != Code::kUnsupported) return fail(limit.error());
  reading.limit = known(limit);
  reading.enforced = known(usage.enforced_power_limit());
  reading.bounds = read_bounds(usage, {session, device});
  if (!limit) reading.bounds.limit.reset();
  return reading;
}

PowerWritten write_power_of(const nvml::Session& session, nvml::Device device, const PowerWrites& writes) {
  const nvml::Usage usage(session, device);
  const nvml::PowerControl control(session, device);
  PowerWritten written;
  if (writes.limit) {
    written.limit = control.set_power_limit(*writes.limit);
    written.read_back = known(usage.power_limit());
    written.enforced = known(usage.enforced_power_limit());
  }
  if (const auto& graphics = writes.graphics)
    written.graphics = graphics->lock
                           ? control.lock_graphics_clocks(graphics->lock->lowest, graphics->lock->highest)
                           : control.unlock_graphics_clocks();
  if (const auto& memory = writes.memory)
    written.memory = memory->lock ? control.lock_memory_clocks(memory->lock->lowest, memory->lock->highest)
                                  : control.unlock_memory_clocks();
  return written;
}

}  // namespace

void read_power(NvmlDriver& driver, const DeviceUuid& gpu, Duration limit,
                std::function<void(Result<PowerReading>)> done) {
  driver.run_on_gpu<PowerReading>(
      gpu, "reading the power limit of", limit,
      [gpu](const NvmlDriver::SessionPtr& session, unsigned index) -> Result<PowerReading> {
        GPULET_TRY_ASSIGN(const auto device, find_gpu_at(*session, index, gpu));
        return read_power_of(*session, device);
      },
      std::move(done));
}

void write_power(NvmlDriver& driver, const DeviceUuid& gpu, const PowerWrites& writes, Duration limit,
                 std::function<void(Result<PowerWritten>)> done) {
  driver.run_on_gpu<PowerWritten>(
      gpu, "setting power limit or clocks of", limit,
      [gpu, writes](const NvmlDriver::SessionPtr& session, unsigned index) -> Result<PowerWritten> {
        GPULET_TRY_ASSIGN(const auto device, find_gpu_at(*session, index, gpu));
        return write_power_of(*session, device, writes);
      },
      std::move(done));
}

}  // namespace gpulet::agent

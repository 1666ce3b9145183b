#include "agent/dra/plugin_watcher.h"

#include <utility>

#include "base/log.h"

namespace gpulet::agent {

void PluginWatcher::set_active(bool active) {
  if (std::exchange(is_active_, active) == active) return;
  ++round_;
  timer_.reset();
  backoff_.reset();
  error_.clear();
  if (active) begin_round();
}

// Each part after the one before it: nothing that was withdrawn before the round is missed.
void PluginWatcher::begin_round() {
  const auto round = ++round_;
  timer_ = ports_.loop.after(kPluginReadLimit, [this] { begin_round(); });
  partition::PluginReading reading{.began = ports_.loop.now(), .holders = {}, .allocatable = {}};
  ports_.list_containers([this, round, reading, alive = lifetime_.watch()](
                             const Result<std::vector<ContainerDevices>>& containers) mutable {
    if (!alive || round != round_) return;
    if (!containers) return end_round(fail(containers.error()));
    reading.holders = plugin_holders(*containers, *ports_.snapshot());
    list_allocatable(std::move(reading));
  });
}

void PluginWatcher::list_allocatable(partition::PluginReading reading) {
  ports_.list_allocatable([this, round = round_, reading = std::move(reading), alive = lifetime_.watch()](
                              const Result<device_plugin::DevicesByResource>& devices) mutable {
    if (!alive || round != round_) return;
    if (!devices) return end_round(fail(devices.error()));
    reading.allocatable = allocatable_gpus(*devices, *ports_.snapshot());
    read_node(std::move(reading));
  });
}

void PluginWatcher::read_node(partition::PluginReading reading) {
  ports_.read_node([this, round = round_, reading = std::move(reading),
                    alive = lifetime_.watch()](const Result<std::optional<std::string>>& node) mutable {
    if (!alive || round != round_) return;
    if (!node) return end_round(fail(node.error()));
    reading.node_behind = node_behind(*node ? **node : "", ports_.expected());
    end_round(reading);
  });
}

void PluginWatcher::end_round(const Result<partition::PluginReading>& reading) {
  timer_ = ports_.loop.after(backoff_.next_delay(), [this] { begin_round(); });
  const std::string error = reading ? "" : reading.error().full_message();
  if (std::exchange(error_, error) != error && !error.empty())
    log::warning("claims wait: what Pods hold by the device plugin is unknown", reading.error());
  if (reading) ports_.on_reading(*reading);
}

}  // namespace gpulet::agent

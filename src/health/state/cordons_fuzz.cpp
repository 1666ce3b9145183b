// Parses any bytes as a cordons file: it is refused in one line, or written and parsed as the same, and a
// state machine that applies it reports these cordons.
#include <algorithm>
#include <cstdlib>

#include "health/state/cordons.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet;
  using namespace gpulet::health;
  const auto cordons = parse_cordons({reinterpret_cast<const char*>(data), size});
  if (!cordons) {
    if (cordons.error().message().empty()) std::abort();
    return 0;
  }
  const auto again = parse_cordons(format_cordons(*cordons));
  if (!again || *again != *cordons) std::abort();

  inventory::Snapshot node;
  for (const auto& [uuid, word] : *cordons) {
    if (node.gpus.size() >= 8) break;
    inventory::Gpu gpu;
    gpu.index = static_cast<unsigned>(node.gpus.size());
    gpu.uuid = uuid;
    gpu.pci = {0, 0x10 + gpu.index, 0, 0};
    node.gpus.push_back(gpu);
  }
  HealthStateMachine machine({}, XidFilter("", ""));
  const ClockPair clock{Time(std::chrono::hours(1)), WallTime(std::chrono::hours(500'000))};
  machine.apply_snapshot(node, clock.now);
  for (const auto& command :
       pending_operator_commands(build_health_view(machine, node, clock), *cordons, clock)) {
    machine.add_evidence(command);
  }
  const auto view = build_health_view(machine, node, clock);
  if (!pending_operator_commands(view, *cordons, clock).empty()) std::abort();
  for (const auto& device : view.devices) {
    const bool cordoned = cordons->at(device.uuid).action == OperatorAction::kCordon;
    if (cordoned != (device.status.state == DeviceState::kDraining)) std::abort();
  }
  return 0;
}

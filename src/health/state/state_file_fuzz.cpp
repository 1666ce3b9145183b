// Parses any bytes as a state file: a parsed state is written and parsed as the same, and a state machine
// accepts it.
#include <cstdlib>

#include "health/state/persisted_state.h"
#include "health/state/state_machine.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet;
  using namespace gpulet::health;
  const auto saved = parse_persisted_state({reinterpret_cast<const char*>(data), size});
  if (!saved) {
    if (saved.error().message().empty()) std::abort();
    return 0;
  }
  const auto again = parse_persisted_state(format_persisted_state(*saved));
  if (!again || format_persisted_state(*again) != format_persisted_state(*saved)) std::abort();
  HealthStateMachine machine({}, XidFilter("", ""));
  const ClockPair clock{Time(std::chrono::hours(1)), WallTime(std::chrono::hours(500'000))};
  machine.restore_state(*saved, "another", clock);
  for (const auto& change : machine.advance_to(clock.now + std::chrono::hours(1))) {
    if (change.after.since < change.before.since) std::abort();
  }
  const auto kept = machine.to_persisted_state(clock, "another");
  if (!parse_persisted_state(format_persisted_state(kept))) std::abort();
  return 0;
}

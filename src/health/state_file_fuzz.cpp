// A state file from anywhere: what is read writes and reads back the same, and a machine lives with it.
#include <cstdlib>

#include "health/machine.h"
#include "health/state_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet;
  using namespace gpulet::health;
  const auto saved = parse_state({reinterpret_cast<const char*>(data), size});
  if (!saved) {
    if (saved.error().message().empty()) std::abort();
    return 0;
  }
  const auto again = parse_state(format_state(*saved));
  if (!again || format_state(*again) != format_state(*saved)) std::abort();
  Machine machine({}, XidFilter("", ""));
  const Clock clock{Time(std::chrono::hours(1)), WallTime(std::chrono::hours(500'000))};
  machine.restore(*saved, "another", clock);
  for (const auto& change : machine.advance(clock.now + std::chrono::hours(1))) {
    if (change.after.since < change.before.since) std::abort();
  }
  const auto kept = machine.save(clock, "another");
  if (!parse_state(format_state(kept))) std::abort();
  return 0;
}

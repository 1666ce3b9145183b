// Fuzzes machine files: the result is an error or a machine with values in bounds, never a crash.
#include <cstdint>
#include <cstdlib>

#include "sim/machine/machine.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto machine = gpulet::sim::parse_machine({reinterpret_cast<const char*>(data), size}, "fuzz.yaml");
  if (!machine) return machine.error().message().empty() ? std::abort(), 0 : 0;
  const gpulet::sim::Machine& made = **machine;
  if (made.gpu_count < 1 || made.gpu_count > gpulet::sim::kMaxGpus) std::abort();
  for (std::uint32_t i = 0; i < made.gpu_count; ++i) {
    const auto& mig = made.gpus[i].mig;
    for (std::uint32_t p = 0; p < mig.profile_count; ++p) {
      const auto& profile = mig.profiles[p];
      const auto last = profile.placements[profile.placement_count - 1];
      if (profile.placement_count == 0 || last + profile.memory_slices > mig.memory_slices) std::abort();
    }
  }
  return 0;
}

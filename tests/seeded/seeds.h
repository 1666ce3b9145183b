// The number of seeds of each seeded test, and of each of its cases: cases run in parallel.
#pragma once

#include <cstdint>

namespace gpulet::seeded {

inline constexpr std::uint64_t kSeeds = 1000;
inline constexpr std::uint64_t kSeedsPerTest = 50;

}  // namespace gpulet::seeded

// How many seeds each seeded test plays, and how many of them one case of it: cases run beside each other.
#pragma once

#include <cstdint>

namespace gpulet::seeded {

inline constexpr std::uint64_t kSeeds = 1000;
inline constexpr std::uint64_t kSeedsPerTest = 50;

}  // namespace gpulet::seeded

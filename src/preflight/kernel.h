// The kernel of the check `compute`, as PTX that the driver compiles, and the same on the host:
//
//   gpulet_preflight(u32* out, u32 count, u32 rounds), one thread for each i < count:
//     x = i * 0x9E3779B9 + 1;  f = 1.0f
//     rounds times:  x = x * 1664525 + 1013904223;  x ^= x >> 13;  f = fma(f, 0.5f, (x >> 8) * 2^-24)
//     out[i] = x ^ bits(f)
//
// Every operation is exact or rounded as IEEE 754 says, so that both have the same bits.
#pragma once

#include <cstdint>

namespace gpulet::preflight {

inline constexpr const char* kKernelName = "gpulet_preflight";
extern const char* const kKernelPtx;

// out[i].
std::uint32_t kernel_result(std::uint32_t i, std::uint32_t rounds);

}  // namespace gpulet::preflight

// Sums over ECC counters, for the calls and for the field values.
#pragma once

#include "sim/driver/call.h"

namespace gpulet::sim {

// `type` and `counter` as nvmlMemoryErrorType_t and nvmlEccCounterType_t.
std::uint64_t ecc_total(const Gpu& gpu, unsigned int type, unsigned int counter);
std::uint32_t retired_pages(const Gpu& gpu, std::uint32_t cause);

}  // namespace gpulet::sim

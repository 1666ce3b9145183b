// Kubernetes' quantities, as in resource requests. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace gpulet::scheduler {

// "500m" → 500, "2" → 2000, "1.5Gi" → 1610612736000: thousandths, rounded up, at most 2^62. nullopt for
// anything else, negative ones included, which no request may have. Source: Kubernetes API machinery,
// resource.Quantity: a decimal number, then a decimal or binary suffix or an exponent.
std::optional<std::uint64_t> parse_quantity_milli(std::string_view text);

}  // namespace gpulet::scheduler

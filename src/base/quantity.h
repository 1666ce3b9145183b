// Kubernetes' quantities, as in resource requests and in the capacity of devices. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpulet {

// "500m" → 500, "2" → 2000, "1.5Gi" → 1610612736000: thousandths, rounded up, at most 2^62. nullopt for
// anything else, negative ones included, which no request may have. Source: Kubernetes API machinery,
// resource.Quantity: a decimal number, then a decimal or binary suffix or an exponent.
std::optional<std::uint64_t> parse_quantity_milli(std::string_view text);

// 85899345920 → "80Gi", 1000 → "1000": the canonical form of a quantity of bytes, which the API server
// returns unchanged. Source: resource.Quantity, BinarySI.
std::string format_binary_quantity(std::uint64_t value);

}  // namespace gpulet

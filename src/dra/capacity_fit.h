// How often the scheduler's allocator can allocate a device of a ResourceSlice, by what is requested of its
// capacities and what claims with a share of it have. Pure.
//
// Source: resource.k8s.io/v1, CapacityRequestPolicy; k8s.io/dynamic-resource-allocation (Kubernetes 1.36).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

namespace gpulet::dra {

// Thousandths by capacity.
using CapacityAmounts = std::map<std::string, std::uint64_t>;

// Adds an object's quantities, under names without the driver's domain.
void add_amounts(const nlohmann::json& quantities, const std::string& driver, CapacityAmounts& amounts);

struct CapacityFit {
  std::uint64_t times = 0;   // at most kEndlessShares
  std::string lacking = {};  // a capacity of which too little is left, or that it does not have; with 0 times
};
inline constexpr std::uint64_t kEndlessShares = 4096;  // where nothing limits them

// `requested`, `taken`: under names without the driver's domain. A device that only one claim may have needs
// what is requested; of another one, what is not requested is taken by its policy, without one all of it.
CapacityFit find_capacity_fit(const nlohmann::json& device, const std::string& driver,
                              CapacityAmounts requested, const CapacityAmounts& taken);

}  // namespace gpulet::dra

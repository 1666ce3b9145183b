// The part of CEL that is read of the selectors of claims and DeviceClasses: conjunctions of comparisons with
// a literal, of device.driver, of device.allowMultipleAllocations, of an attribute, and of a capacity by
// compareTo(quantity()). Pure.
//
//   device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'
//
// Source: resource.k8s.io/v1, CELDeviceSelector (Kubernetes 1.36).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

namespace gpulet::dra {

// The parts between "&&" outside of strings and parentheses; the whole text if it has another operator there.
std::vector<std::string> split_selector(std::string_view expression);

// Whether a device of a ResourceSlice (JSON) meets a part of a selector; nullopt for one that is not read. An
// attribute that is missing is an error in CEL, which no device survives.
std::optional<bool> meets_condition(const nlohmann::json& device, const std::string& driver,
                                    std::string_view text);

// The attribute or capacity `domain`/`name`; null if the device has none. Without a domain, names are the
// driver's. `where`: "attributes" or "capacity".
const nlohmann::json& find_device_value(const nlohmann::json& device, const std::string& driver,
                                        const char* where, const std::string& domain,
                                        const std::string& name);

}  // namespace gpulet::dra

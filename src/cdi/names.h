// Names of the CDI: "nvidia.com/gpu=0" is vendor/class=device. Which characters each may have, and how GPUs
// and MIG devices are called: by uuid, by index ("0", "0:1"), by type and index ("gpu0", "mig0:1").
// Sources: the CDI's parser.go; nvidia-ctk's --device-name-strategy.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "inventory/snapshot.h"

namespace gpulet::cdi {

enum class NameStrategy { kIndex, kUuid, kTypeIndex };
// "index", "uuid", "type-index". Errors: kInvalidArgument.
Result<NameStrategy> parse_name_strategy(std::string_view text);

std::string gpu_name(NameStrategy strategy, const inventory::Gpu& gpu);
std::string mig_name(NameStrategy strategy, const inventory::Gpu& gpu, const inventory::MigDevice& mig);

inline constexpr std::string_view kAllDevices = "all";
inline constexpr std::string_view kNoDevice = "none";

// Letters, digits, '_', '-' and '.', a letter first and a letter or digit last. Errors: kInvalidArgument.
Status check_vendor(std::string_view vendor);
Status check_class(std::string_view device_class);
// Letters, digits, '_', '-', '.' and ':', a letter or digit first and last.
Status check_device_name(std::string_view name);

// "nvidia.com/gpu=0".
std::string qualified_name(std::string_view kind, std::string_view device);

}  // namespace gpulet::cdi

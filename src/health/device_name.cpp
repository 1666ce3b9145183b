#include "health/device_name.h"

#include <algorithm>

#include "base/text.h"

namespace gpulet::health {
namespace {

// "3" or "3:1".
bool has_index(const DeviceView& device, std::string_view name) {
  if (!device.gpu_index) return false;
  auto index = std::to_string(*device.gpu_index);
  if (device.scope.whole()) return index == name;
  return device.mig_index && index + ":" + std::to_string(*device.mig_index) == name;
}

bool begins_uuid(std::string_view name) {
  return name.size() > 4 && (name.starts_with("GPU-") || name.starts_with("MIG-"));
}

std::string names_of(const std::vector<const DeviceView*>& devices) {
  std::vector<std::string> names;
  for (const auto* device : devices) names.push_back(describe(*device));
  return text::join(names, ", ");
}

}  // namespace

Result<const DeviceView*> find_device(const View& view, std::string_view name) {
  std::vector<const DeviceView*> fits, gpus;
  for (const auto& device : view.devices) {
    if (device.scope.whole()) gpus.push_back(&device);
    const bool beginning = begins_uuid(name) && device.uuid.str().starts_with(name);
    if (has_index(device, name) || beginning) fits.push_back(&device);
    if (beginning && device.uuid.str() == name) return &device;
  }
  if (fits.size() == 1) return fits.front();
  const std::string quoted = "'" + std::string(name) + "'";
  if (fits.empty()) {
    return fail(Code::kNotFound, "there is no device " + quoted + " on this node; there are " +
                                     (gpus.empty() ? "none" : names_of(gpus)));
  }
  return fail(Code::kInvalidArgument, quoted + " fits several devices: " + names_of(fits));
}

bool is_whole_uuid(std::string_view name) {
  if (!begins_uuid(name) || name.size() != 40) return false;
  const auto rest = name.substr(4);
  for (std::size_t i = 0; i < rest.size(); ++i) {
    const char c = rest[i];
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    const bool digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (dash ? c != '-' : !digit) return false;
  }
  return true;
}

}  // namespace gpulet::health

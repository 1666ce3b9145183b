// For tests: Pods, what they hold, and the lines of a page that are about them.
#pragma once

#include <string>
#include <vector>

#include "base/text.h"
#include "metrics/attribution.h"
#include "metrics/exposition.h"

namespace gpulet::metrics {

inline const PodName kTrain{"default", "train"}, kServe{"prod", "serve"};

// Holds nvidia.com/gpu of these ids.
inline ContainerDevices container(const PodName& pod, const std::string& name,
                                  const std::vector<std::string>& ids) {
  ContainerDevices one{pod, name, {}};
  for (const auto& id : ids) one.devices[ResourceName("nvidia.com/gpu")].push_back(DeviceId(id));
  return one;
}

// Those that begin so.
inline std::vector<std::string> lines(const std::string& page, const std::string& begin) {
  std::vector<std::string> found;
  for (const auto& line : text::split(page, '\n')) {
    if (line.starts_with(begin)) found.push_back(line);
  }
  return found;
}
inline std::vector<std::string> lines(const Exposition& page, const std::string& begin) {
  return lines(page.text_format(), begin);
}

}  // namespace gpulet::metrics

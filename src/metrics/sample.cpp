#include "metrics/sample.h"

namespace gpulet::metrics {

std::string instance_profile(const std::string& profile) {
  const auto at = profile.find("c.");
  const bool part = at != std::string::npos && profile.find_first_not_of("0123456789") == at;
  return part ? profile.substr(at + 2) : profile;
}

}  // namespace gpulet::metrics

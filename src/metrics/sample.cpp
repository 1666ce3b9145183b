#include "metrics/sample.h"

namespace gpulet::metrics {

std::optional<double> number(const Values& values, Field field) {
  const auto found = values.find(field);
  if (found == values.end()) return std::nullopt;
  if (const auto* whole = std::get_if<std::uint64_t>(&found->second)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&found->second)) return *real;
  return std::nullopt;
}

std::string instance_profile(const std::string& profile) {
  const auto at = profile.find("c.");
  const bool part = at != std::string::npos && profile.find_first_not_of("0123456789") == at;
  return part ? profile.substr(at + 2) : profile;
}

}  // namespace gpulet::metrics

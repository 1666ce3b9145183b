#include "fraction/limit_support.h"

#include <array>

#include "base/text.h"

namespace gpulet::fraction {
namespace {

constexpr std::string_view kRegistryLine = "RegistryDwords:";
constexpr std::string_view kAccountingKey = "RmMemacctMode";

bool has_branch_with_limits(std::string_view version) {
  const auto branch = text::parse_unsigned(version.substr(0, version.find('.')));
  return branch && *branch >= kFirstBranchWithLimits;
}

}  // namespace

// Of `RegistryDwords: "RmMemacctMode=0;Other=0x1"`. The driver takes the last of equal keys.
bool switches_accounting_off(std::string_view parameters) {
  bool is_off = false;
  for (const auto& line : text::split(parameters, '\n')) {
    if (!text::starts_with(line, kRegistryLine)) continue;
    std::string value(text::trim(std::string_view(line).substr(kRegistryLine.size())));
    std::erase(value, '"');
    for (const auto& setting : text::split(value, ';')) {
      const auto equals = setting.find('=');
      if (equals == std::string::npos || text::trim(setting.substr(0, equals)) != kAccountingKey) continue;
      const std::string number = std::string(text::trim(setting.substr(equals + 1)));
      is_off = number == "0" || text::lower(number) == "0x0";
    }
  }
  return is_off;
}

MemoryLimitSupport check_limit_support(const LimitEvidence& evidence) {
  if (!has_branch_with_limits(evidence.driver_version))
    return {"the driver is " + evidence.driver_version + ": memory limits need " +
            std::to_string(kFirstBranchWithLimits) + " or later"};
  if (!evidence.has_functions)
    return {"the library of driver " + evidence.driver_version + " has no nvmlDeviceSetMemoryLimits_v1"};
  if (evidence.parameters && switches_accounting_off(*evidence.parameters))
    return {
        "RmMemacctMode=0 among the driver's RegistryDwords (/proc/driver/nvidia/params) switches memory "
        "limits off"};
  if (!evidence.is_cgroup_v2) return {"the node has no cgroup v2, which memory limits need"};
  if (!evidence.is_administrator) return {"no CAP_SYS_ADMIN, which setting memory limits needs"};
  return {};
}

}  // namespace gpulet::fraction

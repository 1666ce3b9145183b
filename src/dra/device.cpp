#include "dra/device.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "health/policy/health_policy.h"

namespace gpulet::dra {
namespace {

constexpr std::size_t kVersionParts = 3;
constexpr std::size_t kMaxPartDigits = 9;

bool is_xid(health::FaultClass fault_class) {
  using health::FaultClass;
  switch (fault_class) {
    case FaultClass::kXidReset:
    case FaultClass::kXidReboot:
    case FaultClass::kXidVirtualMachine:
    case FaultClass::kXidEcc:
    case FaultClass::kXidNvLink:
    case FaultClass::kXidSupport:
    case FaultClass::kXidUnknown:
    case FaultClass::kXidWatched:
      return true;
    default:
      return false;
  }
}

DeviceTaint fault_taint(const health::Fault& fault) {
  DeviceTaint taint{std::string(kFaultTaint), std::string(health::fault_rule(fault.fault_class).name)};
  if (is_xid(fault.fault_class)) taint = {std::string(kXidTaint), std::to_string(fault.code)};
  if (fault.fault_class == health::FaultClass::kLost) taint = {std::string(kLostTaint), "true"};
  taint.effect = fault.effect >= health::Effect::kDrain ? TaintEffect::kNoSchedule : TaintEffect::kNone;
  return taint;
}

bool is_same_taint(const DeviceTaint& a, const DeviceTaint& b) {
  return std::tie(a.key, a.value, a.effect) == std::tie(b.key, b.value, b.effect);
}

}  // namespace

std::string_view enum_name(TaintEffect effect) {
  switch (effect) {
    case TaintEffect::kNone:
      return "None";
    case TaintEffect::kNoSchedule:
      return "NoSchedule";
    case TaintEffect::kNoExecute:
      break;
  }
  return "NoExecute";
}

Version semantic_version(std::string_view text) {
  std::string version;
  for (std::size_t part = 0; part < kVersionParts; ++part) {
    std::size_t digits = 0;
    while (digits < text.size() && text::is_digit(text[digits])) ++digits;
    std::string_view number = text.substr(0, digits);
    number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
    if (number.size() > kMaxPartDigits) number = {};
    version += (part == 0 ? "" : ".") + (number.empty() ? "0" : std::string(number));
    text.remove_prefix(digits);
    // What is not a number after a dot ends the version; the missing parts are zero.
    text = digits != 0 && text.starts_with('.') ? text.substr(1) : std::string_view();
  }
  return {version};
}

std::vector<DeviceTaint> health_taints(const health::DeviceStatus& status) {
  std::vector<DeviceTaint> taints;
  if (status.state == health::DeviceState::kUnmonitored) {
    taints.push_back({std::string(kUnmonitoredTaint), "true"});
  }
  if (status.state == health::DeviceState::kLost) {
    taints.push_back({std::string(kLostTaint), "true", TaintEffect::kNoSchedule});
  }
  for (const auto& fault : status.faults) {
    if (fault.effect != health::Effect::kIgnore) taints.push_back(fault_taint(fault));
  }
  const bool withdrawn = std::ranges::any_of(
      taints, [](const DeviceTaint& taint) { return taint.effect == TaintEffect::kNoSchedule; });
  if (!health::is_allocatable(status.state) && !withdrawn) {
    taints.push_back(
        {std::string(kFaultTaint), std::string(health::enum_name(status.state)), TaintEffect::kNoSchedule});
  }
  // The strongest effect first, so that a duplicate's and the surplus ones' are dropped.
  std::ranges::sort(taints, [](const DeviceTaint& a, const DeviceTaint& b) {
    return std::tie(b.effect, a.key, a.value) < std::tie(a.effect, b.key, b.value);
  });
  std::vector<DeviceTaint> unique;
  for (auto& taint : taints) {
    const bool known = std::ranges::any_of(unique, [&](const DeviceTaint& other) {
      return other.key == taint.key && other.value == taint.value;
    });
    if (!known && unique.size() < kMaxTaints) unique.push_back(std::move(taint));
  }
  return unique;
}

std::vector<DeviceTaint> keep_time_added(std::vector<DeviceTaint> wanted,
                                         const std::vector<DeviceTaint>& shown) {
  for (auto& taint : wanted) {
    const auto same =
        std::ranges::find_if(shown, [&](const DeviceTaint& other) { return is_same_taint(taint, other); });
    if (same != shown.end()) taint.time_added = same->time_added;
  }
  return wanted;
}

}  // namespace gpulet::dra

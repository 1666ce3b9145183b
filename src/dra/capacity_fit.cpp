#include "dra/capacity_fit.h"

#include <algorithm>
#include <limits>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/quantity.h"

namespace gpulet::dra {
namespace {

using nlohmann::json;

std::optional<std::uint64_t> amount_of(const json& object, const char* name) {
  return parse_quantity_milli(json_text(json_member(object, name)));
}

std::string plain_name(const std::string& name, const std::string& driver) {
  return name.starts_with(driver + "/") ? name.substr(driver.size() + 1) : name;
}

// nullopt where the policy allows no such amount.
std::optional<std::uint64_t> consumed_amount(const json& policy, std::optional<std::uint64_t> requested,
                                             std::uint64_t total) {
  const auto wanted = requested ? requested : amount_of(policy, "default");
  if (!wanted) return total;
  if (const auto& values = json_member(policy, "validValues"); values.is_array() && !values.empty()) {
    for (const auto& value : values) {
      const auto valid = parse_quantity_milli(json_text(value));
      if (valid && *valid >= *wanted) return valid;
    }
    return std::nullopt;
  }
  const auto& range = json_member(policy, "validRange");
  const auto least = amount_of(range, "min").value_or(0), step = amount_of(range, "step").value_or(0);
  std::uint64_t amount = std::max(*wanted, least);
  if (const auto above = step == 0 ? 0 : (amount - least) % step; above != 0) {
    if (amount > std::numeric_limits<std::uint64_t>::max() - (step - above)) return std::nullopt;
    amount += step - above;
  }
  if (const auto most = amount_of(range, "max"); most && amount > *most) return std::nullopt;
  return amount;
}

}  // namespace

void add_amounts(const json& quantities, const std::string& driver, CapacityAmounts& amounts) {
  for (const auto& item : quantities.items()) {
    const auto amount = parse_quantity_milli(json_text(item.value()));
    if (!amount) continue;
    auto& sum = amounts[plain_name(item.key(), driver)];
    sum += std::min(*amount, std::numeric_limits<std::uint64_t>::max() - sum);
  }
}

CapacityFit find_capacity_fit(const json& device, const std::string& driver, CapacityAmounts requested,
                              const CapacityAmounts& taken) {
  const auto& flag = json_member(device, "allowMultipleAllocations");
  const bool is_shared = flag.is_boolean() && flag.get<bool>();
  CapacityFit fit{.times = is_shared ? kEndlessShares : 1};
  for (const auto& item : json_member(device, "capacity").items()) {
    const auto name = plain_name(item.key(), driver);
    const auto total = amount_of(item.value(), "value").value_or(0);
    const auto own = requested.extract(name);
    if (!is_shared && own.empty()) continue;
    const auto request = own ? std::optional(own.mapped()) : std::nullopt;
    const auto amount =
        is_shared ? consumed_amount(json_member(item.value(), "requestPolicy"), request, total) : request;
    const auto used = taken.find(name);
    const auto left = total - (used == taken.end() ? 0 : std::min(total, used->second));
    if (!amount) return {.lacking = name};
    if (*amount != 0) fit.times = std::min(fit.times, left / *amount);
    if (fit.times == 0) return {.lacking = name};
  }
  if (!requested.empty()) return {.lacking = requested.begin()->first};
  return fit;
}

}  // namespace gpulet::dra

#include "metrics_api/demand_forecast.h"

#include <algorithm>

namespace gpulet::metrics_api {
namespace {

constexpr std::chrono::minutes kStep{15};
constexpr std::chrono::hours kDay{24};

std::int64_t unix_seconds(WallTime when) {
  return std::chrono::floor<std::chrono::seconds>(when.time_since_epoch()).count();
}

}  // namespace

void DemandForecasts::add_sample(const std::string& service, WallTime now, double percent) {
  Service& known = services_[service];
  known.sampled_at = now;
  // The model's unit is a percent of the most.
  known.model.learn_value(unix_seconds(now), std::clamp(percent / kMaxDemandGpus, 0.0, 100.0));
  if (services_.size() <= kMaxServices) return;
  services_.erase(
      std::ranges::min_element(services_, {}, [](const auto& one) { return one.second.sampled_at; }));
}

std::optional<double> DemandForecasts::greatest_demand(const std::string& service, WallTime now,
                                                       Duration horizon) const {
  const auto found = services_.find(service);
  if (found == services_.end()) return std::nullopt;
  const auto end = std::chrono::duration_cast<std::chrono::minutes>(std::min<Duration>(horizon, kDay));
  std::optional<double> most;
  const auto look = [&](std::chrono::minutes ahead) {
    const auto expected = found->second.model.known_at(unix_seconds(now + ahead));
    if (expected) most = std::max(most.value_or(0), *expected * kMaxDemandGpus);
  };
  for (std::chrono::minutes ahead{0}; ahead < end; ahead += kStep) look(ahead);
  look(end);
  return most;
}

void raise_to_sum(std::vector<PodValue>& values, double sum) {
  if (values.empty()) return;
  for (const auto& value : values) sum -= value.value;
  if (sum <= 0) return;
  const double more = sum / static_cast<double>(values.size());
  for (auto& value : values) value.value += more;
}

}  // namespace gpulet::metrics_api

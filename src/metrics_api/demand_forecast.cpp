#include "metrics_api/demand_forecast.h"

#include <algorithm>

#include "base/text.h"

namespace gpulet::metrics_api {
namespace {

constexpr std::chrono::minutes kStep{15};
constexpr std::chrono::hours kDay{24};

std::int64_t unix_seconds(WallTime when) {
  return std::chrono::floor<std::chrono::seconds>(when.time_since_epoch()).count();
}

// A ConfigMap's key has few letters.
std::string record_key(std::string_view service) { return "demand-" + std::to_string(fnv1a_64(service)); }

}  // namespace

void DemandForecasts::add_sample(const std::string& service, WallTime now, double percent) {
  Service& known = services_[service];
  known.sampled_at = now;
  // The model's unit is a percent of the most.
  known.model.learn_value(unix_seconds(now), std::clamp(percent / kMaxDemandGpus, 0.0, 100.0));
  forget_oldest();
}

void DemandForecasts::forget_oldest() {
  while (services_.size() > kMaxServices) {
    services_.erase(
        std::ranges::min_element(services_, {}, [](const auto& one) { return one.second.sampled_at; }));
  }
}

std::map<std::string, std::string> DemandForecasts::merge_record(
    const std::map<std::string, std::string>& data, WallTime now) {
  std::map<std::string, std::string> changes;
  std::map<std::string, std::uint32_t> recorded;  // whole hours by service
  for (const auto& [key, entry] : data) {
    // "service\nmodel"
    const auto end = entry.rfind('\n');
    const auto model = scheduler::SeasonalModel::decode(
        end == std::string::npos ? std::string_view() : std::string_view(entry).substr(end + 1));
    const std::string service = end == std::string::npos ? std::string() : entry.substr(0, end);
    if (!model || record_key(service) != key || unix_seconds(now - kRecordLifetime) > model->last_second()) {
      changes[key].clear();
      continue;
    }
    recorded[service] = model->whole_hours();
    const auto known = services_.find(service);
    if (known != services_.end() && known->second.model.whole_hours() >= model->whole_hours()) continue;
    services_[service] = {*model, WallTime(std::chrono::seconds(model->last_second()))};
  }
  forget_oldest();
  for (const auto& [service, known] : services_) {
    if (service.size() > kMaxRecordedName || known.model.whole_hours() <= recorded[service]) continue;
    if (data.size() + changes.size() >= kMaxServices && !data.contains(record_key(service))) continue;
    changes[record_key(service)] = service + "\n" + known.model.encode();
  }
  return changes;
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

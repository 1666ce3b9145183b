#include "partition/limit_means.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "partition/rules.h"

namespace gpulet::partition {
namespace {

using config::ExceededAction;

bool is_in(const inventory::Snapshot& snapshot, const Device& device) {
  return device.gpu < snapshot.gpus.size() &&
         (!device.mig || *device.mig < snapshot.gpus[device.gpu].mig_devices.size());
}

std::uint64_t unit_mib_of(const Device& device, const inventory::Gpu& gpu) {
  return device.mig ? gpu.mig_devices[*device.mig].memory.mebibytes() : gpu.memory.mebibytes();
}

// Empty: the audit ends it.
std::string why_not_audited(const Device& device, const inventory::DriverInfo& driver,
                            const config::Config& config) {
  const auto action = config.gpulet.fraction.on_exceeded;
  if (action == ExceededAction::kNone) return "gpulet.fraction.onExceeded is none: use is not measured";
  if (action == ExceededAction::kWarn)
    return "gpulet.fraction.onExceeded is warn: excess is reported, not ended";
  if (device.mig) return "MIG devices are not audited";
  return driver.has_host_pids ? "" : std::string(fraction::kNoHostPids);
}

}  // namespace

DriverLimitSupport driver_limit_support(const inventory::Gpu& gpu, const inventory::DriverInfo& driver,
                                        const config::Config& config) {
  if (gpu.mig_enabled) return {false, "the driver has no memory limits for GPUs in MIG mode"};
  if (!driver.has_memory_limits) {
    const auto& why = driver.why_no_memory_limits;
    return {false, why.empty() ? "whether the driver limits memory is not known" : why};
  }
  if (!config.gpulet.fraction.driver_limits) return {false, "gpulet.fraction.driverLimits is false"};
  return {true, {}};
}

std::uint64_t mps_process_mib(const Resource& resource, const Device& device, std::uint64_t unit_mib) {
  if (resource.sharing != config::SharingStrategy::kMps || !device.has_memory_limit) return 0;
  constexpr std::uint64_t kPercent = 100;
  if (device.share) return unit_mib * device.share->memory / kPercent;
  return unit_mib / std::max(resource.replicas, 1U);
}

fraction::LimitMeans limit_means_of(const Resource& resource, const Device& device,
                                    const inventory::Snapshot& snapshot, const config::Config& config) {
  const auto& gpu = snapshot.gpus[device.gpu];
  auto support = driver_limit_support(gpu, snapshot.driver, config);
  fraction::LimitMeans means{.has_driver_limit = support.has_limits,
                             .no_driver_limit = std::move(support.why_not),
                             .ends_excess = false,
                             .no_audit = why_not_audited(device, snapshot.driver, config)};
  means.ends_excess = means.no_audit.empty();
  means.mps_process_mib = mps_process_mib(resource, device, unit_mib_of(device, gpu));
  return means;
}

fraction::LimitMeans common_limit_means(std::span<const Resource* const> resources,
                                        const inventory::Snapshot& snapshot, const config::Config& config) {
  std::vector<fraction::LimitMeans> all;
  const auto& fraction = config.gpulet.fraction;
  bool is_wanted = fraction.on_exceeded != ExceededAction::kNone || fraction.driver_limits;
  for (const auto* resource : resources) {
    std::set<std::pair<std::size_t, std::optional<std::size_t>>> seen;  // shares of a device are alike
    for (const auto& device : resource->devices) {
      if (!device.replica || !is_in(snapshot, device) || !seen.emplace(device.gpu, device.mig).second)
        continue;
      all.push_back(limit_means_of(*resource, device, snapshot, config));
      is_wanted = is_wanted || all.back().has_driver_limit || all.back().mps_process_mib != 0;
    }
  }
  return is_wanted ? fraction::common_means(all) : fraction::LimitMeans{};
}

Resource resource_of_claims(const inventory::Snapshot& snapshot,
                            const std::function<bool(std::size_t gpu)>& is_shared) {
  Resource resource;
  for (std::size_t i = 0; i < snapshot.gpus.size(); ++i) {
    if (!is_shared(i)) continue;
    auto& device = resource.devices.emplace_back();
    device.id = DeviceId(snapshot.gpus[i].uuid.str());
    device.gpu = i;
    device.replica = 0;
  }
  return resource;
}

Resource planned_claim_shares(const inventory::Snapshot& snapshot, const config::Config& config,
                              const std::map<std::string, std::string>& labels) {
  const auto selection = select_rules(snapshot, config, labels);
  return resource_of_claims(snapshot, [&](std::size_t gpu) {
    return selection.side[gpu] == config::OfferSide::kClaims && selection.shares[gpu] &&
           !snapshot.gpus[gpu].mig_enabled;
  });
}

}  // namespace gpulet::partition

// What holds the memory limits of containers on a node's shared devices, by the config (grades:
// fraction/limit_grade.h). Pure.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "config/config.h"
#include "fraction/limit_grade.h"
#include "inventory/snapshot.h"
#include "partition/resources.h"

namespace gpulet::partition {

// Whether limits are set in the driver of a GPU. The only place that knows: everything else takes it from
// here.
struct DriverLimitSupport {
  bool has_limits = false;
  std::string why_not{};  // one line
};
DriverLimitSupport driver_limit_support(const inventory::Gpu& gpu, const inventory::DriverInfo& driver,
                                        const config::Config& config);

// The memory in MiB that MPS lets each process of a share use; 0: no limit, or no MPS. `unit_mib`: of the
// device that is shared.
std::uint64_t mps_process_mib(const Resource& resource, const Device& device, std::uint64_t unit_mib);

// Of one share. Precondition: device.gpu is in the snapshot.
fraction::LimitMeans limit_means_of(const Resource& resource, const Device& device,
                                    const inventory::Snapshot& snapshot, const config::Config& config);

// What the limits on all shared devices have in common (fraction::common_means()). Nothing, without reasons,
// where no device is shared, and where neither a setting nor MPS is for limits: a node that wants none
// publishes none. Devices whose GPU the snapshot lacks are ignored. Cost:
// O(devices).
fraction::LimitMeans common_limit_means(std::span<const Resource* const> resources,
                                        const inventory::Snapshot& snapshot, const config::Config& config);

// The GPUs for which `is_shared` is true, as claims share them: common_limit_means() takes it. No devices
// where there are none.
Resource resource_of_claims(const inventory::Snapshot& snapshot,
                            const std::function<bool(std::size_t gpu)>& is_shared);

// Those that rules let claims share (whole.consumableShares).
Resource planned_claim_shares(const inventory::Snapshot& snapshot, const config::Config& config,
                              const std::map<std::string, std::string>& labels);

}  // namespace gpulet::partition

// MIG devices on demand between the extender and a node's agent, both in the node's GpuNode:
//
//     spec.migOnDemand   the agent: how many devices of which resources could be free at once, if it cuts
//     idle
//                        space for them; absent where nothing is cut on demand
//     status.migDemand   the extender: for which Pods that wait how many should be free
//
// The agent trusts no demand: whoever may write the object can only have idle space cut within the node's
// limits (mig/on_demand.h). Pure.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "base/types.h"

namespace gpulet::scheduler {

inline constexpr std::size_t kMaxMigResources = 32;  // of an offer or a demand
inline constexpr std::size_t kMaxDemandPods = 64;    // of one request
inline constexpr unsigned kMaxDemandedDevices = 512;

struct MigOffer {
  struct Resource {
    ResourceName name;   // "nvidia.com/mig-3g.40gb"
    unsigned count = 0;  // free at once at most, with those that are free already
    std::string why;     // why no more: "GPU 0: 7 × 1g.10gb in use"; dropped when read too long
    friend bool operator==(const Resource&, const Resource&) = default;
  };
  std::vector<Resource> resources;  // by name
  const Resource* find(const ResourceName& name) const;
  friend bool operator==(const MigOffer&, const MigOffer&) = default;
};

struct MigDemand {
  struct Request {
    ResourceName resource;
    unsigned count = 0;             // that should be free at once
    std::vector<std::string> pods;  // that wait for them: "namespace/name"
    friend bool operator==(const Request&, const Request&) = default;
  };
  // Differs each time the extender confirms the demand, and is only compared: no clocks have to agree. One
  // that does not change any more is void (kMigDemandLifetime).
  std::string renewed;
  std::vector<Request> requests;  // the Pod that waits longest first
  friend bool operator==(const MigDemand&, const MigDemand&) = default;
};

// As values of the members migOnDemand and migDemand; what exceeds the limits is dropped.
nlohmann::json encode_mig_offer(const MigOffer& offer);
nlohmann::json encode_mig_demand(const MigDemand& demand);
// Empty if `value` is absent or malformed: no resource's name, one twice in a demand, a count, too long a
// list.
MigOffer decode_mig_offer(const nlohmann::json& value);
MigDemand decode_mig_demand(const nlohmann::json& value);

}  // namespace gpulet::scheduler

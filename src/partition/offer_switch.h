// Decides which side offers each GPU now, the device plugin or claims, and moves a GPU from one to the other
// while Pods run: it leaves the first side, and the other one offers it only when that is known to have
// arrived and nothing holds it there.
//
// Source: Kubernetes 1.36: where a Node has an allocatable resource, its Pods go to the device plugin, and
// else to claims; the scheduler and the kubelet choose a GPU independently, so both must never offer it.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/loop.h"
#include "base/types.h"
#include "config/config.h"
#include "inventory/snapshot.h"

namespace gpulet::partition {

enum class OfferStage {
  kDevicePlugin,         // the device plugin offers it
  kLeavingDevicePlugin,  // the device plugin lists it as unhealthy, so that its Pods keep it; not in a slice
  kEnteringClaims,       // offered by neither: what an earlier process offered is not known yet
  kClaims,               // in the slices
  kLeavingClaims,        // in no slice, and no resource; its claims are prepared
};

struct GpuOffer {
  OfferStage stage = OfferStage::kDevicePlugin;
  std::string reason = {};  // what it waits for: "moves to claims when Pod default/a ends"; empty if nothing
  // kLeavingClaims: no claim may be prepared, as a Pod of the device plugin of an earlier process may hold
  // it.
  bool may_be_plugins = false;
  friend bool operator==(const GpuOffer&, const GpuOffer&) = default;
};
// A GPU that is not in it is the device plugin's.
using GpuOffers = std::map<DeviceUuid, GpuOffer>;

GpuOffer offer_of(const GpuOffers& offers, const DeviceUuid& gpu);
// Whether the GPU is in no resource of the device plugin.
bool is_of_claims(const GpuOffers& offers, const DeviceUuid& gpu);

// The side that the rules and gpulet.dra.enabled want for each GPU that has a UUID. Pure.
std::map<DeviceUuid, config::OfferSide> wanted_sides(const inventory::Snapshot& snapshot,
                                                     const config::Config& config,
                                                     const std::map<std::string, std::string>& labels);

// What the device plugin's side still has, by one round of readings.
struct PluginReading {
  Time began{};                               // before the first of them
  std::map<DeviceUuid, std::string> holders;  // by GPU: "Pod default/a"
  std::set<DeviceUuid> allocatable;           // GPUs of which the kubelet lists an allocatable device
  // Why Pods may still be sent to the device plugin: "the Node shows nvidia.com/gpu 8, expected 0"; empty if
  // none are.
  std::string node_behind = {};
};

// What the claims' side still has.
struct ClaimReading {
  // GPUs in the node's ResourceSlices, as the API server has them; nullopt: unknown, or a write is pending.
  std::optional<std::set<DeviceUuid>> published;
  std::map<DeviceUuid, std::string> holders;  // by GPU: "claim default/a", without an admin's access
  std::set<DeviceUuid> seen{};                // GPUs in them as last seen, whether or not a write is pending
};

// An Allocate that was in progress when a device left the list is answered, and in the kubelet's List, within
// this: twice as long as a call waits for holders, and HeldDevices' limit.
inline constexpr Duration kPluginSettle = std::chrono::seconds(14);
// A claim that was allocated from the last slice is prepared within this, or refused.
inline constexpr Duration kClaimSettle = std::chrono::seconds(10);

// A plain state machine without a clock of its own. Loop's thread only.
class OfferSwitch {
 public:
  // Begins the moves that are wanted. `claims_served`: whether this process serves claims; without them, no
  // GPU leaves the device plugin. A new GPU of claims enters them first; a new one of the device plugin was
  // perhaps published by an earlier process.
  void set_wanted(const std::map<DeviceUuid, config::OfferSide>& wanted, bool claims_served, Time now);
  // Each returns whether a stage or a reason has changed.
  bool apply_reading(const PluginReading& reading);
  bool apply_reading(const ClaimReading& reading, Time now);

  const GpuOffers& offers() const { return offers_; }
  bool has_stage(OfferStage stage) const;
  // When the GPU entered the stage of its move; nullopt where it does not move.
  std::optional<Time> moving_since(const DeviceUuid& gpu) const;
  // Whether the rules want a GPU to be offered by claims.
  bool wants_claims() const;

 private:
  struct Move {
    config::OfferSide wanted = config::OfferSide::kDevicePlugin;
    Time began{};                       // of the stage
    std::optional<Time> unpublished{};  // kLeavingClaims: since then in no slice
    bool is_new = true;                 // an earlier process may have offered it
  };
  void enter_stage(const DeviceUuid& gpu, OfferStage stage, Time now);

  std::map<DeviceUuid, Move> moves_;
  GpuOffers offers_;
};

}  // namespace gpulet::partition

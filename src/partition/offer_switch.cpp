#include "partition/offer_switch.h"

#include <algorithm>

#include "partition/rules.h"

namespace gpulet::partition {
namespace {

using config::OfferSide;

constexpr const char* kUntilUnpublished =
    "is offered by the device plugin when the ResourceSlices are known to lack it";

// Why the GPU does not leave the device plugin yet; empty if it may.
std::string plugin_obstacle(const DeviceUuid& gpu, const PluginReading& reading) {
  const auto holder = reading.holders.find(gpu);
  if (holder != reading.holders.end()) return "is offered by claims when " + holder->second + " ends";
  if (reading.allocatable.contains(gpu)) return "is offered by claims when the kubelet has withdrawn it";
  if (!reading.node_behind.empty()) return "is offered by claims later: " + reading.node_behind;
  return "";
}

}  // namespace

GpuOffer offer_of(const GpuOffers& offers, const DeviceUuid& gpu) {
  const auto found = offers.find(gpu);
  return found == offers.end() ? GpuOffer{} : found->second;
}

bool is_of_claims(const GpuOffers& offers, const DeviceUuid& gpu) {
  const auto stage = offer_of(offers, gpu).stage;
  return stage != OfferStage::kDevicePlugin && stage != OfferStage::kLeavingDevicePlugin;
}

std::map<DeviceUuid, OfferSide> wanted_sides(const inventory::Snapshot& snapshot,
                                             const config::Config& config,
                                             const std::map<std::string, std::string>& labels) {
  const auto selection = select_rules(snapshot, config, labels);
  std::map<DeviceUuid, OfferSide> wanted;
  for (std::size_t i = 0; i < snapshot.gpus.size(); ++i) {
    const auto& uuid = snapshot.gpus[i].uuid;
    if (!uuid.empty()) wanted.emplace(uuid, selection.side[i]);
  }
  return wanted;
}

void OfferSwitch::enter_stage(const DeviceUuid& gpu, OfferStage stage, Time now) {
  auto& offer = offers_[gpu];
  auto& move = moves_[gpu];
  if (offer.stage != stage) move.began = now;
  move.unpublished.reset();
  std::string reason;
  if (stage == OfferStage::kLeavingDevicePlugin || stage == OfferStage::kEnteringClaims)
    reason = "is offered by claims when the device plugin's Pods are known";
  if (stage == OfferStage::kLeavingClaims) reason = kUntilUnpublished;
  if (stage == OfferStage::kDevicePlugin || stage == OfferStage::kClaims) move.is_new = false;
  offer = {stage, std::move(reason), stage == OfferStage::kLeavingClaims && move.is_new};
}

void OfferSwitch::set_wanted(const std::map<DeviceUuid, OfferSide>& wanted, bool claims_served, Time now) {
  for (const auto& [gpu, side] : wanted) {
    const auto known = offers_.find(gpu);
    moves_[gpu].wanted = side;
    if (known == offers_.end()) {
      enter_stage(gpu,
                  side == OfferSide::kClaims ? OfferStage::kEnteringClaims
                  : claims_served            ? OfferStage::kLeavingClaims
                                             : OfferStage::kDevicePlugin,
                  now);
      continue;
    }
    switch (known->second.stage) {
      case OfferStage::kDevicePlugin:
        if (side == OfferSide::kClaims && claims_served)
          enter_stage(gpu, OfferStage::kLeavingDevicePlugin, now);
        break;
      case OfferStage::kLeavingDevicePlugin:
        if (side == OfferSide::kDevicePlugin) {
          enter_stage(
              gpu,
              moves_[gpu].is_new && claims_served ? OfferStage::kLeavingClaims : OfferStage::kDevicePlugin,
              now);
        }
        break;
      case OfferStage::kEnteringClaims:
        if (side == OfferSide::kDevicePlugin)
          enter_stage(gpu, claims_served ? OfferStage::kLeavingClaims : OfferStage::kDevicePlugin, now);
        break;
      case OfferStage::kClaims:
        if (side == OfferSide::kDevicePlugin) enter_stage(gpu, OfferStage::kLeavingClaims, now);
        break;
      case OfferStage::kLeavingClaims:
        // A new one may be held by a Pod of the device plugin.
        if (side == OfferSide::kClaims)
          enter_stage(gpu, moves_[gpu].is_new ? OfferStage::kEnteringClaims : OfferStage::kClaims, now);
        break;
    }
  }
}

bool OfferSwitch::apply_reading(const PluginReading& reading) {
  const GpuOffers before = offers_;
  for (auto& [gpu, offer] : offers_) {
    const bool is_leaving = offer.stage == OfferStage::kLeavingDevicePlugin;
    if (!is_leaving && offer.stage != OfferStage::kEnteringClaims) continue;
    std::string reason = plugin_obstacle(gpu, reading);
    if (reason.empty() && is_leaving && reading.began < moves_[gpu].began + kPluginSettle)
      reason = "is offered by claims when no Pod can get it any more";
    if (reason.empty()) {
      enter_stage(gpu, OfferStage::kClaims, reading.began);
    } else {
      // Its Pods' containers start again only while the kubelet knows the resource.
      if (!is_leaving && reading.holders.contains(gpu))
        enter_stage(gpu, OfferStage::kLeavingDevicePlugin, reading.began);
      offer.reason = std::move(reason);
    }
  }
  return offers_ != before;
}

bool OfferSwitch::apply_reading(const ClaimReading& reading, Time now) {
  const GpuOffers before = offers_;
  for (auto& [gpu, offer] : offers_) {
    auto& move = moves_[gpu];
    const bool is_published = reading.published && reading.published->contains(gpu);
    // An earlier process published it, when it was free of the device plugin.
    if (offer.stage == OfferStage::kEnteringClaims && is_published)
      enter_stage(gpu, OfferStage::kClaims, now);
    if (offer.stage != OfferStage::kLeavingClaims) continue;
    const auto holder = reading.holders.find(gpu);
    if (is_published || reading.seen.contains(gpu))
      move.is_new = offer.may_be_plugins = false;  // an earlier process offered it by claims
    if (!reading.published || is_published) {
      move.unpublished.reset();
      offer.reason = kUntilUnpublished;
      continue;
    }
    if (!move.unpublished) move.unpublished = now;
    if (holder != reading.holders.end()) {
      offer.reason = "is offered by the device plugin when " + holder->second + " ends";
    } else if (!move.is_new && now < *move.unpublished + kClaimSettle) {
      offer.reason = "is offered by the device plugin when no claim can get it any more";
    } else {
      enter_stage(gpu, OfferStage::kDevicePlugin, now);
    }
  }
  return offers_ != before;
}

bool OfferSwitch::has_stage(OfferStage stage) const {
  return std::ranges::any_of(offers_, [&](const auto& entry) { return entry.second.stage == stage; });
}

std::optional<Time> OfferSwitch::moving_since(const DeviceUuid& gpu) const {
  const auto move = moves_.find(gpu);
  const auto stage = offer_of(offers_, gpu).stage;
  const bool moves = stage != OfferStage::kDevicePlugin && stage != OfferStage::kClaims;
  return moves && move != moves_.end() ? std::optional(move->second.began) : std::nullopt;
}

bool OfferSwitch::wants_claims() const {
  return std::ranges::any_of(moves_,
                             [](const auto& entry) { return entry.second.wanted == OfferSide::kClaims; });
}

}  // namespace gpulet::partition

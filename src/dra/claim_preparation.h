// Decides what preparing a claim means on this node: which devices it gets, or why not. Pure;
// dra/claim_controller.h does what is decided here.
//
// Source: the kubelet's DRA API v1 (Kubernetes 1.36); docs/dra.md.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "cdi/spec.h"
#include "dra/claim.h"
#include "dra/claim_record.h"
#include "dra/device_pool.h"
#include "dra/opaque_config.h"
#include "mps/plan.h"

namespace gpulet::dra {

struct PreparationInput {
  std::string pool_name;  // the node's name
  const DevicePool* pool = nullptr;
  const std::map<std::string, ClaimRecord>* records = nullptr;
  // UUIDs by device name as the ResourceSlices show them, from which the scheduler chose. Names that are not
  // in it are not compared.
  std::map<std::string, std::string> shown_uuids = {};
  // GPUs that claims may not get now, by UUID, with the reason: "is offered by the device plugin".
  std::map<DeviceUuid, std::string> withheld = {};
  FeatureGates gates = {};
};

// The record that the claim `uid` gets; the same claim gives the same record. Errors:
// - kUnavailable, which is worth waiting for: a device that is not there now, that the record of another
//   claim still holds (with the holder's name), of which the shares of other claims leave too little (with
//   their names), that is a share without a rule for it, or that is withheld from claims that are not
//   prepared yet;
// - kDeviceLost: a device that has fallen off the bus, with NVIDIA's key of its taint;
// - kFailedPrecondition: another claim of the same name, a claim without an allocation, a pool of another
//   node, and a device name that means another GPU than the one that was allocated;
// - kInvalidArgument and kUnsupported: those of its configs and of check_sharing(), and limits of devices
//   that the claim does not have.
Result<ClaimRecord> plan_preparation(const ResourceClaim& claim, const std::string& uid,
                                     const PreparationInput& input);

inline constexpr const char* kClaimCdiVendor = "k8s.gpu.nvidia.com";
inline constexpr const char* kClaimCdiKind = "k8s.gpu.nvidia.com/claim";

// "k8s.gpu.nvidia.com/claim=<uid>-gpu-0": NVIDIA's name, with "-<share id>" for a share.
std::string claim_cdi_id(const ClaimRecord& record, const RecordedDevice& device);
// "k8s.gpu.nvidia.com-claim_<uid>.json": NVIDIA's file name.
std::string claim_spec_file_name(const std::string& uid);

// The MPS control daemons of a claim: one for the GPUs of each config, one for each MIG device.
std::vector<mps::DaemonSpec> claim_daemons(const ClaimRecord& record);

// The CDI document of a claim: each of its devices with what `base` has for its UUID, and what every
// container needs of the driver. NVIDIA_VISIBLE_DEVICES is void, so that the legacy runtime adds no GPU of
// its own accord. A device of an MPS control daemon brings the daemon's pipes and the shared memory of the
// MPS root `mps_root`, a path of the host, to NVIDIA's places. `base`: the node's document with devices by
// UUID. Errors: kUnavailable for a device that `base` does not have.
Result<cdi::Spec> make_claim_spec(const ClaimRecord& record, const cdi::Spec& base,
                                  const std::string& mps_root);

}  // namespace gpulet::dra

// What each XID means, in a few words, and what NVIDIA says to do about it. Data, no judgement.
// Source: NVIDIA's "Analyzing Xid Errors with the Xid Catalog" (Ampere and later).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gpulet::health {

// The catalogue's immediate action.
enum class XidAction {
  kNone,        // nothing to do: informative, or not the GPU's fault
  kRestartApp,  // the application failed; the GPU is fit
  kResetGpu,
  kRestartVm,
  kRestartNode,  // bare metal: reboot, power cycle
  kDecode,       // depends on details of the event, or on XIDs beside it
  kUpdateSoftware,
  kContactSupport,
};
std::string_view name(XidAction action);  // "reset-gpu"

struct Xid {
  std::uint64_t code;
  std::string_view mnemonic;     // as NVIDIA's catalogue has it: "GPU_HAS_FALLEN_OFF_THE_BUS"
  std::string_view description;  // "GPU has fallen off the bus"
  XidAction action;
};

// By code, none twice.
std::span<const Xid> xids();
// Null for a code that is not in the catalogue.
const Xid* find_xid(std::uint64_t code);

// "XID 79: GPU has fallen off the bus"; "XID 999: not in NVIDIA's catalogue".
std::string describe_xid(std::uint64_t code);

}  // namespace gpulet::health

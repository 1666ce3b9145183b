#include "health/remedies.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "health/xid_catalogue.h"

namespace gpulet::health {
namespace {

// NVIDIA's catalogue: timeouts of the GPU's system processor, which a reset alone often does not end.
constexpr std::uint64_t kGspTimeout = 119, kGspError = 120;
constexpr std::uint64_t kPowerCable = 54;

constexpr std::string_view kResetIt = "End what runs on it, then reset it: nvidia-smi --gpu-reset -i {gpu}";

struct Remedy {
  FaultClass fault_class;
  std::string_view text;  // {gpu} is the GPU as nvidia-smi takes it, {device} as gpulet does
};
using enum FaultClass;
constexpr Remedy kRemedies[] = {
    {kXidReset, kResetIt},
    {kXidReboot, "Reboot the node; if it is lost again, check its power, riser and seating"},
    {kXidVirtualMachine, "Restart the virtual machine"},
    {kXidEcc, kResetIt},
    {kXidNvLink,
     "Reset all GPUs of its NVLink fabric together (nvidia-smi --gpu-reset) and restart the fabric manager; "
     "a "
     "link that fails again is hardware"},
    {kXidSupport,
     "Reset it when convenient: nvidia-smi --gpu-reset -i {gpu}; if it returns, ask NVIDIA's support"},
    {kXidUnknown, "Look the XID up in NVIDIA's catalogue; without a remedy there, watch whether it returns"},
    {kXidWatched, "DP_ENABLE_HEALTHCHECKS names this XID: look for the application that causes it"},
    {kApplicationRepeat,
     "Run a diagnosis once nothing runs on it (dcgmi diag -r 3 -i {gpu}); if it is clean, the applications "
     "share "
     "a bug"},
    {kRecoveryAction, "Do what the driver asks for; for a reset: nvidia-smi --gpu-reset -i {gpu}"},
    {kRecoveryDrain,
     "Let what runs on it finish or move it away, then reset it: nvidia-smi --gpu-reset -i {gpu}"},
    {kResetRequired, kResetIt},
    {kLost, "Look for it (lspci, the kernel's log); if it stays away, reboot the node and check its seating"},
    {kSilent, "Look into the kernel's log: a driver call hangs; if that stays, reboot the node"},
    {kDriverAway, "See that the driver is loaded: nvidia-smi, or the driver's container"},
    {kRowRemapPending, "Reset it when convenient: nvidia-smi --gpu-reset -i {gpu}"},
    {kRowRemapFailed, "Have it replaced: its memory can be repaired no more"},
    {kRetiredPages,
     "Reset it when convenient: nvidia-smi --gpu-reset -i {gpu}; with more than 60 retired pages, have it "
     "replaced"},
    {kEccGrowth, "Watch it: if new errors go on coming, reset it and have it diagnosed (dcgmi diag)"},
    {kSramThreshold, "Have it diagnosed and replaced: its SRAM errors are beyond NVIDIA's limit"},
    {kCorrectableStorm, "Watch it: if storms return, have it diagnosed (dcgmi diag)"},
    {kNvLinkDown,
     "Look at the link (nvidia-smi nvlink -s -i {gpu}) and the fabric manager; a link that stays down is "
     "hardware"},
    {kNvLinkErrors, "Look at its links' errors: nvidia-smi nvlink -e -i {gpu}; reseat the board or bridge"},
    {kPcieReplays, "Reseat the card and look at its riser: its PCIe link is noisy"},
    {kPcieWidth, "Reseat the card and look at its riser: PCIe lanes are missing"},
    {kThermal, "Look at its cooling: fans, airflow, the room"},
    {kPower, "Look at its power limit (nvidia-smi -q -d POWER -i {gpu}) and its supply"},
    {kFabric, "Restart the fabric manager; if it stays out, reset all GPUs of the fabric together"},
    {kFabricDegraded, "Look at the fabric manager's log and at the switches' links"},
    {kInforom, "Ask NVIDIA's support: a corrupted InfoROM must be written anew, or the card replaced"},
    {kSwitch,
     "Reset all GPUs of the switch together, or reboot the node; a fatal error that returns is hardware"},
    {kProbeFailed, kResetIt},
    {kCordoned, "gpulet uncordon {device}, when what it was cordoned for is done"},
};
static_assert(std::size(kRemedies) == kFaultClasses);
static_assert(std::ranges::is_sorted(kRemedies, {}, &Remedy::fault_class));

std::string filled(std::string_view text, const DeviceView& device) {
  const auto gpu = device.gpu_index ? std::to_string(*device.gpu_index) : device.scope.gpu.str();
  std::string own = gpu;
  if (!device.scope.whole()) own = device.uuid.empty() ? gpu : device.uuid.str();
  std::string out;
  while (!text.empty()) {
    if (text.starts_with("{gpu}")) {
      out += gpu;
      text.remove_prefix(5);
    } else if (text.starts_with("{device}")) {
      out += own;
      text.remove_prefix(8);
    } else {
      out += text.front();
      text.remove_prefix(1);
    }
  }
  return out;
}

std::string_view text_for(const Fault& fault) {
  const bool xid = fault.fault_class == kXidReset || fault.fault_class == kXidSupport;
  if (xid && (fault.code == kGspTimeout || fault.code == kGspError)) {
    return "End what runs on it, then reset it: nvidia-smi --gpu-reset -i {gpu}; if it returns, power-cycle "
           "the "
           "node and look for a newer driver";
  }
  if (xid && fault.code == kPowerCable) return "Check its power cables";
  if (fault.fault_class == kXidSupport) {
    const auto* known = find_xid(fault.code);
    if (known != nullptr && known->action == XidAction::kUpdateSoftware)
      return "Update its driver or firmware, then reset it: nvidia-smi --gpu-reset -i {gpu}";
  }
  return kRemedies[static_cast<std::size_t>(fault.fault_class)].text;
}

}  // namespace

std::string remedy(const Fault& fault, const DeviceView& device) { return filled(text_for(fault), device); }

std::string what_next(const DeviceView& device) {
  const auto& standing = device.standing;
  if (standing.state == State::kUnmonitored)
    return "See why nothing can be asked about it: what is absent is listed with it";
  if (standing.faults.empty()) return {};
  if (standing.state == State::kRecovering) return "Nothing: it is offered again once its checks have passed";
  return remedy(standing.faults.front(), device);
}

}  // namespace gpulet::health

#include "health/evidence/evidence.h"

namespace gpulet::health {
namespace {

struct SourceOf {
  Source operator()(const XidReport& report) const { return report.source; }
  Source operator()(const SourceNotice& notice) const { return notice.source; }
  Source operator()(const DriverNotice&) const { return Source::kDriverEvents; }
  Source operator()(const FallenOff&) const { return Source::kKernelLog; }
  Source operator()(const SwitchFault&) const { return Source::kKernelLog; }
  Source operator()(const HandleReading&) const { return Source::kHandle; }
  Source operator()(const RecoveryActionReading&) const { return Source::kRecoveryAction; }
  Source operator()(const RowRemapReading&) const { return Source::kRowRemap; }
  Source operator()(const RetiredPagesReading&) const { return Source::kRetiredPages; }
  Source operator()(const EccReading&) const { return Source::kEcc; }
  Source operator()(const NvLinkReading&) const { return Source::kNvLink; }
  Source operator()(const PcieReading&) const { return Source::kPcie; }
  Source operator()(const ViolationReading&) const { return Source::kViolations; }
  Source operator()(const FabricReading&) const { return Source::kFabric; }
  Source operator()(const InforomReading&) const { return Source::kInforom; }
  Source operator()(const ProcessReading&) const { return Source::kProcesses; }
  Source operator()(const EnergyReading&) const { return Source::kEnergy; }
  Source operator()(const ProbeReading&) const { return Source::kProbe; }
  Source operator()(const ResetDone&) const { return Source::kOperator; }
  Source operator()(const OperatorCommand&) const { return Source::kOperator; }
};

}  // namespace

std::string_view enum_name(Source source) {
  // In the order of the enum.
  static constexpr std::string_view kNames[kSourceCount] = {
      "driver-events", "kernel-log", "handle",      "recovery-action", "row-remap", "retired-pages",
      "ecc",           "nvlink",     "pcie",        "violations",      "fabric",    "inforom",
      "processes",     "energy",     "gpu-program", "operator"};
  return kNames[static_cast<std::size_t>(source)];
}

std::string_view enum_name(EccLocation location) {
  static constexpr std::string_view kNames[kEccLocationCount] = {
      "dram", "l1-cache", "l2-cache", "registers", "texture", "shared-memory", "cbu", "sram"};
  return kNames[static_cast<std::size_t>(location)];
}

Source source_of(const EvidenceBody& body) { return std::visit(SourceOf{}, body); }

std::string_view recovery_action_text(unsigned action) {
  switch (action) {
    case 0:
      return "nothing";
    case 1:
      return "reset the GPU";
    case 2:
      return "reboot the node";
    case 3:
      return "drain peer-to-peer traffic";
    case 4:
      return "drain and reset the GPU";
    case 5:
      return "recover the IMEX domain";
    case 6:
      return "reset the GPU's bus";
    case 7:
      return "reboot the system";
    default:
      return "an action that is not known";
  }
}

Reachability reachability_of(const Error& error) {
  switch (error.code()) {
    case Code::kDeviceLost:
      return Reachability::kLost;
    case Code::kResetRequired:
      return Reachability::kResetRequired;
    case Code::kUnavailable:
      return Reachability::kDriverAway;
    default:
      return Reachability::kSilent;
  }
}

}  // namespace gpulet::health

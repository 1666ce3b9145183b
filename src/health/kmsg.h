// Lines of the kernel's log that tell of GPUs: XIDs in their old and new forms, NVSwitches' SXids, GPUs that
// have fallen off the bus. Events of NVML miss the last two, and say less of the first: no process, no link.
// Source: Linux Documentation/ABI/testing/dev-kmsg; NVIDIA's open kernel modules, kernel_rc.c; lines in bug
// reports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "health/evidence.h"
#include "inventory/snapshot.h"

namespace gpulet::health {

// "NVRM: Xid (PCI:0000:3b:00 GPU-I:02): 31, pid=1234, name=python3, Ch 00000008, …"
struct XidLine {
  inventory::PciAddress gpu;
  std::uint32_t gpu_instance = kNoInstance, compute_instance = kNoInstance;
  std::uint64_t code = 0;
  std::optional<std::uint32_t> pid;
  std::string process;  // its name, as the kernel has it; empty when it says none
  std::string text;     // the rest
  std::optional<NvLink5Detail> nvlink5;
  std::optional<unsigned> recovery_action;
};
// "nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"
struct SxidLine {
  inventory::PciAddress nvswitch;
  std::uint64_t code = 0;
  bool fatal = false;
  std::optional<unsigned> link;
};
// "NVRM: GPU at PCI:0000:3b:00: …" or "NVRM: GPU 0000:5a:00.0: GPU has fallen off the bus."
struct FallenOffLine {
  inventory::PciAddress gpu;
};
using FaultLine = std::variant<XidLine, SxidLine, FallenOffLine>;

struct KernelRecord {
  std::uint64_t sequence = 0;
  std::uint64_t microseconds = 0;  // since boot
  std::string text;                // its first line, with \xNN read
};

// One record as a read of /dev/kmsg gives it: "4,1234,56789,-;NVRM: Xid …\n SUBSYSTEM=pci\n". nullopt for
// anything else.
std::optional<KernelRecord> parse_record(std::string_view record);
// What a line tells; nullopt when it tells of no fault. At most kMaxLine of it is looked at.
std::optional<FaultLine> parse_line(std::string_view line);
inline constexpr std::size_t kMaxLine = 4096;

// What the line is evidence of, for the GPUs of the snapshot: none for a device that is not in it. A switch's
// line is evidence for each GPU that has a link to that switch.
std::vector<Evidence> evidence_of(const FaultLine& line, const inventory::Snapshot& snapshot, Time at);

}  // namespace gpulet::health

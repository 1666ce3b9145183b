// Parses GPU faults in lines of the kernel log: XIDs in their old and new forms, SXids of NVSwitches, GPUs
// that have fallen off the bus. NVML events lack the last two, and the process and link of an XID. Source:
// Linux Documentation/ABI/testing/dev-kmsg; NVIDIA's open kernel modules, kernel_rc.c; lines in bug reports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "health/evidence/evidence.h"
#include "inventory/snapshot.h"

namespace gpulet::health {

// "NVRM: Xid (PCI:0000:3b:00 GPU-I:02): 31, pid=1234, name=python3, Ch 00000008, …"
struct XidLine {
  inventory::PciAddress gpu;
  std::uint32_t gpu_instance = kNoInstance, compute_instance = kNoInstance;
  std::uint64_t code = 0;
  std::optional<std::uint32_t> pid;
  std::string process;  // name in the kernel's form; empty if not in the line
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

struct KmsgRecord {
  std::uint64_t sequence = 0;
  std::uint64_t microseconds = 0;  // since boot
  std::string text;                // the first line, with \xNN unescaped
};

// One record as read from /dev/kmsg: "4,1234,56789,-;NVRM: Xid …\n SUBSYSTEM=pci\n". nullopt for anything
// else.
std::optional<KmsgRecord> parse_kmsg_record(std::string_view record);
// nullopt for a line without a fault. Only the first kMaxKmsgLine bytes are parsed.
std::optional<FaultLine> parse_kmsg_line(std::string_view line);
inline constexpr std::size_t kMaxKmsgLine = 4096;

// Parses consecutive lines. Some drivers report a GPU that has fallen off the bus in three: "NVRM: The NVIDIA
// GPU 0000:5a:00.0", "NVRM: (PCI ID: 10de:2330) installed in this system has", "NVRM: fallen off the bus and
// is not responding to commands."
class KmsgLineParser {
 public:
  std::optional<FaultLine> parse_line(std::string_view line);

 private:
  std::optional<inventory::PciAddress> announced_;
  unsigned lines_left_ = 0;  // in which the announced GPU's message may end
};

// The evidence in a line for the GPUs of the snapshot; none for other devices. A switch's line is evidence
// for each GPU with a link to that switch.
std::vector<Evidence> kmsg_line_evidence(const FaultLine& line, const inventory::Snapshot& snapshot, Time at);

}  // namespace gpulet::health

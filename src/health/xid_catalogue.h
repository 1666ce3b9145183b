// What each XID means, in a few words, and what NVIDIA says to do about it. Data, no judgement: the tables
// are made by tools/health/catalogue from xids.tsv and nvlink5.tsv. Source: NVIDIA's "Analyzing Xid Errors
// with the Xid Catalog" (Ampere and later).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
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

// What an XID is about, and so what gpulet does: see health/rules.h.
enum class XidClass {
  kApplication,
  kIgnore,
  kInformation,
  kGpuReset,
  kReboot,
  kVirtualMachine,
  kNvLink,   // 74
  kNvLink5,  // 144 to 150: decoded by nvlink5_outcome
  kEcc,      // 48
  kSoftware,
  kSupport,
  kCheckUvm,      // 159: a reset where unified memory is in use, which only the driver knows
  kUnclassified,  // listed without an action
};
std::string_view name(XidClass xid_class);  // "gpu-reset", as in xids.tsv

// The GPUs that the catalogue tells apart.
enum class Architecture { kAmpere, kHopper, kBlackwell, kGraceBlackwell };
inline constexpr Architecture kArchitectures[] = {Architecture::kAmpere, Architecture::kHopper,
                                                  Architecture::kBlackwell, Architecture::kGraceBlackwell};
// From a Snapshot's architecture ("hopper") and model; nullopt for those that the catalogue does not have.
std::optional<Architecture> architecture_of(std::string_view family, std::string_view model);

inline constexpr unsigned kNeverLinked = 0xFFFF;

struct Xid {
  std::uint64_t code;
  std::string_view mnemonic;     // as NVIDIA's catalogue has it: "GPU_HAS_FALLEN_OFF_THE_BUS"
  std::string_view description;  // "GPU has fallen off the bus"
  XidAction action;
  XidClass xid_class;
  std::uint8_t listed_bits;  // bit n: listed for Architecture n
  unsigned linked_branch;    // of the driver, from which field 230 speaks for it; kNeverLinked
  bool listed(Architecture architecture) const {
    return ((listed_bits >> static_cast<unsigned>(architecture)) & 1u) != 0;
  }
  // Whether field 230 of a driver of this branch (570; 0 for an unknown one) speaks for this XID.
  bool linked(unsigned driver_branch) const {
    return linked_branch != kNeverLinked && (driver_branch == 0 || driver_branch >= linked_branch);
  }
};

// By code, none twice.
std::span<const Xid> xids();
// Null for a code that is not in the catalogue.
const Xid* find_xid(std::uint64_t code);

// "XID 79: GPU has fallen off the bus"; "XID 999: not in NVIDIA's catalogue".
std::string describe_xid(std::uint64_t code);

// What the kernel's line of an NVLink 5 XID says beyond its code: "RLW_REMAP Nonfatal XC0 i0 Link 04 (0x… 0x…
// …)".
struct NvLink5Detail {
  std::string unit;  // "RLW_REMAP"
  bool fatal = false;
  unsigned link = 0;
  std::uint32_t intr_info = 0;
  std::uint32_t error_status = 0;
  friend bool operator==(const NvLink5Detail&, const NvLink5Detail&) = default;
};
enum class NvLink5Outcome {
  kIgnore,
  kFollowDriver,  // what field 230 says; where it says nothing, the application is to be restarted
  kReset,
};
// A short list of numbers in a table.
struct NumberList {
  std::array<std::uint32_t, 4> numbers{};
  unsigned count = 0;
  constexpr NumberList() = default;
  template <class... Number>
  constexpr NumberList(Number... values)
      : numbers{static_cast<std::uint32_t>(values)...}, count(sizeof...(values)) {}
  bool contains(std::uint32_t number) const {
    for (unsigned i = 0; i < count; ++i) {
      if (numbers[i] == number) return true;
    }
    return false;
  }
};
struct NvLink5Row {
  std::uint64_t code;
  std::string_view unit;      // the line's unit begins with it; empty: any
  NumberList subcodes;        // intrInfo's bits 25..20 are one of these; none: any
  std::uint32_t status_bits;  // the error status has one of these; 0: see the next
  NumberList status_values;   // the error status is one of these; none: any
  bool second_action;         // only when intrInfo's bit for the second action is set
  NvLink5Outcome outcome;
};
std::span<const NvLink5Row> nvlink5_rows();
// The first row that fits; kIgnore when none does. `driver_branch`: 570; 0 for an unknown one, taken for a
// new one.
NvLink5Outcome nvlink5_outcome(std::uint64_t code, const NvLink5Detail& detail, unsigned driver_branch);

// 570 of "570.124.06"; 0 when it is no version.
unsigned driver_branch(std::string_view version);

}  // namespace gpulet::health

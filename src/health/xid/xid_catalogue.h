// What each XID means, what NVIDIA recommends, and which XIDs count. Data, no judgement: classify_xid
// (policy/health_policy.h) maps an XID to a fault. tools/health/catalogue generates the tables in
// xid_table.cpp from xids.tsv and nvlink5.tsv: to add an XID, add a row there. Source: NVIDIA's "Analyzing
// Xid Errors with the Xid Catalog" (Ampere and later).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpulet::health {

// The catalogue's immediate action.
enum class XidAction {
  kNone,        // informative, or not the GPU's fault
  kRestartApp,  // the application failed; the GPU is healthy
  kResetGpu,
  kRestartVm,
  kRestartNode,  // bare metal: reboot, power cycle
  kDecode,       // depends on details of the event, or on XIDs beside it
  kUpdateSoftware,
  kContactSupport,
};
std::string_view enum_name(XidAction action);  // "reset-gpu"

// How gpulet handles an XID: see classify_xid.
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
  kCheckUvm,      // 159: a reset if unified memory is in use, which only the driver knows
  kUnclassified,  // listed without an action
};
std::string_view enum_name(XidClass xid_class);  // "gpu-reset", as in xids.tsv

// The GPU families of the catalogue.
enum class Architecture { kAmpere, kHopper, kBlackwell, kGraceBlackwell };
inline constexpr Architecture kArchitectures[] = {Architecture::kAmpere, Architecture::kHopper,
                                                  Architecture::kBlackwell, Architecture::kGraceBlackwell};
// From a Snapshot's architecture ("hopper") and model; nullopt for families that are not in the catalogue.
std::optional<Architecture> architecture_of(std::string_view family, std::string_view model);

inline constexpr unsigned kNeverLinked = 0xFFFF;

struct Xid {
  std::uint64_t code;
  std::string_view mnemonic;     // NVIDIA's: "GPU_HAS_FALLEN_OFF_THE_BUS"
  std::string_view description;  // "GPU has fallen off the bus"
  XidAction action;
  XidClass xid_class;
  std::uint8_t listed_bits;  // bit n: listed for Architecture n
  unsigned linked_branch;    // the driver branch from which field 230 covers it, or kNeverLinked
  bool is_listed(Architecture architecture) const {
    return ((listed_bits >> static_cast<unsigned>(architecture)) & 1u) != 0;
  }
  // Whether field 230 of a driver of this branch (570; 0 if unknown) covers this XID.
  bool is_linked(unsigned driver_branch) const {
    return linked_branch != kNeverLinked && (driver_branch == 0 || driver_branch >= linked_branch);
  }
};

// By code, without duplicates.
std::span<const Xid> xids();
// Null for a code that is not in the catalogue.
const Xid* find_xid(std::uint64_t code);

// "XID 79: GPU has fallen off the bus"; "XID 999: not in NVIDIA's catalogue".
std::string describe_xid(std::uint64_t code);

// The details in the kernel log line of an NVLink 5 XID: "RLW_REMAP Nonfatal XC0 i0 Link 04 (0x… 0x… …)".
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
  kFollowDriver,  // as field 230 says; if it says nothing, the application must be restarted
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
  bool has_number(std::uint32_t number) const {
    for (unsigned i = 0; i < count; ++i) {
      if (numbers[i] == number) return true;
    }
    return false;
  }
};
struct NvLink5Row {
  std::uint64_t code;
  std::string_view unit;      // prefix of the line's unit; empty: any
  NumberList subcodes;        // accepted values of intrInfo bits 25..20; empty: any
  std::uint32_t status_bits;  // the error status has one of these bits; 0: status_values decides
  NumberList status_values;   // accepted error statuses; empty: any
  bool second_action;         // requires intrInfo's bit for the second action
  NvLink5Outcome outcome;
};
std::span<const NvLink5Row> nvlink5_rows();
// The outcome of the first matching row; kIgnore without one. `driver_branch`: 570; 0 (unknown) counts as
// new.
NvLink5Outcome nvlink5_outcome(std::uint64_t code, const NvLink5Detail& detail, unsigned driver_branch);

// 570 of "570.124.06"; 0 if it is not a version.
unsigned driver_branch(std::string_view version);

// Which XIDs count, by DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS: comma-separated tokens, trimmed,
// any case, each an XID's number, "xids" or "all"; enabled wins over disabled. Source: NVIDIA's plugin,
// comments of internal/rm/health.go.
class XidFilter {
 public:
  enum class Choice {
    kCatalogue,  // not configured
    kIgnored,
    kWatched,  // withdraws a device, also where the catalogue does not
  };

  XidFilter(const std::string& disable, const std::string& enable);

  Choice choice_for(std::uint64_t xid) const;
  // "all" is disabled and nothing enabled.
  bool is_all_disabled() const { return everything_disabled_ && !all_enabled_ && enabled_.empty(); }

  // One line for each token that is neither an XID nor "all" or "xids".
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  bool everything_disabled_ = false;
  bool all_disabled_ = false;
  bool all_enabled_ = false;
  std::set<std::uint64_t> disabled_;
  std::set<std::uint64_t> enabled_;
  std::vector<std::string> warnings_;
};

}  // namespace gpulet::health

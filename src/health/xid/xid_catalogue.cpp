#include "health/xid/xid_catalogue.h"

#include <algorithm>

#include "base/text.h"

namespace gpulet::health {
namespace {

// The bits of intrInfo that select the second of an error's two actions: moved in R575.
constexpr std::uint32_t kSecondActionBefore575 = 1u << 10;
constexpr std::uint32_t kSecondAction = 1u << 7;
constexpr unsigned kNewIntrInfo = 575;

bool matches_row(const NvLink5Row& row, std::uint64_t code, const NvLink5Detail& detail, unsigned branch) {
  if (row.code != code || !text::starts_with(detail.unit, row.unit)) return false;
  if (row.subcodes.count != 0 && !row.subcodes.has_number((detail.intr_info >> 20) & 0x3F)) return false;
  if (row.status_bits != 0 && (detail.error_status & row.status_bits) == 0) return false;
  if (row.status_values.count != 0 && !row.status_values.has_number(detail.error_status)) return false;
  const auto second = branch != 0 && branch < kNewIntrInfo ? kSecondActionBefore575 : kSecondAction;
  return !row.second_action || (detail.intr_info & second) != 0;
}

}  // namespace

std::string_view enum_name(XidAction action) {
  using enum XidAction;
  switch (action) {
    case kNone:
      return "none";
    case kRestartApp:
      return "restart-app";
    case kResetGpu:
      return "reset-gpu";
    case kRestartVm:
      return "restart-vm";
    case kRestartNode:
      return "restart-node";
    case kDecode:
      return "decode";
    case kUpdateSoftware:
      return "update-software";
    case kContactSupport:
      return "contact-support";
  }
  return "unknown";
}

std::string_view enum_name(XidClass xid_class) {
  // In the order of the enum.
  static constexpr std::string_view kNames[] = {"app",     "ignore",    "info",        "gpu-reset", "reboot",
                                                "vm",      "nvlink",    "nvlink5",     "ecc-wf",    "fw",
                                                "support", "check-uvm", "unclassified"};
  return kNames[static_cast<std::size_t>(xid_class)];
}

std::optional<Architecture> architecture_of(std::string_view family, std::string_view model) {
  if (family == "ampere") return Architecture::kAmpere;
  if (family == "hopper") return Architecture::kHopper;
  if (family != "blackwell") return std::nullopt;
  return model.find(" GB") != std::string_view::npos ? Architecture::kGraceBlackwell
                                                     : Architecture::kBlackwell;
}

const Xid* find_xid(std::uint64_t code) {
  const auto all = xids();
  const auto found = std::ranges::lower_bound(all, code, {}, &Xid::code);
  return found != all.end() && found->code == code ? &*found : nullptr;
}

std::string describe_xid(std::uint64_t code) {
  const auto* xid = find_xid(code);
  return "XID " + std::to_string(code) + ": " +
         (xid ? std::string(xid->description) : "not in NVIDIA's catalogue");
}

NvLink5Outcome nvlink5_outcome(std::uint64_t code, const NvLink5Detail& detail, unsigned driver_branch) {
  for (const auto& row : nvlink5_rows()) {
    if (matches_row(row, code, detail, driver_branch)) return row.outcome;
  }
  return NvLink5Outcome::kIgnore;
}

unsigned driver_branch(std::string_view version) {
  const auto branch = text::parse_unsigned(version.substr(0, version.find('.')));
  return branch && *branch < kNeverLinked ? static_cast<unsigned>(*branch) : 0;
}

namespace {

struct Tokens {
  bool everything = false;  // "all"
  bool xids_all = false;    // "xids" or "all"
  std::set<std::uint64_t> xids;
};

Tokens parse_tokens(const std::string& list, const char* variable, std::vector<std::string>& warnings) {
  Tokens tokens;
  for (const auto& part : text::split(list, ',')) {
    const std::string token = text::lower(text::trim(part));
    if (token.empty()) continue;
    if (token == "all" || token == "xids") {
      tokens.xids_all = true;
      tokens.everything = tokens.everything || token == "all";
    } else if (const auto xid = text::parse_unsigned(token)) {
      tokens.xids.insert(*xid);
    } else {
      warnings.push_back(std::string(variable) + ": '" + token.substr(0, 64) +
                         "' is ignored: expected an XID number, all or xids");
    }
  }
  return tokens;
}

}  // namespace

XidFilter::XidFilter(const std::string& disable, const std::string& enable) {
  auto disabled = parse_tokens(disable, "DP_DISABLE_HEALTHCHECKS", warnings_);
  auto enabled = parse_tokens(enable, "DP_ENABLE_HEALTHCHECKS", warnings_);
  everything_disabled_ = disabled.everything;
  all_disabled_ = disabled.xids_all;
  all_enabled_ = enabled.xids_all;
  disabled_ = std::move(disabled.xids);
  enabled_ = std::move(enabled.xids);
}

XidFilter::Choice XidFilter::choice_for(std::uint64_t xid) const {
  if (all_enabled_ || enabled_.contains(xid)) return Choice::kWatched;
  return all_disabled_ || disabled_.contains(xid) ? Choice::kIgnored : Choice::kCatalogue;
}

}  // namespace gpulet::health

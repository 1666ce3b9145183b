#include "health/xid_filter.h"

#include <algorithm>

#include "base/text.h"

namespace gpulet::health {
namespace {

// Applications' faults, that say nothing of the GPU. Source: NVIDIA's plugin, internal/rm/health.go.
constexpr std::uint64_t kIgnoredByDefault[] = {13, 31, 43, 45, 68, 109};

struct Tokens {
  bool everything = false;  // "all"
  bool xids_all = false;    // "xids" or "all"
  std::set<std::uint64_t> xids;
};

Tokens parse(const std::string& list, const char* variable, std::vector<std::string>& warnings) {
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
                         "' is neither an XID's number nor all or xids: it is passed over");
    }
  }
  return tokens;
}

}  // namespace

XidFilter::XidFilter(const std::string& disable, const std::string& enable) {
  auto disabled = parse(disable, "DP_DISABLE_HEALTHCHECKS", warnings_);
  auto enabled = parse(enable, "DP_ENABLE_HEALTHCHECKS", warnings_);
  everything_disabled_ = disabled.everything;
  all_disabled_ = disabled.xids_all;
  all_enabled_ = enabled.xids_all;
  disabled_ = std::move(disabled.xids);
  enabled_ = std::move(enabled.xids);
  off_ = all_disabled_ && !all_enabled_ && enabled_.empty();
}

XidFilter::Choice XidFilter::choice(std::uint64_t xid) const {
  if (all_enabled_ || enabled_.contains(xid)) return Choice::kWatched;
  return all_disabled_ || disabled_.contains(xid) ? Choice::kIgnored : Choice::kCatalogue;
}

bool XidFilter::ignored(std::uint64_t xid) const {
  switch (choice(xid)) {
    case Choice::kWatched:
      return false;
    case Choice::kIgnored:
      return true;
    case Choice::kCatalogue:
      return std::ranges::count(kIgnoredByDefault, xid) != 0;
  }
  return false;
}

}  // namespace gpulet::health

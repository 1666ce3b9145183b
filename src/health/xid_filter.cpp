#include "health/xid_filter.h"

#include "base/text.h"

namespace gpulet::health {
namespace {

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
}

XidFilter::Choice XidFilter::choice(std::uint64_t xid) const {
  if (all_enabled_ || enabled_.contains(xid)) return Choice::kWatched;
  return all_disabled_ || disabled_.contains(xid) ? Choice::kIgnored : Choice::kCatalogue;
}

}  // namespace gpulet::health

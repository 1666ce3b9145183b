// Which XIDs count, as DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS want it: tokens split at commas,
// trimmed, any case, each an XID's number, "xids" or "all"; what is enabled wins over what is disabled.
// Source: NVIDIA's plugin, internal/rm/health.go, as its comments have it.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace gpulet::health {

class XidFilter {
 public:
  enum class Choice {
    kCatalogue,  // nobody has said anything of it
    kIgnored,
    kWatched,  // it takes a device away, also where the catalogue says that it need not
  };

  XidFilter(const std::string& disable, const std::string& enable);

  Choice choice(std::uint64_t xid) const;
  // Nothing at all is to be checked: "all" is disabled, and nothing enabled.
  bool nothing_checked() const { return everything_disabled_ && !all_enabled_ && enabled_.empty(); }

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

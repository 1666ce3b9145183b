// Says at the start, and when the configuration changes, which rights are missing and what that switches off;
// everything else goes on. While one is missing it asks again now and then, as no watch tells of a role.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "agent/wanted_rights.h"
#include "base/loop.h"
#include "cluster/rights.h"

namespace gpulet::agent {

inline constexpr Duration kRightsAgain = std::chrono::minutes(10);

// Loop's thread only.
class RightsCare {
 public:
  RightsCare(Loop& loop, cluster::Access access, bool in_pod, Duration again = kRightsAgain,
             cluster::SendTiming timing = {});
  RightsCare(const RightsCare&) = delete;

  void apply(const config::Config& config);
  // As last answered; nullopt before the first time.
  std::optional<std::size_t> missing() const;

 private:
  void ask();
  void on_answer(const std::vector<cluster::Right>& refused);

  Loop& loop_;
  const cluster::Access access_;
  const bool in_pod_;
  const Duration again_;
  std::vector<WantedRight> wanted_;
  std::optional<std::vector<cluster::Right>> refused_;
  Subscription next_;
  std::unique_ptr<cluster::RightsReview> review_;
};

}  // namespace gpulet::agent

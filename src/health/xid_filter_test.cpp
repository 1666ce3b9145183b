#include "health/xid_filter.h"

#include <gtest/gtest.h>

namespace gpulet::health {
namespace {

using Choice = XidFilter::Choice;

TEST(XidFilter, Table) {
  struct Row {
    const char *disable, *enable;
    std::vector<std::uint64_t> ignored, left_to_the_catalogue, watched;
    bool nothing_checked = false;
  };
  const Row rows[] = {
      {"", "", {}, {13, 31, 109, 48, 79, 999}, {}},
      {"94, 95", "", {94, 95}, {13, 79}, {}},
      {" 94 ,,95,", "", {94, 95}, {79}, {}},
      {"all", "", {13, 79, 94}, {}, {}, true},
      {" All ", "", {79}, {}, {}, true},
      {"XIDS", "", {13, 79, 94}, {}, {}},
      {"", "109", {}, {13, 79}, {109}},
      {"94", "94", {}, {13, 79}, {94}},
      {"", "all", {}, {}, {13, 31, 109, 79}},
      {"all", "all", {}, {}, {13, 79}},
      {"94", "xids", {}, {}, {94, 13}},
      // What NVIDIA's comment promises: only the enabled ones are checked.
      {"all", "79,48", {13, 94, 95}, {}, {79, 48}},
      // A token must be the XID: 7 is no part of 79.
      {"7", "", {7}, {79}, {}},
  };
  for (const auto& row : rows) {
    const XidFilter filter(row.disable, row.enable);
    const std::string where = std::string(row.disable) + "|" + row.enable + " ";
    for (const auto xid : row.ignored) EXPECT_EQ(filter.choice(xid), Choice::kIgnored) << where << xid;
    for (const auto xid : row.left_to_the_catalogue)
      EXPECT_EQ(filter.choice(xid), Choice::kCatalogue) << where << xid;
    for (const auto xid : row.watched) EXPECT_EQ(filter.choice(xid), Choice::kWatched) << where << xid;
    EXPECT_EQ(filter.nothing_checked(), row.nothing_checked) << where;
    EXPECT_TRUE(filter.warnings().empty()) << where;
  }
}

TEST(XidFilter, TellsOfTokensThatAreNothing) {
  const XidFilter filter("94,xid 95,-1", "everything");
  EXPECT_EQ(filter.choice(94), Choice::kIgnored);
  EXPECT_EQ(filter.choice(95), Choice::kCatalogue);
  EXPECT_EQ(
      filter.warnings(),
      (std::vector<std::string>{
          "DP_DISABLE_HEALTHCHECKS: 'xid 95' is neither an XID's number nor all or xids: it is passed over",
          "DP_DISABLE_HEALTHCHECKS: '-1' is neither an XID's number nor all or xids: it is passed over",
          "DP_ENABLE_HEALTHCHECKS: 'everything' is neither an XID's number nor all or xids: it is passed "
          "over"}));
}

}  // namespace
}  // namespace gpulet::health

#include "base/wall_time.h"

#include <gtest/gtest.h>

namespace gpulet {
namespace {

using std::chrono::milliseconds;

TEST(WallTimeText, IsRfc3339WithMilliseconds) {
  // date -u -d @1763712000 --iso-8601=seconds
  EXPECT_EQ(wall_text(WallTime(milliseconds(1763712000123))), "2025-11-21T08:00:00.123Z");
  EXPECT_EQ(wall_text(WallTime(std::chrono::nanoseconds(1'999'999))), "1970-01-01T00:00:00.001Z") << "down";
  EXPECT_EQ(wall_text(kFirstWallTime - std::chrono::hours(1)), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(wall_text(WallTime::max()), wall_text(kLastWallTime));
}

TEST(WallTimeText, IsReadBackTheSame) {
  for (const auto wall : {kFirstWallTime, WallTime(milliseconds(951'782'400'007)), kLastWallTime}) {
    const auto back = parse_wall_text(wall_text(wall));
    ASSERT_TRUE(back) << wall_text(wall);
    EXPECT_EQ(*back, wall);
  }
  EXPECT_TRUE(parse_wall_text("2024-02-29T23:59:59.999Z"));
}

TEST(WallTimeText, NothingElseIsRead) {
  for (const auto* text :
       {"", "2026-01-31", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123+", "2026-02-29T12:00:00.123Z",
        "2026-13-01T12:00:00.123Z", "2026-01-31T24:00:00.123Z", "2026-01-31T12:60:00.123Z",
        "1969-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z", "2026-01-31t12:00:00.123Z",
        "2026-01-31T12:00:00.123Z ", "+026-01-31T12:00:00.123Z"}) {
    EXPECT_FALSE(parse_wall_text(text)) << text;
  }
}

}  // namespace
}  // namespace gpulet

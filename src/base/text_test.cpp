#include "base/text.h"

#include <gtest/gtest.h>

namespace gpulet::text {
namespace {

TEST(Text, SplitKeepsEmptyParts) {
  EXPECT_EQ(split("a,,b", ','), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(split(",", ','), (std::vector<std::string>{"", ""}));
  EXPECT_TRUE(split("", ',').empty());
}

TEST(Text, TrimOfBlanksIsEmpty) {
  EXPECT_EQ(trim(" \t\n"), "");
  EXPECT_EQ(trim(" a b\n"), "a b");
}

TEST(Text, ParseUnsignedTakesOnlyAWholeNumber) {
  EXPECT_EQ(parse_unsigned("0"), 0u);
  EXPECT_EQ(parse_unsigned("18446744073709551615"), 18446744073709551615u);
  for (const char* bad : {"", "-1", "+1", " 1", "1 ", "1x", "18446744073709551616"}) {
    EXPECT_EQ(parse_unsigned(bad), std::nullopt) << bad;
  }
}

TEST(Text, NearestOffersATypoAndNoStranger) {
  const std::vector<std::string> keys{"migStrategy", "failOnInitError", "mpsRoot"};
  EXPECT_EQ(nearest("migStrategie", keys), "migStrategy");
  EXPECT_EQ(nearest("MIGSTRATEGY", keys), "migStrategy");
  EXPECT_EQ(nearest("sleepInterval", keys), std::nullopt);
}

}  // namespace
}  // namespace gpulet::text

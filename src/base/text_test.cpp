#include "base/text.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace gpulet::text {
namespace {

TEST(Text, SplitKeepsEmptyParts) {
  EXPECT_EQ(split("a,,b", ','), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(split(",", ','), (std::vector<std::string>{"", ""}));
  EXPECT_TRUE(split("", ',').empty());
}

TEST(Text, JoinLimitedCountsTheRest) {
  const std::vector<std::string> parts{"a", "b", "c"};
  EXPECT_EQ(join_limited(parts, 3), "a, b, c");
  EXPECT_EQ(join_limited(parts, 1), "a and 2 more");
  EXPECT_EQ(count_text(1, "GPU"), "1 GPU");
  EXPECT_EQ(count_text(0, "GPU"), "0 GPUs");
}

TEST(Text, PrintableHidesControlCharactersAndCuts) {
  EXPECT_EQ(printable("a ~\n\x1b[31m\x7f\xc3\xa9"), "a ~??[31m???");
  EXPECT_EQ(printable("abc", 2), "ab");
  EXPECT_EQ(printable("", 2), "");
}

TEST(Text, DecodesPercentEscapes) {
  EXPECT_EQ(decode_percent("a%2Fb+c", false), "a/b+c");
  EXPECT_EQ(decode_percent("a%2fb+c", true), "a/b c");
  for (const char* bad : {"%", "%4", "%4g", "%-1", "a%zz"})
    EXPECT_EQ(decode_percent(bad, true), std::nullopt) << bad;
}

TEST(Text, TrimOfWhitespaceIsEmpty) {
  EXPECT_EQ(trim(" \t\n"), "");
  EXPECT_EQ(trim(" a b\n"), "a b");
}

TEST(Text, ParseUnsignedAcceptsOnlyAWholeNumber) {
  EXPECT_EQ(parse_unsigned("0"), 0u);
  EXPECT_EQ(parse_unsigned("18446744073709551615"), 18446744073709551615u);
  for (const char* bad : {"", "-1", "+1", " 1", "1 ", "1x", "18446744073709551616"}) {
    EXPECT_EQ(parse_unsigned(bad), std::nullopt) << bad;
  }
}

TEST(Text, NearestSuggestsOnlySimilarWords) {
  const std::vector<std::string> keys{"migStrategy", "failOnInitError", "mpsRoot"};
  EXPECT_EQ(nearest("migStrategie", keys), "migStrategy");
  EXPECT_EQ(nearest("MIGSTRATEGY", keys), "migStrategy");
  EXPECT_EQ(nearest("sleepInterval", keys), std::nullopt);
  const std::vector<std::string> commands{"plan", "check"};
  EXPECT_EQ(nearest("plna", commands), "plan") << "swapped letters are one mistake";
  EXPECT_EQ(nearest("chekc", commands), "check");
  EXPECT_EQ(nearest("lpna", commands), std::nullopt);
}

}  // namespace
}  // namespace gpulet::text

namespace gpulet {
namespace {

using std::chrono::milliseconds;

TEST(Text, Base64RoundTrip) {
  EXPECT_EQ(text::decode_base64("aGVsbG8="), "hello");
  EXPECT_EQ(text::decode_base64("aGVsbG8h"), "hello!");
  EXPECT_EQ(text::decode_base64("aA=="), "h");
  for (const char* bytes : {"", "h", "he", "hello", "hello!", "\xff\xfe"}) {
    EXPECT_EQ(text::decode_base64(text::encode_base64(bytes)), bytes);
  }
  EXPECT_EQ(text::encode_base64("name:password"), "bmFtZTpwYXNzd29yZA==");
  for (const char* bad : {"a", "ab", "abc", "====", "a===", "ab=c", "a b=", "aGVsbG8\n"})
    EXPECT_EQ(text::decode_base64(bad), "") << bad;
}

TEST(WallTimeText, IsRfc3339WithMilliseconds) {
  // date -u -d @1763712000 --iso-8601=seconds
  EXPECT_EQ(format_wall_time(WallTime(milliseconds(1763712000123))), "2025-11-21T08:00:00.123Z");
  EXPECT_EQ(format_wall_time(WallTime(std::chrono::nanoseconds(1'999'999))), "1970-01-01T00:00:00.001Z")
      << "down";
  EXPECT_EQ(format_wall_time(kFirstWallTime - std::chrono::hours(1)), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(format_wall_time(WallTime::max()), format_wall_time(kLastWallTime));
}

TEST(WallTimeText, ParsesItsOwnFormat) {
  for (const auto wall : {kFirstWallTime, WallTime(milliseconds(951'782'400'007)), kLastWallTime}) {
    const auto back = parse_wall_time(format_wall_time(wall));
    ASSERT_TRUE(back) << format_wall_time(wall);
    EXPECT_EQ(*back, wall);
  }
  EXPECT_TRUE(parse_wall_time("2024-02-29T23:59:59.999Z"));
}

TEST(WallTimeText, RejectsOtherFormats) {
  for (const auto* text :
       {"", "2026-01-31", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123+", "2026-02-29T12:00:00.123Z",
        "2026-13-01T12:00:00.123Z", "2026-01-31T24:00:00.123Z", "2026-01-31T12:60:00.123Z",
        "1969-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z", "2026-01-31t12:00:00.123Z",
        "2026-01-31T12:00:00.123Z ", "+026-01-31T12:00:00.123Z"}) {
    EXPECT_FALSE(parse_wall_time(text)) << text;
  }
}

}  // namespace

namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;

TEST(ParseDuration, ParsesGoDurations) {
  const std::pair<const char*, std::int64_t> good[] = {{"10s", 10'000'000'000},
                                                       {"500ms", 500'000'000},
                                                       {"1m30s", 90'000'000'000},
                                                       {"1h", 3'600'000'000'000},
                                                       {"1.5s", 1'500'000'000},
                                                       {".5s", 500'000'000},
                                                       {"1.s", 1'000'000'000},
                                                       {"0", 0},
                                                       {"-2ms", -2'000'000},
                                                       {"+2ms", 2'000'000},
                                                       {"3us", 3'000},
                                                       {"3\xc2\xb5s", 3'000},
                                                       {"7ns", 7},
                                                       {"1h1m1s1ms1us1ns", 3'661'001'001'001},
                                                       {"9223372036854775807ns", 9'223'372'036'854'775'807}};
  for (const auto& [text, count] : good) EXPECT_EQ(parse_duration(text), nanoseconds(count)) << text;
  for (const auto* bad :
       {"", "10", "s", "10 s", "ten", "1x", "-", ".", ".s", "1.2.3s", "99999999999999999999s", "9999999999h",
        "9223372036854775808ns", "9223372036.9s", "1d"}) {
    EXPECT_FALSE(parse_duration(bad)) << bad;
  }
}

TEST(FormatDuration, IsShortAndParsesBack) {
  EXPECT_EQ(format_duration(std::chrono::seconds(90)), "1m30s");
  EXPECT_EQ(format_duration(std::chrono::milliseconds(500)), "500ms");
  EXPECT_EQ(format_duration(nanoseconds(0)), "0s");
  EXPECT_EQ(format_duration(nanoseconds(-1)), "-1ns");
  rc::check("parse_duration(format_duration(d)) == d", [](std::int32_t count) {
    const nanoseconds duration(std::int64_t{count} * 1'000'003);
    RC_ASSERT(parse_duration(format_duration(duration)) == duration);
  });
}

}  // namespace
}  // namespace gpulet

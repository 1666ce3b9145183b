#include "base/duration.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace gpulet {
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

TEST(FormatAge, MatchesKubectlAge) {
  const std::pair<std::chrono::nanoseconds, const char*> kAges[] = {
      {-5s, "0s"},       {0s, "0s"},
      {1999ms, "1s"},    {119s, "119s"},
      {120s, "2m"},      {9min + 59s, "9m59s"},
      {10min, "10m"},    {179min, "179m"},
      {180min, "3h"},    {7h + 59min, "7h59m"},
      {8h, "8h"},        {47h, "47h"},
      {48h, "2d"},       {7 * 24h + 23h, "7d23h"},
      {8 * 24h, "8d"},   {729 * 24h, "729d"},
      {730 * 24h, "2y"}, {800 * 24h, "2y70d"},
      {3000 * 24h, "8y"}};
  for (const auto& [age, text] : kAges) EXPECT_EQ(format_age(age), text);
}

}  // namespace
}  // namespace gpulet

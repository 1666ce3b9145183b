#include "base/quantity.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace gpulet {
namespace {

TEST(Quantity, ReadsEveryForm) {
  for (const auto& [text, milli] : std::vector<std::pair<const char*, std::uint64_t>>{
           {"0", 0},
           {"0e400", 0},
           {"2", 2000},
           {"+2", 2000},
           {"500m", 500},
           {"0.5", 500},
           {".5", 500},
           {"1.", 1000},
           {"1.0005", 1001},
           {"100u", 1},
           {"1n", 1},
           {"1k", 1'000'000},
           {"1Ki", 1'024'000},
           {"1.5Gi", 1'610'612'736'000},
           {"128974848", 128'974'848'000},
           {"129e6", 129'000'000'000},
           {"1E2", 100'000},
           {"1e-3", 1},
           {"1e+3", 1'000'000},
           {"8Ti", 8'796'093'022'208'000},
           {"100E", std::uint64_t{1} << 62},
           {"1e400", std::uint64_t{1} << 62},
       })
    EXPECT_EQ(parse_quantity_milli(text), milli) << text;
}

TEST(Quantity, RefusesAnythingElse) {
  for (const char* const text : {"", "-1", "x", "1x", "1 Gi", "1gi", "1Kib", "1e", "1ee3", "1.2.3", "Ki",
                                 "inf", "nan", "0x10", "1e+-3"})
    EXPECT_FALSE(parse_quantity_milli(text)) << text;
}

TEST(Quantity, WritesTheCanonicalForm) {
  for (const auto& [value, text] : std::vector<std::pair<std::uint64_t, const char*>>{
           {0, "0"},
           {1, "1"},
           {1000, "1000"},
           {1024, "1Ki"},
           {1536, "1536"},
           {85'899'345'920, "80Gi"},
           {std::uint64_t{81'559} << 20, "81559Mi"},
           {std::uint64_t{1} << 63, "8Ei"},
       }) {
    EXPECT_EQ(format_binary_quantity(value), text);
  }
}

}  // namespace
}  // namespace gpulet

#include "scheduler/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/test_made_trace.h"

namespace gpulet::scheduler {
namespace {

using testing::HasSubstr;
using testing::Not;

Summary made(const std::string& policy, double end, std::size_t runs, double target = 1.3) {
  Summary summary;
  summary.policy = policy;
  summary.runs = runs;
  summary.allocated = {end, end - 0.01, end + 0.01};
  for (int step = 0; step <= 100 * target; ++step) {
    const double demand = 0.01 * step;
    const double share = std::min(demand, end);
    summary.curve.push_back({demand, {share, share - 0.01, share + 0.01}});
  }
  return summary;
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

TEST(Plot, HasALineABandAndALegendForEachPolicy) {
  const std::string plot = allocation_plot("two", {made("worse", 0.88, 10), made("better", 0.956, 10)});
  EXPECT_THAT(plot, testing::StartsWith("<svg xmlns="));
  EXPECT_THAT(plot, testing::EndsWith("</svg>\n"));
  EXPECT_EQ(count(plot, "<polyline"), 4u) << "two panels";
  EXPECT_EQ(count(plot, "<polygon"), 4u);
  EXPECT_THAT(plot, HasSubstr("worse  88.0 %"));
  EXPECT_LT(plot.find("better  95.6 %"), plot.find("worse  88.0 %")) << "the best first";
  for (const char* tag : {"g", "text", "svg", "clipPath", "title"}) {
    EXPECT_EQ(count(plot, std::string("<") + tag + ">") + count(plot, std::string("<") + tag + " "),
              count(plot, std::string("</") + tag + ">"))
        << tag;
  }
  EXPECT_THAT(plot, Not(HasSubstr("nan")));
  EXPECT_THAT(plot, Not(HasSubstr("inf")));
}

TEST(Plot, OfOneRunHasNoBand) {
  EXPECT_EQ(count(allocation_plot("one", {made("p", 0.9, 1)}), "<polygon"), 0u);
}

TEST(Plot, EscapesWhatItIsCalled) {
  const std::string plot = allocation_plot("<a & \"b\">", {made("p", 0.9, 1)});
  EXPECT_THAT(plot, HasSubstr("&lt;a &amp; &quot;b&quot;&gt;"));
  EXPECT_THAT(plot, Not(HasSubstr("<a ")));
}

TEST(Plot, KeepsAPolicysColour) {
  const auto one = allocation_plot("t", {made("a", 0.9, 1), made("b", 0.8, 1)});
  const auto other = allocation_plot("t", {made("a", 0.8, 1), made("b", 0.9, 1)});
  const auto colour_of = [](const std::string& plot, const std::string& legend) {
    return plot.substr(plot.rfind("stroke=\"#", plot.find(legend)), 16);
  };
  EXPECT_EQ(colour_of(one, "a  90.0"), colour_of(other, "a  80.0"));
  EXPECT_NE(colour_of(one, "a  90.0"), colour_of(one, "b  80.0"));
}

TEST(Plot, HasRoomForAnyTarget) {
  for (const double target : {0.1, 0.5, 0.9, 1.0, 4.0}) {
    const std::string plot = allocation_plot("t", {made("p", std::min(0.9, target), 3, target)});
    EXPECT_THAT(plot, Not(HasSubstr("nan"))) << target;
    EXPECT_THAT(plot, Not(HasSubstr("inf"))) << target;
    EXPECT_LT(plot.size(), 100'000u) << target;
  }
}

}  // namespace
}  // namespace gpulet::scheduler

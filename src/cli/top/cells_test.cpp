#include "cli/top/cells.h"

#include <gtest/gtest.h>

#include "base/text.h"

namespace gpulet::cli {
namespace {

TEST(TopCells, HaveAFixedWidth) {
  EXPECT_EQ(fit_to_width("abc", 5, false, true), "abc  ");
  EXPECT_EQ(fit_to_width("abc", 5, true, true), "  abc");
  EXPECT_EQ(fit_to_width("abcdef", 4, false, true), "abc…");
  EXPECT_EQ(fit_to_width("abcdef", 4, true, false), "abc~");
  EXPECT_EQ(fit_to_width("▲▲▲", 2, false, true), "▲…");
  EXPECT_EQ(fit_to_width("abc", 0, false, true), "");
  EXPECT_EQ(render_bar(50, 4, true), "██░░");
  EXPECT_EQ(render_bar(53, 4, true), "██▏░");
  EXPECT_EQ(render_bar(100, 4, true), "████");
  EXPECT_EQ(render_bar(999, 4, false), "####");
  EXPECT_EQ(render_bar(-1, 4, false), "....");
  EXPECT_EQ(render_bar(std::nullopt, 4, true), "    ");
  for (double percent = 0; percent <= 100; percent += 0.25) {
    ASSERT_EQ(display_width(render_bar(percent, 7, true)), 7u);
    ASSERT_EQ(render_bar(percent, 7, false).size(), 7u);
  }
}

TEST(TopCells, LinesOverTime) {
  constexpr std::int64_t kNow = 10'000'000, kColumn = kTopHistoryMs / 10;
  const auto line = [&](std::deque<TopPoint> points) {
    return render_spark_line(points, &TopPoint::util, kNow, 10, false);
  };
  EXPECT_EQ(line({}), "          ");
  EXPECT_EQ(line({{kNow, 100, {}}}), "         #");
  EXPECT_EQ(line({{kNow - kTopHistoryMs, 100, {}}}), "          ");  // too old
  EXPECT_EQ(line({{kNow - kTopHistoryMs + 1, 100, {}}}),
            "##        ");  // and lasts for a minute and a half
  EXPECT_EQ(line({{kNow - kColumn - 2, 100, {}}, {kNow - kColumn - 1, 0, {}}, {kNow, 0, {}}}), "        #_");
  EXPECT_EQ(line({{kNow, std::nullopt, 5.0}}), "          ");
  EXPECT_EQ(line({{kNow + 1, 100, {}}}), "          ");
}

TEST(TopCells, BarsAreColouredByTheirValue) {
  const auto bar = bar_spans(50, 4, true, TopTone::kBarMiddle);
  EXPECT_EQ(bar, (TopLine{{"██", TopTone::kBarMiddle}, {"░░", TopTone::kDim}}));
  EXPECT_EQ(bar_spans(std::nullopt, 3, true, TopTone::kBarHigh), (TopLine{{"   "}}));
  EXPECT_EQ(util_tone(std::nullopt), TopTone::kBarLow);
  EXPECT_EQ(util_tone(69), TopTone::kBarLow);
  EXPECT_EQ(util_tone(70), TopTone::kBarMiddle);
  EXPECT_EQ(util_tone(90), TopTone::kBarHigh);
  EXPECT_EQ(memory_tone(89), TopTone::kBarLow);
  EXPECT_EQ(memory_tone(90), TopTone::kBarMiddle);
  EXPECT_EQ(memory_tone(97), TopTone::kBarHigh);
}

TEST(TopCells, Rates) {
  const NumberFormatter format(true);
  EXPECT_EQ(format.format_short_rate({}), "–");
  EXPECT_EQ(format.format_short_rate(0), "0");
  EXPECT_EQ(format.format_short_rate(0.3e6), "0.3M");
  EXPECT_EQ(format.format_short_rate(9.94e6), "9.9M");
  EXPECT_EQ(format.format_short_rate(9.96e6), "10M");
  EXPECT_EQ(format.format_short_rate(999.4e6), "999M");
  EXPECT_EQ(format.format_short_rate(999.6e6), "1.0G");
  EXPECT_EQ(format.format_short_rate(239.0581e9), "239G");
  EXPECT_EQ(format.format_short_rate(1e15), "1P");
  EXPECT_EQ(format.format_rate(4e9), "4 GB/s");
  EXPECT_EQ(format.format_rate(1.6e9), "1.6 GB/s");
  EXPECT_EQ(format.format_rate(0), "0 MB/s");
  EXPECT_EQ(NumberFormatter(false).format_rate({}), "-");
}

TEST(TopCells, Graphs) {
  constexpr std::int64_t kNow = 10'000'000, kCell = kTopHistoryMs / 4;
  using enum TopGraphStyle;
  const std::deque<TopPoint> points = {{kNow - kCell * 3 - 1, 0, {}},
                                       {kNow - kCell * 2 - 1, 50, {}},
                                       {kNow - kCell / 2 - 1, 25, {}},
                                       {kNow, 100, {}}};
  const auto graph = [&](TopGraphStyle style) {
    return render_graph(points, &TopPoint::util, kNow, 4, 2, style);
  };
  EXPECT_EQ(graph(kAscii), (std::vector<std::string>{"   #", ".# #"}));
  EXPECT_EQ(graph(kBlocks), (std::vector<std::string>{"   █", "▁█ █"}));
  // Each cell has two columns: 0 and 50 in the second ones, then 25 and 100.
  EXPECT_EQ(graph(kBraille), (std::vector<std::string>{"   ⢸", "⢀⢸ ⣼"}));
  EXPECT_EQ(render_graph({}, &TopPoint::util, kNow, 3, 1, kBraille), std::vector<std::string>{"   "});
  EXPECT_TRUE(render_graph(points, &TopPoint::util, kNow, 3, 0, kBraille).empty());
  EXPECT_EQ(render_graph(points, &TopPoint::util, kNow, 0, 1, kBlocks), std::vector<std::string>{""});
  TopView view;
  EXPECT_EQ(graph_style(view), kBraille);
  view.braille = false;
  EXPECT_EQ(graph_style(view), kBlocks);
  view.utf8 = false;
  EXPECT_EQ(graph_style(view), kAscii);
}

}  // namespace
}  // namespace gpulet::cli

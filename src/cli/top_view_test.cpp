#include "cli/top_view.h"

#include <gtest/gtest.h>

#include "cli/test_top.h"
#include "cli/top_control.h"
#include "cli/top_table.h"

namespace gpulet::cli {
namespace {

using Kind = TopKey::Kind;

std::string text_of(const std::vector<TopLine>& lines) {
  std::string text;
  for (const auto& line : lines) text += cli::text_of(line) + "\n";
  return text;
}
std::string screen_text(const TopModel& model, const TopView& view) {
  return text_of(top_screen(model, view).lines);
}

void expect_golden(const std::string& name, const std::string& text) {
  const std::string path = "tests/golden/top/" + name + ".txt";
  if (std::getenv("UPDATE_GOLDEN") != nullptr) {
    ASSERT_TRUE(write_file_atomic(path, text));
  }
  const auto golden = read_file(path);
  ASSERT_TRUE(golden) << golden.error().text() << " (UPDATE_GOLDEN=1 writes it)";
  EXPECT_EQ(text, *golden) << path;
}

TopView view_of(unsigned columns, unsigned rows = 24) {
  TopView view;
  view.columns = columns;
  view.rows = rows;
  view.now = kTopAt + 800;
  return view;
}
void press_all(TopView& view, const std::string& keys) {
  for (const char key : keys) press(view, {Kind::kCharacter, key}, 0);
}

TEST(TopView, LooksLikeThis) {
  const auto model = top_model();
  for (const unsigned columns : {80u, 120u, 200u}) {
    const std::string size = "-" + std::to_string(columns);
    auto view = view_of(columns);
    expect_golden("gpus" + size, screen_text(model, view));
    view.tab = TopTab::kPods;
    expect_golden("pods" + size, screen_text(model, view));
    view.tab = TopTab::kProcesses;
    expect_golden("processes" + size, screen_text(model, view));
    expect_golden("tables" + size, text_of(top_tables(model, view)));
  }
  auto view = view_of(80);
  view.utf8 = false;
  expect_golden("ascii-80", screen_text(model, view));
  press_all(view, "?");
  expect_golden("help-80", screen_text(model, view));
}

TEST(TopView, HistoryLooksLikeThis) {
  auto model = top_model();
  std::string samples;
  for (int second = 900; second > 0; second -= 5) {
    if (second > 300 && second < 540) continue;  // the agent was away
    samples += (samples.empty() ? "" : ",") +
               top_now_document(kTopAt - second * 1000, static_cast<unsigned>((900 - second) / 9));
  }
  ASSERT_TRUE(model.take_history("{\"samples\":[" + samples + "]}"));
  for (const bool utf8 : {true, false}) {
    auto view = view_of(100);
    view.utf8 = utf8;
    press_all(view, "h");
    expect_golden(utf8 ? "history-100" : "history-ascii-100", screen_text(model, view));
  }
}

TEST(TopView, IsAsLargeAsTheTerminalAndNoLarger) {
  const auto model = top_model();
  for (unsigned columns = 0; columns < 260; columns += 7) {
    for (unsigned rows = 0; rows < 40; rows += 3) {
      for (const auto tab : kTopTabs) {
        for (const auto page : {TopPage::kTables, TopPage::kHistory, TopPage::kHelp}) {
          auto view = view_of(columns, rows);
          view.tab = tab;
          view.page = page;
          view.scroll = 1000;
          const auto screen = top_screen(model, view);
          ASSERT_EQ(screen.lines.size(), rows);
          for (const auto& line : screen.lines) {
            std::size_t width = 0;
            for (const auto& span : line) width += width_of(span.text);
            ASSERT_LE(width, columns) << cli::text_of(line);
          }
        }
      }
    }
  }
}

TEST(TopView, TablesFitFromEightyColumnsOn) {
  const auto model = top_model();
  for (unsigned columns = 80; columns < 240; ++columns) {
    for (const auto& line : top_tables(model, view_of(columns))) {
      std::size_t width = 0;
      for (const auto& span : line) width += width_of(span.text);
      ASSERT_LE(width, columns) << cli::text_of(line);
    }
  }
}

TEST(TopView, SaysWhatIsWrong) {
  auto model = top_model();
  auto view = view_of(120);
  EXPECT_EQ(screen_text(model, view).find("old"), std::string::npos);
  view.now = kTopAt + 61'500;
  EXPECT_NE(screen_text(model, view).find("\nthe last sample is 61 s old\n"), std::string::npos);
  view.away_since = kTopAt;
  view.away_why = "/run/x.sock: nobody there";
  EXPECT_NE(screen_text(model, view).find("\nno agent since 08:53:20Z: /run/x.sock: nobody there\n"),
            std::string::npos);
  TopModel fresh;
  EXPECT_EQ(screen_text(fresh, view_of(80)).substr(0, 11), "gpulet top\n");
  ASSERT_TRUE(fresh.take_node(R"({"gpus":[],"problems":["driver: not there"]})"));
  const auto text = screen_text(fresh, view_of(80));
  EXPECT_NE(text.find("nothing has been measured yet\ndriver: not there\n"), std::string::npos) << text;
}

TEST(TopView, ColoursAreForStatesAndWhatIsNearlyFull) {
  const auto model = top_model();
  const auto screen = top_screen(model, view_of(120));
  const auto tone_of = [&](const std::string& text) {
    for (const auto& line : screen.lines) {
      for (const auto& span : line) {
        if (span.text.find(text) != std::string::npos) return span.tone;
      }
    }
    ADD_FAILURE() << text;
    return TopTone::kPlain;
  };
  EXPECT_EQ(tone_of("healthy"), TopTone::kGood);
  EXPECT_EQ(tone_of("lost"), TopTone::kBad);
  EXPECT_EQ(tone_of("fallen off"), TopTone::kBad);
  EXPECT_EQ(tone_of("89C"), TopTone::kBad);
  EXPECT_EQ(tone_of("82C"), TopTone::kWarn);
  EXPECT_EQ(tone_of("75C"), TopTone::kPlain);
  EXPECT_EQ(tone_of("GPU▲"), TopTone::kHeadSorted);
  EXPECT_EQ(tone_of("POWER"), TopTone::kHead);
}

TEST(TopView, Cells) {
  EXPECT_EQ(fitted("abc", 5, false, true), "abc  ");
  EXPECT_EQ(fitted("abc", 5, true, true), "  abc");
  EXPECT_EQ(fitted("abcdef", 4, false, true), "abc…");
  EXPECT_EQ(fitted("abcdef", 4, true, false), "abc~");
  EXPECT_EQ(fitted("▲▲▲", 2, false, true), "▲…");
  EXPECT_EQ(fitted("abc", 0, false, true), "");
  EXPECT_EQ(bar(50, 4, true), "██░░");
  EXPECT_EQ(bar(53, 4, true), "██▏░");
  EXPECT_EQ(bar(100, 4, true), "████");
  EXPECT_EQ(bar(999, 4, false), "####");
  EXPECT_EQ(bar(-1, 4, false), "....");
  EXPECT_EQ(bar(std::nullopt, 4, true), "    ");
  for (double percent = 0; percent <= 100; percent += 0.25) {
    ASSERT_EQ(width_of(bar(percent, 7, true)), 7u);
    ASSERT_EQ(bar(percent, 7, false).size(), 7u);
  }
}

TEST(TopView, LinesOverTime) {
  constexpr std::int64_t kNow = 10'000'000, kColumn = kTopHistoryMs / 10;
  const auto line = [&](std::deque<TopPoint> points) {
    return spark_line(points, &TopPoint::util, kNow, 10, false);
  };
  EXPECT_EQ(line({}), "          ");
  EXPECT_EQ(line({{kNow, 100, {}}}), "         #");
  EXPECT_EQ(line({{kNow - kTopHistoryMs, 100, {}}}), "          ");  // too old
  EXPECT_EQ(line({{kNow - kTopHistoryMs + 1, 100, {}}}),
            "##        ");  // and goes on for a minute and a half
  EXPECT_EQ(line({{kNow - kColumn - 2, 100, {}}, {kNow - kColumn - 1, 0, {}}, {kNow, 0, {}}}), "        #_");
  EXPECT_EQ(line({{kNow, std::nullopt, 5.0}}), "          ");
  EXPECT_EQ(line({{kNow + 1, 100, {}}}), "          ");
}

TEST(TopControl, SortsAndTurnsAround) {
  auto view = view_of(80);
  press_all(view, "s");
  EXPECT_EQ(query_of(view, TopTab::kGpus).sort, TopColumn::kUtil);
  EXPECT_TRUE(query_of(view, TopTab::kGpus).descending);
  press_all(view, "S");
  EXPECT_FALSE(query_of(view, TopTab::kGpus).descending);
  for (std::size_t i = 1; i < columns_of(TopTab::kGpus).size(); ++i) press_all(view, "s");
  EXPECT_EQ(query_of(view, TopTab::kGpus).sort, TopColumn::kGpu);
  EXPECT_EQ(query_of(view, TopTab::kPods).sort, TopColumn::kPod);
}

TEST(TopControl, TypesAFilter) {
  auto view = view_of(80);
  press_all(view, "/q7x");
  EXPECT_TRUE(view.typing);
  press(view, {Kind::kBackspace}, 0);
  EXPECT_EQ(query_of(view, TopTab::kGpus).filter, "q7");
  EXPECT_NE(screen_text(top_model(), view).find("\n/q7_\n"), std::string::npos);
  press(view, {Kind::kEnter}, 0);
  EXPECT_FALSE(view.typing);
  EXPECT_NE(screen_text(top_model(), view).find("filter: q7"), std::string::npos);
  press_all(view, "/");
  press(view, {Kind::kEscape}, 0);
  EXPECT_EQ(query_of(view, TopTab::kGpus).filter, "");
  press_all(view, "/" + std::string(200, 'x'));
  EXPECT_EQ(query_of(view, TopTab::kGpus).filter.size(), 63u);
}

TEST(TopControl, TurnsPagesAndScrolls) {
  auto view = view_of(80, 10);
  press(view, {Kind::kTab}, 0);
  EXPECT_EQ(view.tab, TopTab::kPods);
  press(view, {Kind::kBackTab}, 0);
  press(view, {Kind::kBackTab}, 0);
  EXPECT_EQ(view.tab, TopTab::kProcesses);
  press(view, {Kind::kTab}, 0);
  const auto scroll = [&](Kind kind) {
    press(view, {kind}, 9);
    return view.scroll;
  };
  EXPECT_EQ(scroll(Kind::kUp), 0u);
  EXPECT_EQ(scroll(Kind::kDown), 1u);
  EXPECT_EQ(scroll(Kind::kPageDown), 7u);
  EXPECT_EQ(scroll(Kind::kPageDown), 9u);
  EXPECT_EQ(scroll(Kind::kPageUp), 3u);
  EXPECT_EQ(scroll(Kind::kEnd), 9u);
  EXPECT_EQ(scroll(Kind::kHome), 0u);
  press_all(view, "h");
  EXPECT_EQ(view.page, TopPage::kHistory);
  press_all(view, "?");
  EXPECT_EQ(view.page, TopPage::kHelp);
  press_all(view, "s");  // only leaves it
  EXPECT_EQ(view.page, TopPage::kTables);
  EXPECT_EQ(query_of(view, TopTab::kGpus).sort, TopColumn::kGpu);
  press_all(view, "p");
  EXPECT_TRUE(view.paused);
  EXPECT_EQ(press(view, {Kind::kCharacter, 'q'}, 0), TopAction::kQuit);
}

}  // namespace
}  // namespace gpulet::cli

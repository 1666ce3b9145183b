#include "cli/top/view.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "cli/top/tables.h"
#include "cli/top/test_top.h"

namespace gpulet::cli {
namespace {

using Kind = TopKey::Kind;

std::string screen_lines_text(const std::vector<TopLine>& lines) {
  std::string text;
  for (const auto& line : lines) text += cli::line_text(line) + "\n";
  return text;
}
std::string screen_text(const TopModel& model, const TopView& view) {
  return screen_lines_text(render_screen(model, view).lines);
}

void expect_top_golden(const std::string& name, const std::string& text) {
  const std::string path = "tests/golden/top/" + name + ".txt";
  if (std::getenv("UPDATE_GOLDEN") != nullptr) {
    ASSERT_TRUE(write_file_atomic(path, text));
  }
  const auto golden = read_file(path);
  ASSERT_TRUE(golden) << golden.error().full_message() << " (UPDATE_GOLDEN=1 writes it)";
  EXPECT_EQ(text, *golden) << path;
}

TopView make_view(unsigned columns, unsigned rows = 24) {
  TopView view;
  view.columns = columns;
  view.rows = rows;
  view.now = kTopAt + 800;
  return view;
}
void press_all(TopView& view, const std::string& keys) {
  for (const char key : keys) apply_key(view, {Kind::kCharacter, key}, 0);
}

TEST(TopView, MatchesTheGoldenScreens) {
  const auto model = make_top_model();
  for (const unsigned columns : {80u, 120u, 200u}) {
    const std::string size = "-" + std::to_string(columns);
    auto view = make_view(columns);
    expect_top_golden("gpus" + size, screen_text(model, view));
    view.tab = TopTab::kPods;
    expect_top_golden("pods" + size, screen_text(model, view));
    view.tab = TopTab::kProcesses;
    expect_top_golden("processes" + size, screen_text(model, view));
    expect_top_golden("tables" + size, screen_lines_text(render_batch(model, view)));
  }
  auto view = make_view(80);
  view.utf8 = false;
  expect_top_golden("ascii-80", screen_text(model, view));
  press_all(view, "?");
  expect_top_golden("help-80", screen_text(model, view));
}

TEST(TopView, HistoryMatchesTheGoldenScreens) {
  auto model = make_top_model();
  std::string samples;
  for (int second = 900; second > 0; second -= 5) {
    if (second > 300 && second < 540) continue;  // the agent was away
    samples += (samples.empty() ? "" : ",") +
               sample_document_text(kTopAt - second * 1000, static_cast<unsigned>((900 - second) / 9));
  }
  ASSERT_TRUE(model.apply_history_document("{\"samples\":[" + samples + "]}"));
  for (const bool utf8 : {true, false}) {
    auto view = make_view(100);
    view.utf8 = utf8;
    press_all(view, "h");
    expect_top_golden(utf8 ? "history-100" : "history-ascii-100", screen_text(model, view));
  }
}

TEST(TopView, FillsTheTerminalExactly) {
  const auto model = make_top_model();
  for (unsigned columns = 0; columns < 260; columns += 7) {
    for (unsigned rows = 0; rows < 40; rows += 3) {
      for (const auto tab : kTopTabs) {
        for (const auto page : {TopPage::kTables, TopPage::kHistory, TopPage::kHelp}) {
          auto view = make_view(columns, rows);
          view.tab = tab;
          view.page = page;
          view.scroll = 1000;
          const auto screen = render_screen(model, view);
          ASSERT_EQ(screen.lines.size(), rows);
          for (const auto& line : screen.lines) {
            std::size_t width = 0;
            for (const auto& span : line) width += display_width(span.text);
            ASSERT_LE(width, columns) << cli::line_text(line);
          }
        }
      }
    }
  }
}

TEST(TopView, TablesFitFromEightyColumnsOn) {
  const auto model = make_top_model();
  for (unsigned columns = 80; columns < 240; ++columns) {
    for (const auto& line : render_batch(model, make_view(columns))) {
      std::size_t width = 0;
      for (const auto& span : line) width += display_width(span.text);
      ASSERT_LE(width, columns) << cli::line_text(line);
    }
  }
}

TEST(TopView, ShowsProblems) {
  auto model = make_top_model();
  auto view = make_view(120);
  EXPECT_EQ(screen_text(model, view).find("old"), std::string::npos);
  view.now = kTopAt + 61'500;
  EXPECT_NE(screen_text(model, view).find("\nthe last sample is 61 s old\n"), std::string::npos);
  view.disconnected_since = kTopAt;
  view.disconnect_reason = "/run/x.sock: nobody there";
  EXPECT_NE(screen_text(model, view).find("\nagent unreachable since 08:53:20Z: /run/x.sock: nobody there\n"),
            std::string::npos);
  TopModel fresh;
  EXPECT_EQ(screen_text(fresh, make_view(80)).substr(0, 11), "gpulet top\n");
  ASSERT_TRUE(fresh.apply_node_document(R"({"gpus":[],"problems":["driver: not there"]})"));
  const auto text = screen_text(fresh, make_view(80));
  EXPECT_NE(text.find("no sample yet\ndriver: not there\n"), std::string::npos) << text;
}

TEST(TopView, ColoursStatesAndNearlyFullMemory) {
  const auto model = make_top_model();
  const auto screen = render_screen(model, make_view(120));
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
  EXPECT_EQ(tone_of("GPU▲"), TopTone::kSortedHeader);
  EXPECT_EQ(tone_of("POWER"), TopTone::kHeader);
}

TEST(TopView, Cells) {
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

TEST(TopView, LinesOverTime) {
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

TEST(TopControl, SortsAndReverses) {
  auto view = make_view(80);
  press_all(view, "s");
  EXPECT_EQ(tab_query(view, TopTab::kGpus).sort, TopColumn::kUtil);
  EXPECT_TRUE(tab_query(view, TopTab::kGpus).descending);
  press_all(view, "S");
  EXPECT_FALSE(tab_query(view, TopTab::kGpus).descending);
  for (std::size_t i = 1; i < sort_columns(TopTab::kGpus).size(); ++i) press_all(view, "s");
  EXPECT_EQ(tab_query(view, TopTab::kGpus).sort, TopColumn::kGpu);
  EXPECT_EQ(tab_query(view, TopTab::kPods).sort, TopColumn::kPod);
}

TEST(TopControl, TypesAFilter) {
  auto view = make_view(80);
  press_all(view, "/q7x");
  EXPECT_TRUE(view.typing);
  apply_key(view, {Kind::kBackspace}, 0);
  EXPECT_EQ(tab_query(view, TopTab::kGpus).filter, "q7");
  EXPECT_NE(screen_text(make_top_model(), view).find("\n/q7_\n"), std::string::npos);
  apply_key(view, {Kind::kEnter}, 0);
  EXPECT_FALSE(view.typing);
  EXPECT_NE(screen_text(make_top_model(), view).find("filter: q7"), std::string::npos);
  press_all(view, "/");
  apply_key(view, {Kind::kEscape}, 0);
  EXPECT_EQ(tab_query(view, TopTab::kGpus).filter, "");
  press_all(view, "/" + std::string(200, 'x'));
  EXPECT_EQ(tab_query(view, TopTab::kGpus).filter.size(), 63u);
}

TEST(TopControl, SwitchesPagesAndScrolls) {
  auto view = make_view(80, 10);
  apply_key(view, {Kind::kTab}, 0);
  EXPECT_EQ(view.tab, TopTab::kPods);
  apply_key(view, {Kind::kBackTab}, 0);
  apply_key(view, {Kind::kBackTab}, 0);
  EXPECT_EQ(view.tab, TopTab::kProcesses);
  apply_key(view, {Kind::kTab}, 0);
  const auto scroll = [&](Kind kind) {
    apply_key(view, {kind}, 9);
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
  EXPECT_EQ(tab_query(view, TopTab::kGpus).sort, TopColumn::kGpu);
  press_all(view, "p");
  EXPECT_TRUE(view.paused);
  EXPECT_EQ(apply_key(view, {Kind::kCharacter, 'q'}, 0), TopAction::kQuit);
}

}  // namespace
}  // namespace gpulet::cli

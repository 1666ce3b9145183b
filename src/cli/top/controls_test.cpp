#include "cli/top/controls.h"

#include <gtest/gtest.h>

#include "cli/top/test_top.h"

namespace gpulet::cli {
namespace {

using Kind = TopKey::Kind;

std::string shown_text(const TopView& view) {
  std::string text;
  for (const auto& line : render_screen(make_top_model(), view).lines) text += line_text(line) + "\n";
  return text;
}
TopAction press_key(TopView& view, const TopKey& key) {
  return apply_key(view, key, render_screen(make_top_model(), view));
}
TopAction press_key(TopView& view, Kind kind) { return press_key(view, TopKey{.kind = kind}); }
void type_keys(TopView& view, const std::string& keys) {
  for (const char key : keys) press_key(view, {Kind::kCharacter, key});
}
void click_at_cell(TopView& view, std::size_t row, std::size_t column) {
  press_key(view, {.kind = Kind::kClick, .row = row, .column = column});
}

TEST(TopControl, SortsAndReverses) {
  auto view = make_view(80);
  type_keys(view, "s");
  EXPECT_EQ(tab_query(view, TopTab::kGpus).sort, TopColumn::kUtil);
  EXPECT_TRUE(tab_query(view, TopTab::kGpus).descending);
  type_keys(view, "S");
  EXPECT_FALSE(tab_query(view, TopTab::kGpus).descending);
  for (std::size_t i = 1; i < sort_columns(TopTab::kGpus).size(); ++i) type_keys(view, "s");
  EXPECT_EQ(tab_query(view, TopTab::kGpus).sort, TopColumn::kGpu);
  EXPECT_EQ(tab_query(view, TopTab::kPods).sort, TopColumn::kPod);
}

TEST(TopControl, TypesAFilter) {
  auto view = make_view(80);
  type_keys(view, "/q7x");
  EXPECT_TRUE(view.typing);
  press_key(view, Kind::kBackspace);
  EXPECT_EQ(tab_query(view, TopTab::kGpus).filter, "q7");
  EXPECT_NE(shown_text(view).find("\n/q7_\n"), std::string::npos);
  press_key(view, Kind::kEnter);
  EXPECT_FALSE(view.typing);
  EXPECT_NE(shown_text(view).find("filter: q7"), std::string::npos);
  type_keys(view, "/");
  press_key(view, Kind::kEscape);
  EXPECT_EQ(tab_query(view, TopTab::kGpus).filter, "");
  type_keys(view, "/" + std::string(200, 'x'));
  EXPECT_EQ(tab_query(view, TopTab::kGpus).filter.size(), 63u);
}

TEST(TopControl, SwitchesPagesAndScrolls) {
  auto view = make_view(80, 10);
  press_key(view, Kind::kTab);
  EXPECT_EQ(view.tab, TopTab::kPods);
  press_key(view, Kind::kBackTab);
  press_key(view, Kind::kBackTab);
  EXPECT_EQ(view.tab, TopTab::kProcesses);
  press_key(view, Kind::kTab);
  const auto scroll = [&](Kind kind) {
    press_key(view, kind);
    return view.scroll;
  };
  // Of 13 lines, GPU 2 having two, six are shown.
  EXPECT_EQ(scroll(Kind::kPageDown), 6u);
  EXPECT_EQ(scroll(Kind::kPageDown), 7u);
  EXPECT_EQ(scroll(Kind::kPageUp), 1u);
  EXPECT_EQ(scroll(Kind::kEnd), 7u);
  EXPECT_EQ(scroll(Kind::kWheelUp), 4u);
  EXPECT_EQ(scroll(Kind::kWheelDown), 7u);
  EXPECT_EQ(scroll(Kind::kHome), 0u);
  EXPECT_EQ(scroll(Kind::kWheelUp), 0u);
  EXPECT_EQ(selected_row(view, TopTab::kGpus), "");
  type_keys(view, "h");
  EXPECT_EQ(view.page, TopPage::kHistory);
  type_keys(view, "?");
  EXPECT_EQ(view.page, TopPage::kHelp);
  type_keys(view, "s");  // only leaves it
  EXPECT_EQ(view.page, TopPage::kTables);
  EXPECT_EQ(tab_query(view, TopTab::kGpus).sort, TopColumn::kGpu);
  type_keys(view, "p");
  EXPECT_TRUE(view.paused);
  EXPECT_EQ(apply_key(view, {Kind::kCharacter, 'q'}, {}), TopAction::kQuit);
}

TEST(TopControl, ScrollsPagesWithoutRows) {
  auto view = make_view(80, 10);
  type_keys(view, "h");
  press_key(view, Kind::kDown);
  press_key(view, Kind::kDown);
  EXPECT_EQ(view.scroll, 2u);
  press_key(view, Kind::kUp);
  EXPECT_EQ(view.scroll, 1u);
  press_key(view, Kind::kEscape);
  EXPECT_EQ(view.page, TopPage::kTables);
  EXPECT_EQ(view.scroll, 0u);
}

TEST(TopControl, SelectsRowsWithTheArrows) {
  auto view = make_view(80, 10);
  const auto selected = [&](Kind kind) {
    press_key(view, kind);
    return selected_row(view, TopTab::kGpus);
  };
  EXPECT_EQ(selected(Kind::kDown), top_uuid(0));
  EXPECT_EQ(selected(Kind::kUp), top_uuid(0));
  EXPECT_EQ(selected(Kind::kDown), top_uuid(1));
  EXPECT_EQ(selected(Kind::kDown), top_uuid(2));
  EXPECT_EQ(selected(Kind::kDown), top_uuid(3)) << "GPU 2 has two lines";
  EXPECT_EQ(selected(Kind::kDown), top_uuid(4));
  EXPECT_EQ(view.scroll, 0u);
  EXPECT_EQ(selected(Kind::kDown), top_uuid(5)) << "below the screen";
  EXPECT_EQ(view.scroll, 1u);
  for (int i = 0; i < 10; ++i) press_key(view, Kind::kDown);
  EXPECT_EQ(selected_row(view, TopTab::kGpus), top_uuid(7));
  EXPECT_EQ(view.scroll, 7u);
  EXPECT_EQ(selected(Kind::kUp), top_mig_uuid(3));
  press_key(view, Kind::kHome);
  EXPECT_EQ(selected(Kind::kUp), top_mig_uuid(2));
  EXPECT_EQ(view.scroll, 5u) << "scrolls back to the selection";
  // Each tab has its own selection. Escape ends it.
  press_key(view, Kind::kTab);
  EXPECT_EQ(selected_row(view, TopTab::kPods), "");
  press_key(view, Kind::kUp);
  EXPECT_EQ(selected_row(view, TopTab::kPods), "team-a/infer-3") << "the last visible one";
  press_key(view, Kind::kEscape);
  EXPECT_EQ(selected_row(view, TopTab::kPods), "");
  press_key(view, Kind::kBackTab);
  EXPECT_EQ(selected_row(view, TopTab::kGpus), top_mig_uuid(2));
  TopView empty;
  apply_key(empty, {Kind::kDown}, {});
  EXPECT_EQ(selected_row(empty, TopTab::kGpus), "");
}

TEST(TopControl, ClicksSelectSortAndSwitch) {
  auto view = make_view(200);
  click_at_cell(view, 4, 50);
  EXPECT_EQ(selected_row(view, TopTab::kGpus), top_uuid(1));
  click_at_cell(view, 6, 0);  // the reason of GPU 2
  EXPECT_EQ(selected_row(view, TopTab::kGpus), top_uuid(2));
  for (const auto& [row, column] : {std::pair{4u, 150u}, {20u, 1u}, {23u, 1u}, {0u, 1u}, {99u, 999u}}) {
    click_at_cell(view, row, column);
    EXPECT_EQ(selected_row(view, TopTab::kGpus), top_uuid(2)) << row << "," << column;
  }
  const auto title_at = [&](const char* title) {
    const auto text = shown_text(view);
    const auto line = text.find("\nGPU") + 1;
    return text.find(title) - line;
  };
  click_at_cell(view, 2, title_at("STATE"));
  EXPECT_EQ(tab_query(view, TopTab::kGpus).sort, TopColumn::kState);
  EXPECT_FALSE(tab_query(view, TopTab::kGpus).descending);
  click_at_cell(view, 2, 0);
  EXPECT_EQ(tab_query(view, TopTab::kGpus).sort, TopColumn::kGpu);
  click_at_cell(view, 2, 4);
  EXPECT_TRUE(tab_query(view, TopTab::kGpus).descending) << "again: the other order";
  click_at_cell(view, 2, 5);  // between two titles
  EXPECT_EQ(tab_query(view, TopTab::kGpus).sort, TopColumn::kGpu);
  click_at_cell(view, 1, 10);
  EXPECT_EQ(view.tab, TopTab::kPods);
  click_at_cell(view, 1, 18);
  EXPECT_EQ(view.tab, TopTab::kProcesses);
  // While a filter is typed, it stays open.
  type_keys(view, "/x");
  click_at_cell(view, 1, 1);
  EXPECT_EQ(view.tab, TopTab::kGpus);
}

TEST(TopControl, ClicksFollowTheScroll) {
  auto view = make_view(80, 10);
  press_key(view, Kind::kEnd);
  click_at_cell(view, 8, 0);
  EXPECT_EQ(selected_row(view, TopTab::kGpus), top_uuid(7));
  type_keys(view, "?");
  click_at_cell(view, 5, 0);  // only leaves the help
  EXPECT_EQ(view.page, TopPage::kTables);
  EXPECT_EQ(selected_row(view, TopTab::kGpus), top_uuid(7));
}

TEST(TopControl, EscapeClearsAKeptFilter) {
  auto view = make_view(80);
  type_keys(view, "/h100");
  press_key(view, Kind::kEnter);
  type_keys(view, "h");
  press_key(view, Kind::kEscape);
  EXPECT_EQ(tab_query(view, TopTab::kGpus).filter, "h100") << "the page comes first";
  press_key(view, Kind::kEscape);
  EXPECT_EQ(tab_query(view, TopTab::kGpus).filter, "");
}

}  // namespace
}  // namespace gpulet::cli

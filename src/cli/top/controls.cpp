#include "cli/top/controls.h"

#include <algorithm>
#include <iterator>

namespace gpulet::cli {
namespace {

using Kind = TopKey::Kind;

constexpr std::size_t kMaxFilterLength = 63;  // the longest Pod name
constexpr std::size_t kWheelLines = 3;

TopQuery& edit_query(TopView& view) {
  return view.queries.try_emplace(view.tab, default_query(view.tab)).first->second;
}

void edit_filter(TopView& view, const TopKey& key) {
  auto& filter = edit_query(view).filter;
  switch (key.kind) {
    case Kind::kCharacter:
      if (filter.size() < kMaxFilterLength) filter += key.character;
      break;
    case Kind::kBackspace:
      if (!filter.empty()) filter.pop_back();
      break;
    case Kind::kEscape:
      filter.clear();
      [[fallthrough]];
    case Kind::kEnter:
      view.typing = false;
      break;
    default:
      return;
  }
  view.scroll = 0;
}

void sort_by(TopView& view, TopColumn column) {
  auto& query = edit_query(view);
  query.sort = column;
  query.descending = sorts_descending(column);
  view.scroll = 0;
}

void sort_by_next(TopView& view) {
  const auto& columns = sort_columns(view.tab);
  const auto at = std::ranges::find(columns, edit_query(view).sort);
  sort_by(view, at == columns.end() || std::next(at) == columns.end() ? columns.front() : *std::next(at));
}

void show_tab(TopView& view, TopTab tab) {
  view.tab = tab;
  view.page = TopPage::kTables;
  view.scroll = 0;
}

void switch_tab(TopView& view, std::size_t steps) {
  const auto at = static_cast<std::size_t>(std::ranges::find(kTopTabs, view.tab) - std::begin(kTopTabs));
  show_tab(view, kTopTabs[(at + steps) % std::size(kTopTabs)]);
}

void scroll_lines(TopView& view, std::ptrdiff_t lines, const TopScreen& screen) {
  const auto most = static_cast<std::ptrdiff_t>(screen.max_scroll);
  const auto at = std::min(static_cast<std::ptrdiff_t>(view.scroll), most);
  view.scroll = static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(at + lines, 0, most));
}

// Selects the row of a line of the body, and scrolls to all of its lines.
void select_line(TopView& view, std::size_t line, const TopScreen& screen) {
  const auto& keys = screen.row_keys;
  std::size_t first = line, last = line;
  while (first > 0 && keys[first - 1] == keys[line]) --first;
  while (last + 1 < keys.size() && keys[last + 1] == keys[line]) ++last;
  view.selection[view.tab] = keys[line];
  if (last >= view.scroll + screen.body_rows) view.scroll = last + 1 - std::min(last + 1, screen.body_rows);
  view.scroll = std::min(view.scroll, first);
}

// From the selected row; without one, from the edge of what is visible.
void move_selection(TopView& view, bool down, const TopScreen& screen) {
  const auto& keys = screen.row_keys;
  if (keys.empty()) return scroll_lines(view, down ? 1 : -1, screen);
  const std::size_t top = std::min({view.scroll, screen.max_scroll, keys.size() - 1});
  const auto selected = std::ranges::find(keys, selected_row(view, view.tab));
  if (selected == keys.end()) {
    const std::size_t bottom = std::min(keys.size(), top + std::max<std::size_t>(screen.body_rows, 1)) - 1;
    return select_line(view, down ? top : bottom, screen);
  }
  auto line = static_cast<std::size_t>(selected - keys.begin());
  if (!down) return select_line(view, line > 0 ? line - 1 : 0, screen);
  while (line + 1 < keys.size() && keys[line] == *selected) ++line;
  select_line(view, line, screen);
}

void click_at(TopView& view, std::size_t row, std::size_t column, const TopScreen& screen) {
  for (const auto& [area, tab] : screen.tabs) {
    if (area.contains(row, column)) return show_tab(view, tab);
  }
  for (const auto& [area, sort] : screen.headers) {
    if (!area.contains(row, column)) continue;
    auto& query = edit_query(view);
    if (query.sort != sort) return sort_by(view, sort);
    query.descending = !query.descending;
    return;
  }
  const bool in_body = row >= screen.body_row && row - screen.body_row < screen.body_rows;
  if (!in_body || column >= screen.body_columns) return;
  const std::size_t line = row - screen.body_row + std::min(view.scroll, screen.max_scroll);
  if (line < screen.row_keys.size()) view.selection[view.tab] = screen.row_keys[line];
}

// Takes back the latest thing: a page, a filter, a selection.
void escape_view(TopView& view) {
  if (view.page != TopPage::kTables) {
    view.page = TopPage::kTables;
    view.scroll = 0;
  } else if (auto& query = edit_query(view); !query.filter.empty()) {
    query.filter.clear();
    view.scroll = 0;
  } else {
    view.selection.erase(view.tab);
  }
}

void toggle_page(TopView& view, TopPage page) {
  view.page = view.page == page ? TopPage::kTables : page;
  view.scroll = 0;
}

TopAction apply_character(TopView& view, char character) {
  switch (character) {
    case 'q':
      return TopAction::kQuit;
    case 's':
      sort_by_next(view);
      break;
    case 'S':
      edit_query(view).descending = !edit_query(view).descending;
      break;
    case '/':
      view.typing = true;
      view.page = TopPage::kTables;
      break;
    case 'p':
      view.paused = !view.paused;
      break;
    case 'h':
      toggle_page(view, TopPage::kHistory);
      break;
    case '?':
      toggle_page(view, TopPage::kHelp);
      break;
    default:
      break;
  }
  return TopAction::kNone;
}

void apply_movement(TopView& view, const TopKey& key, const TopScreen& screen) {
  const auto page = static_cast<std::ptrdiff_t>(std::max<std::size_t>(screen.body_rows, 1));
  switch (key.kind) {
    case Kind::kTab:
      return switch_tab(view, 1);
    case Kind::kBackTab:
      return switch_tab(view, std::size(kTopTabs) - 1);
    case Kind::kUp:
      return move_selection(view, false, screen);
    case Kind::kDown:
      return move_selection(view, true, screen);
    case Kind::kPageUp:
      return scroll_lines(view, -page, screen);
    case Kind::kPageDown:
      return scroll_lines(view, page, screen);
    case Kind::kWheelUp:
      return scroll_lines(view, -static_cast<std::ptrdiff_t>(kWheelLines), screen);
    case Kind::kWheelDown:
      return scroll_lines(view, kWheelLines, screen);
    case Kind::kHome:
      view.scroll = 0;
      break;
    case Kind::kEnd:
      view.scroll = screen.max_scroll;
      break;
    case Kind::kEscape:
      return escape_view(view);
    case Kind::kClick:
      return click_at(view, key.row, key.column, screen);
    default:
      break;
  }
}

}  // namespace

TopAction apply_key(TopView& view, const TopKey& key, const TopScreen& screen) {
  const bool mouse = key.kind == Kind::kClick || key.kind == Kind::kWheelUp || key.kind == Kind::kWheelDown;
  if (view.typing && !mouse) {
    edit_filter(view, key);
    return TopAction::kNone;
  }
  const bool quits = key.kind == Kind::kCharacter && key.character == 'q';
  const bool wheels = mouse && key.kind != Kind::kClick;
  if (view.page == TopPage::kHelp && !quits && !wheels) {
    toggle_page(view, TopPage::kHelp);
    return TopAction::kNone;
  }
  if (key.kind == Kind::kCharacter) return apply_character(view, key.character);
  apply_movement(view, key, screen);
  return TopAction::kNone;
}

}  // namespace gpulet::cli

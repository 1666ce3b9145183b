#include "cli/top_control.h"

#include <algorithm>
#include <iterator>

namespace gpulet::cli {
namespace {

using Kind = TopKey::Kind;

constexpr std::size_t kMostFilter = 63;  // no Pod's name is longer
constexpr std::size_t kHeadLines = 4;    // of a page that stay in view: title, tabs, head, foot

TopQuery& own_query(TopView& view) {
  return view.queries.try_emplace(view.tab, default_query(view.tab)).first->second;
}

void type(TopView& view, const TopKey& key) {
  auto& filter = own_query(view).filter;
  switch (key.kind) {
    case Kind::kCharacter:
      if (filter.size() < kMostFilter) filter += key.character;
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
      break;
  }
  view.scroll = 0;
}

void sort_by_next(TopView& view) {
  auto& query = own_query(view);
  const auto& columns = columns_of(view.tab);
  const auto at = std::ranges::find(columns, query.sort);
  query.sort = at == columns.end() || std::next(at) == columns.end() ? columns.front() : *std::next(at);
  query.descending = largest_first(query.sort);
  view.scroll = 0;
}

void turn_to(TopView& view, std::size_t steps) {
  const auto at = static_cast<std::size_t>(std::ranges::find(kTopTabs, view.tab) - std::begin(kTopTabs));
  view.tab = kTopTabs[(at + steps) % std::size(kTopTabs)];
  view.page = TopPage::kTables;
  view.scroll = 0;
}

void scroll(TopView& view, Kind kind, std::size_t most) {
  const std::size_t page = view.rows > kHeadLines ? view.rows - kHeadLines : 1;
  const std::size_t at = std::min(view.scroll, most);
  const auto up = [&](std::size_t lines) { view.scroll = at - std::min(at, lines); };
  const auto down = [&](std::size_t lines) { view.scroll = std::min(most, at + lines); };
  if (kind == Kind::kUp) up(1);
  if (kind == Kind::kDown) down(1);
  if (kind == Kind::kPageUp) up(page);
  if (kind == Kind::kPageDown) down(page);
  if (kind == Kind::kHome) view.scroll = 0;
  if (kind == Kind::kEnd) view.scroll = most;
}

void turn_page(TopView& view, TopPage page) {
  view.page = view.page == page ? TopPage::kTables : page;
  view.scroll = 0;
}

}  // namespace

TopAction press(TopView& view, const TopKey& key, std::size_t most_scroll) {
  if (view.typing) {
    type(view, key);
    return TopAction::kNone;
  }
  if (view.page == TopPage::kHelp && !(key.kind == Kind::kCharacter && key.character == 'q')) {
    turn_page(view, TopPage::kHelp);
    return TopAction::kNone;
  }
  switch (key.kind) {
    case Kind::kCharacter:
      break;
    case Kind::kTab:
      turn_to(view, 1);
      return TopAction::kNone;
    case Kind::kBackTab:
      turn_to(view, std::size(kTopTabs) - 1);
      return TopAction::kNone;
    default:
      scroll(view, key.kind, most_scroll);
      return TopAction::kNone;
  }
  switch (key.character) {
    case 'q':
      return TopAction::kQuit;
    case 's':
      sort_by_next(view);
      break;
    case 'S':
      own_query(view).descending = !own_query(view).descending;
      break;
    case '/':
      view.typing = true;
      view.page = TopPage::kTables;
      break;
    case 'p':
      view.paused = !view.paused;
      break;
    case 'h':
      turn_page(view, TopPage::kHistory);
      break;
    case '?':
      turn_page(view, TopPage::kHelp);
      break;
    default:
      break;
  }
  return TopAction::kNone;
}

}  // namespace gpulet::cli

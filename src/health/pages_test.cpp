// The pages that people read are complete: every XID, every state, every class of fault with its runbook.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/file.h"
#include "base/text.h"
#include "health/rules.h"
#include "health/state.h"
#include "health/xid_catalogue.h"

namespace gpulet::health {
namespace {

std::vector<std::string> lines_of(const std::string& path) {
  const auto content = read_file(path);
  EXPECT_TRUE(content) << (content ? "" : content.error().text());
  return text::split(content.value_or(""), '\n');
}

std::vector<std::string> trimmed(std::vector<std::string> cells) {
  for (auto& cell : cells) cell = std::string(text::trim(cell));
  return cells;
}

// First cell, without marks → the row's cells, of every table of the page; one that comes twice fails.
std::map<std::string, std::vector<std::string>> rows_of(const std::vector<std::string>& lines) {
  std::map<std::string, std::vector<std::string>> rows;
  for (const auto& line : lines) {
    if (!line.starts_with("| ")) continue;
    auto cells = trimmed(text::split(line, '|'));
    std::string key = cells.at(1);
    std::erase(key, '`');
    EXPECT_TRUE(rows.emplace(key, cells).second) << "twice: " << line;
  }
  return rows;
}

TEST(Pages, HaveEveryXid) {
  auto lines = lines_of("docs/xids.md");
  // The second table, of NVLink 5, has rows by unit.
  lines.erase(std::ranges::find(lines, "## NVLink 5: XIDs 144 to 150"), lines.end());
  const auto page = rows_of(lines);
  std::size_t codes = 0;
  for (const auto& line : lines_of("src/health/xids.tsv")) {
    const auto cells = text::split(line, '\t');
    if (cells.size() != 7 || !text::parse_unsigned(cells[0])) continue;
    ++codes;
    const auto row = page.find(cells[0]);
    ASSERT_NE(row, page.end()) << cells[0];
    const auto& told = row->second;
    EXPECT_EQ(told.at(2), cells[1]) << cells[0];
    EXPECT_EQ(told.at(3), cells[2]) << cells[0];
    EXPECT_EQ(told.at(5), cells[4] == "-" ? "" : cells[4]) << cells[0];
    EXPECT_EQ(told.at(6), cells[5]) << cells[0];
    const std::pair<char, const char*> gpus[] = {
        {cells[3][0], "A100"}, {cells[3][1], "H100"}, {cells[3][2], " B100"}, {cells[3][3], "GB200"}};
    for (const auto& [listed, name] : gpus)
      EXPECT_EQ((" " + told.at(4)).find(name) != std::string::npos, listed == '1') << cells[0] << name;
  }
  EXPECT_EQ(codes, xids().size());
  EXPECT_EQ(page.size(), codes + 1);  // and the head
}

TEST(Pages, HaveEveryState) {
  const auto lines = lines_of("docs/health.md");
  for (const auto state : kStates) {
    const auto row = "| " + std::string(name(state)) + " | " + (offered(state) ? "yes" : "no") + " |";
    EXPECT_EQ(std::ranges::count_if(lines, [&](const auto& line) { return line.starts_with(row); }), 1)
        << row;
  }
}

TEST(Pages, HaveEveryClassAndItsRunbook) {
  const auto lines = lines_of("docs/health.md");
  const auto begin = std::ranges::find(lines, "## When it happens");
  ASSERT_NE(begin, lines.end());
  std::vector<std::string> headings, classes;
  for (auto line = begin; line != lines.end(); ++line) {
    if (!line->starts_with("### ")) continue;
    headings.push_back(line->substr(4));
    EXPECT_GT((line + 2)->size(), 20u) << *line;
  }
  for (const auto& rule : fault_rules()) {
    classes.emplace_back(rule.name);
    const auto row = "| `" + classes.back() + "` | " + std::string(name(rule.effect)) + " |";
    EXPECT_EQ(std::count_if(lines.begin(), begin, [&](const auto& line) { return line.starts_with(row); }), 1)
        << row;
  }
  EXPECT_EQ(headings, classes);
}

}  // namespace
}  // namespace gpulet::health

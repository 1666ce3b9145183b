// docs/troubleshooting.md shows the table of checks: that it is this one.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/file.h"
#include "doctor/check.h"

namespace gpulet::doctor {
namespace {

constexpr const char* kPage = "docs/troubleshooting.md";
constexpr std::string_view kBegin = "<!-- checks", kEnd = "<!-- end -->";

std::string table() {
  std::string table = "| check | of | looks at | says | fix |\n|---|---|---|---|---|\n";
  for (const auto& check : checks()) {
    table += "| `" + std::string(check.id) + "` | " + std::string(name(check.complaint)) + " | " +
             std::string(check.looks_at) + " | " + std::string(check.says) + " | " + std::string(check.fix) +
             " |\n";
  }
  return table;
}

TEST(Docs, TheTableOfChecksIsThisOne) {
  auto page = read_file(kPage);
  ASSERT_TRUE(page) << page.error().text();
  const auto mark = page->find(kBegin);
  ASSERT_NE(mark, std::string::npos);
  const auto begin = page->find('\n', mark) + 1;
  const auto end = page->find(kEnd, begin);
  ASSERT_NE(end, std::string::npos);
  const std::string shown = page->substr(begin, end - begin);
  if (std::getenv("UPDATE_GOLDEN") && shown != table()) {
    ASSERT_TRUE(write_file_atomic(kPage, page->replace(begin, end - begin, table())));
    return;
  }
  EXPECT_EQ(shown, table()) << "UPDATE_GOLDEN=1 writes it";
}

}  // namespace
}  // namespace gpulet::doctor

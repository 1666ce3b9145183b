// docs/metrics.md shows the table of fields: that it is this one.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/file.h"
#include "metrics/counters.h"
#include "metrics/fields.h"

namespace gpulet::metrics {
namespace {

constexpr const char* kPage = "docs/metrics.md";
constexpr std::string_view kEnd = "<!-- end -->";

std::string fields_table() {
  std::string table = "| metric | type | default | part | NVML | |\n|---|---|---|---|---|---|\n";
  for (const auto& field : fields()) {
    const bool call = field.source.starts_with("nvml");
    table += "| `" + std::string(field.name) + "` | " + std::string(name(field.type)) + " | " +
             (field.by_default ? "yes" : "") + " | " + (field.of_instance ? "yes" : "") + " | " +
             (call ? "`" : "") + std::string(field.source) + (call ? "`" : "") + " | " +
             std::string(field.help) + " |\n";
  }
  return table;
}

std::string absent_table() {
  std::string table = "| begins | why |\n|---|---|\n";
  for (const auto& one : absent())
    table += "| `" + std::string(one.begins) + "` | " + std::string(one.reason) + " |\n";
  return table;
}

// Where the text between the line that begins with `mark` and the end mark begins and ends.
std::pair<std::size_t, std::size_t> between(const std::string& page, const std::string& mark) {
  const auto line = page.find("<!-- " + mark);
  const auto begin = line == std::string::npos ? line : page.find('\n', line) + 1;
  const auto end = begin == std::string::npos ? begin : page.find(kEnd, begin);
  EXPECT_NE(end, std::string::npos) << mark << " is missing in " << kPage;
  return {begin, end};
}

void expect_table(const std::string& mark, const std::string& table) {
  auto page = read_file(kPage);
  ASSERT_TRUE(page) << page.error().text();
  const auto [begin, end] = between(*page, mark);
  ASSERT_NE(end, std::string::npos);
  const std::string shown = page->substr(begin, end - begin);
  if (std::getenv("UPDATE_GOLDEN") && shown != table) {
    ASSERT_TRUE(write_file_atomic(kPage, page->replace(begin, end - begin, table)));
    return;
  }
  EXPECT_EQ(shown, table) << "UPDATE_GOLDEN=1 writes it";
}

TEST(Docs, TheTableOfFieldsIsThisOne) { expect_table("fields", fields_table()); }

TEST(Docs, SoIsWhatIsAbsent) { expect_table("absent", absent_table()); }

}  // namespace
}  // namespace gpulet::metrics

// The table of checks in docs/troubleshooting.md is current.
#include <gtest/gtest.h>

#include "base/test_page.h"
#include "doctor/checks.h"

namespace gpulet::doctor {
namespace {

constexpr const char* kPage = "docs/troubleshooting.md";

std::string checks_table() {
  std::string table = "| check | looks at | reports | fix |\n|---|---|---|---|\n";
  for (const auto& check : all_checks()) {
    table += "| `" + std::string(check.id) + "` | " + std::string(check.looks_at) + " | " +
             std::string(check.reports) + " | " + std::string(check.fix) + " |\n";
  }
  return table;
}

TEST(Docs, TableOfChecksIsCurrent) { expect_in_document(kPage, "checks", checks_table()); }

}  // namespace
}  // namespace gpulet::doctor

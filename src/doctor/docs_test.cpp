// docs/troubleshooting.md shows the table of checks: that it is this one.
#include <gtest/gtest.h>

#include "base/test_page.h"
#include "doctor/check.h"

namespace gpulet::doctor {
namespace {

constexpr const char* kPage = "docs/troubleshooting.md";

std::string table() {
  std::string table = "| check | of | looks at | says | fix |\n|---|---|---|---|---|\n";
  for (const auto& check : checks()) {
    table += "| `" + std::string(check.id) + "` | " + std::string(name(check.complaint)) + " | " +
             std::string(check.looks_at) + " | " + std::string(check.says) + " | " + std::string(check.fix) +
             " |\n";
  }
  return table;
}

TEST(Docs, TheTableOfChecksIsThisOne) { expect_in_page(kPage, "checks", table()); }

}  // namespace
}  // namespace gpulet::doctor

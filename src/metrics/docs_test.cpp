// docs/metrics.md shows the table of fields: that it is this one.
#include <gtest/gtest.h>

#include "base/test_page.h"
#include "metrics/counters.h"
#include "metrics/fields.h"

namespace gpulet::metrics {
namespace {

constexpr const char* kPage = "docs/metrics.md";

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

TEST(Docs, TheTableOfFieldsIsThisOne) { expect_in_page(kPage, "fields", fields_table()); }

TEST(Docs, SoIsWhatIsAbsent) { expect_in_page(kPage, "absent", absent_table()); }

}  // namespace
}  // namespace gpulet::metrics

// Checks the tables of docs/metrics.md against the code.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/test_page.h"
#include "base/text.h"
#include "metrics/counters.h"
#include "metrics/fields.h"
#include "metrics/gpulet_page.h"

namespace gpulet::metrics {
namespace {

constexpr const char* kPage = "docs/metrics.md";

// A counters file has a help of its own, so what only that serves is listed by name.
std::string fields_table() {
  std::string table = "| metric | help |\n|---|---|\n";
  std::map<std::string, std::vector<std::string>> others;  // by their notes
  for (const auto& field : fields()) {
    const std::string metric = "`" + std::string(field.name) + "`";
    std::vector<std::string> notes;
    if (field.type != Type::kGauge) notes.emplace_back(type_name(field.type));
    if (field.of_instance) notes.emplace_back("MIG");
    const auto joined = text::join(notes, ", ");
    if (field.by_default)
      table += "| " + metric + " | " + std::string(field.help) + (joined.empty() ? "" : " [" + joined + "]") +
               " |\n";
    else
      others[joined.empty() ? "gauge" : joined].push_back(metric);
  }
  table += "\nIf the counters file names them:\n\n";
  for (const auto& [notes, metrics] : others) table += "- " + notes + ": " + text::join(metrics, ", ") + "\n";
  return table + "\n";
}

std::string absent_table() {
  std::string table = "| prefix | reason |\n|---|---|\n";
  for (const auto& one : unserved_fields())
    table += "| `" + std::string(one.prefix) + "` | " + std::string(one.reason) + " |\n";
  return table;
}

std::string gpulet_table() {
  std::string table = "| metric | type | labels | |\n|---|---|---|---|\n";
  for (const auto& metric : gpulet_metrics()) {
    std::string labels;
    for (const auto& label : text::split(metric.labels, ','))
      labels += (labels.empty() ? "`" : ", `") + std::string(text::trim(label)) + "`";
    const bool device = metric.name.starts_with("gpulet_device") ||
                        metric.name.find("_gpu_") != std::string::npos ||
                        metric.name.find("_mig_") != std::string::npos;
    table += "| `" + std::string(metric.name) + "` | " + std::string(Exposition::type_name(metric.type)) +
             " | " + (device ? "device" + std::string(labels.empty() ? "" : ", ") : "") + labels + " | " +
             std::string(metric.help) + " |\n";
  }
  return table;
}

TEST(Docs, FieldsTableMatches) { expect_in_document(kPage, "fields", fields_table()); }

TEST(Docs, GpuletMetricsTableMatches) { expect_in_document(kPage, "gpulet", gpulet_table()); }

TEST(Docs, UnsupportedFieldsTableMatches) { expect_in_document(kPage, "absent", absent_table()); }

}  // namespace
}  // namespace gpulet::metrics

// Checks the lists of docs/metrics.md against the code.
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
std::string fields_list() {
  std::string list = "\n";
  std::map<std::string, std::vector<std::string>> others;  // by their notes
  for (const auto& field : fields()) {
    const std::string metric = "`" + std::string(field.name) + "`";
    std::vector<std::string> notes;
    if (field.type != Type::kGauge) notes.emplace_back(type_name(field.type));
    if (field.of_instance) notes.emplace_back("MIG");
    const auto joined = text::join(notes, ", ");
    if (field.by_default)
      list +=
          "- " + metric + ": " + std::string(field.help) + (joined.empty() ? "" : " [" + joined + "]") + "\n";
    else
      others[joined.empty() ? "gauge" : joined].push_back(metric);
  }
  list += "\nIf the counters file names them:\n\n";
  for (const auto& [notes, metrics] : others) list += "- " + notes + ": " + text::join(metrics, ", ") + "\n";
  return list + "\n";
}

std::string absent_list() {
  std::string list = "\n";
  for (const auto& one : unserved_fields())
    list += "- `" + std::string(one.prefix) + "`: " + std::string(one.reason) + "\n";
  return list + "\n";
}

std::string gpulet_list() {
  std::string list = "\n";
  for (const auto& metric : gpulet_metrics()) {
    std::string labels;
    for (const auto& label : text::split(metric.labels, ','))
      labels += (labels.empty() ? "`" : ", `") + std::string(text::trim(label)) + "`";
    const bool device =
        metric.name.starts_with("gpulet_device") ||
        (metric.name.find("_gpu_") != std::string::npos && !metric.name.starts_with("gpulet_namespace_")) ||
        metric.name.find("_mig_") != std::string::npos;
    if (device) labels = "device" + (labels.empty() ? std::string() : ", " + labels);
    list += "- `" + std::string(metric.name) + "`: " + std::string(metric.help) + " [" +
            std::string(Exposition::type_name(metric.type)) + (labels.empty() ? "" : "; " + labels) + "]\n";
  }
  return list + "\n";
}

TEST(Docs, FieldsMatch) { expect_in_document(kPage, "fields", fields_list()); }

TEST(Docs, GpuletMetricsMatch) { expect_in_document(kPage, "gpulet", gpulet_list()); }

TEST(Docs, UnsupportedFieldsMatch) { expect_in_document(kPage, "absent", absent_list()); }

}  // namespace
}  // namespace gpulet::metrics
